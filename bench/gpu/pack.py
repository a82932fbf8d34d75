"""./dev gpu pack: what a machine with a GPU needs to test and measure dtrain, in one folder.

The built CUDA tests (ctest's label "gpu"), the benchmarks, the GPT's training program and the CUDA
plugins, stripped, programs compressed (bench/gpu/programs.py; `run` unpacks them), with the shared
libraries that are neither the system's nor LibTorch's or CUDA's, the peers' twins and a
script `run`. LibTorch comes from that machine's Python, the CUDA libraries with it. Nothing is
compiled there. pack.json names the LibTorch that it was built with: programs load no other.
"""
import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import programs
from torch_release import release_in

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import provenance  # noqa: E402
from report import write_json  # noqa: E402

SOURCE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROGRAMS = ["dtrain", "dtrain-bench-mfu", "dtrain-bench-kernels-cuda", "dtrain-bench-comm",
            "dtrain-gpt", "dtrain-plan"]
PLUGINS = ["libdtrain_cuda.so", "libdtrain_torch_cuda.so"]
SCRIPTS = ["bench/gpu", "bench/provenance.py", "bench/report.py", "bench/twins", "examples/configs"]
BYTES_MAX = 64_000_000
# glibc's parts belong to the kernel and loader of a machine.
OF_THE_SYSTEM = re.compile(
    r"^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libresolv|libutil)[.]so")
OF_TORCH_OR_CUDA = re.compile(
    r"^lib(torch|c10|gomp|shm|nccl|cu(da|pti|blas|dnn|fft|file|rand|solver|sparse)|"
    r"nv(rtc|idia-ml|JitLink|shmem))")


def gpu_tests(build):
    """[(name, executable, seconds)] of the tests that need a GPU, in ctest's own words."""
    listed = subprocess.run(["ctest", "--test-dir", build, "-L", "^gpu$", "--show-only=json-v1"],
                            check=True, capture_output=True, text=True).stdout
    tests = []
    for test in json.loads(listed)["tests"]:
        limit = next((p["value"] for p in test["properties"] if p["name"] == "TIMEOUT"), 120)
        # ctest names no command of a test that is not built.
        tests.append((test["name"], test.get("command", [f"{build}/tests/{test['name']}"])[0], limit))
    return tests


def libraries(path):
    """{name: path, or None when the loader does not find it} of what `path` needs, all levels."""
    done = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
    found = {}
    for line in done.splitlines():
        if match := re.match(r"\s*(\S+) => (not found|\S+)", line):
            found[match[1]] = None if match[2] == "not found" else match[2]
    return found


def to_carry(path, torch):
    """Those of `libraries` that the pack must bring. `torch`: LibTorch's folder of libraries."""
    carried = {}
    for name, where in libraries(path).items():
        if OF_THE_SYSTEM.match(name) or OF_TORCH_OR_CUDA.match(name):
            continue
        if where is None:
            sys.exit(f"./dev gpu pack: {path} needs {name}, which is not found here")
        if not os.path.realpath(where).startswith(os.path.realpath(torch) + os.sep):
            carried[name] = where
    return carried


def copy_stripped(path, target):
    os.makedirs(os.path.dirname(target), exist_ok=True)
    subprocess.run(["strip", "-o", target, os.path.realpath(path)], check=True)
    os.chmod(target, 0o755)


def folder_bytes(folder):
    return sum(os.path.getsize(os.path.join(where, name))
               for where, _, names in os.walk(folder) for name in names)


def torch_folder(build):
    """The folder in which a program of this build finds LibTorch."""
    return os.path.dirname(libraries(f"{build}/bin/dtrain-bench-mfu")["libtorch_cpu.so"])


def pack(build, out):
    shutil.rmtree(out, ignore_errors=True)
    tests = gpu_tests(build)
    files = [(f"{build}/bin/{name}", f"bin/{name}") for name in PROGRAMS]
    files += [(command, f"tests/{os.path.basename(command)}") for _, command, _ in tests]
    files += [(f"{build}/lib/{name}", f"lib/{name}") for name in PLUGINS]
    missing = [source for source, _ in files if not os.path.exists(source)]
    if missing:
        sys.exit(f"./dev gpu pack: not built: {', '.join(missing)}; ./dev build needs nvcc on the PATH")
    carried, torch = {}, torch_folder(build)
    for source, _ in files:
        carried.update(to_carry(source, torch))
    for source, target in [*files, *((where, f"lib/{name}") for name, where in carried.items())]:
        copy_stripped(source, f"{out}/{target}")
        if os.path.dirname(target) in programs.FOLDERS:
            programs.compress(f"{out}/{target}")
    for name in SCRIPTS:
        target = f"{out}/{name}"
        if os.path.isdir(f"{SOURCE}/{name}"):
            shutil.copytree(f"{SOURCE}/{name}", target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy(f"{SOURCE}/{name}", target)
    shutil.copy(f"{SOURCE}/bench/gpu/run.sh", f"{out}/run")
    os.chmod(f"{out}/run", 0o755)
    built_with = release_in(os.path.dirname(torch))
    write_json(f"{out}/pack.json", {
        "commit": provenance.commit(), "libraries": sorted(carried),
        "torch": dataclasses.asdict(built_with) if built_with else None,
        "tests": [{"name": name, "program": f"tests/{os.path.basename(command)}", "limit_s": limit}
                  for name, command, limit in tests]})
    return tests, carried


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", default=f"{SOURCE}/build/release")
    parser.add_argument("--out", default=f"{SOURCE}/build/gpu-pack")
    args = parser.parse_args()
    tests, carried = pack(args.build, args.out)
    size = folder_bytes(args.out)
    if size > BYTES_MAX:
        sys.exit(f"./dev gpu pack: {args.out} has {size / 1e6:.1f} MB, allowed: "
                 f"{BYTES_MAX / 1e6:.0f}; leave out a program of bench/gpu/pack.py")
    print(f"{args.out}: {size / 1e6:.1f} MB, {len(tests)} GPU tests, {len(PROGRAMS)} programs, "
          f"{len(carried)} libraries; copy it to a machine with a GPU and start {os.path.basename(args.out)}/run")


if __name__ == "__main__":
    main()
