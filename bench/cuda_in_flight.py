"""How many bytes the norms' kernels have on the way from memory, for each multiprocessor: what a launch's shape,
registers and shared memory leave room for, times what a thread loads before it first uses any of it. Below what
latency times bandwidth asks for, a kernel cannot reach the rate of a copy, whatever else it does.

An estimate from the compiled code; nothing here was run on a GPU.
"""
import collections
import re

import cuda_sass

BYTES_MIN = 16 * 1024
SHARE_MIN = 0.95
# Rows: 8,192 tokens, in heads of 128 sixteen a token.
WIDTHS = {128: 16 * 8192, 768: 8192, 4096: 8192}
# Multiprocessors, bytes a second from memory, and seconds until a load's data is there, by estimate.
MACHINES = {"sm_80": ("A100", 108, 2.04e12, 600e-9), "sm_90a": ("H100", 132, 3.35e12, 650e-9),
            "sm_100": ("B200", 148, 8.0e12, 750e-9), "sm_120": ("RTX 5090", 170, 1.79e12, 600e-9)}
# Template arguments behind the type, threads a block, rows a block, chunks of a backward: what RowPlanOf and
# RowChunksCuda of kernels/cuda give for these widths, as tests/kernels/cuda_index_test.cc asserts.
PLANS = {128: ("8, 1, 16", 256, 16, 528), 768: ("8, 3, 32", 256, 8, 528), 4096: ("8, 2, 0", 256, 1, 264)}

Row = collections.namedtuple("Row", "source kernel width arch machine blocks bytes share")

REGISTER = re.compile(r"\bR(\d+)\b")


def registers(text):
    return {int(number) for number in REGISTER.findall(text)}


def loaded(code):
    """The most bytes that wide loads of a thread have been asked for and not used yet, anywhere in its code as
    it stands: a branch is taken to go on."""
    waiting, most = {}, 0
    for instruction in code:
        kind = cuda_sass.access(instruction)
        if kind and kind[0] == "load" and kind[1] >= cuda_sass.WIDE_BITS:
            operands = instruction.text.split(",", 1)
            first = min(registers(operands[0]))
            used = registers(operands[1])
            size = kind[1] // 8
        else:
            first, size, used = None, 0, registers(instruction.text)
        waiting = {start: (end, n) for start, (end, n) in waiting.items()
                   if not any(start <= register < end for register in used)}
        if first is not None:
            waiting[first] = (first + size // 4, size)
        most = max(most, sum(n for _, n in waiting.values()))
    return most


def rows(kernels, resident_blocks):
    """A Row for each norm kernel of bf16, width and architecture."""
    found = []
    for kernel in kernels:
        if kernel.source not in ("rmsnorm.cu", "layernorm.cu") or "BFloat16" not in kernel.name:
            continue
        machine, processors, rate, latency = MACHINES[kernel.arch]
        for width in WIDTHS:
            arguments, threads, at_once, chunks = PLANS[width]
            if f"BFloat16, {arguments}," not in kernel.name:
                continue
            launched = -(-WIDTHS[width] // at_once)
            if kernel.name.startswith("Backward"):
                launched = min(launched, chunks)
            blocks = min(resident_blocks(kernel, threads), launched / processors)
            in_flight = blocks * threads * kernel.in_flight
            found.append(Row(kernel.source, kernel.name, width, kernel.arch, machine, blocks, in_flight,
                             min(1, in_flight * processors / (rate * latency))))
    return found


def table(found):
    lines = [f"{'source':13} {'kernel':44} {'width':>5} {'machine':9} {'blocks/SM':>9} {'KiB/SM':>6} {'of copy':>7}"]
    for row in sorted(found, key=lambda row: (row.machine, row.width, row.source, row.kernel)):
        name = row.kernel.replace("dtrain::BFloat16", "bf16")
        lines.append(f"{row.source:13} {name:44} {row.width:5} {row.machine:9} {row.blocks:9.1f} "
                     f"{row.bytes / 1024:6.1f} {row.share:7.0%}")
    return "\n".join(lines)
