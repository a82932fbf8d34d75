"""Counts the libraries of CUDA that a process maps."""
import os
import re

OF_CUDA = re.compile(r"lib(cu(da|pti|blas|dnn|fft|file|rand|solver|sparse)|nv|nccl|torch_cuda|c10_cuda)")


def mapped_cuda_libraries(path="/proc/self/maps"):
    """Their number. torch's wheel of PyPI loads them all, even without a GPU."""
    with open(path, encoding="utf-8", errors="replace") as file:
        names = {os.path.basename(line.split()[-1]) for line in file if ".so" in line}
    return sum(bool(OF_CUDA.match(name)) for name in names)
