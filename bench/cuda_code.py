"""Reads from the objects of a build what nvcc made of the CUDA kernels: registers, shared memory, memory
accesses by width and the occupancy that follows. No GPU is needed, and nothing here was run on one.

`./dev bench cuda` prints the table and writes it as JSON; tests/kernels/cuda_code_test.py holds the
rules. Names: a kernel's *wide form* is the instantiation for aligned data, whose accesses are to be of
16 bytes; other instantiations are for what does not fit those.
"""
import argparse
import collections
import glob
import json
import os
import re
import shutil
import subprocess
import sys

import cuda_arithmetic
import cuda_in_flight
import cuda_sass

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100", "sm_120")
PTX = "sm_100"  # cuobjdump's name of the PTX that drivers compile for GPUs without code of their own.
# A build's objects: those of the kernels' library, and the plugin's own for groups.
OBJECTS = ("kernels/CMakeFiles/dtrain_kernels_cuda.dir/**/*.cu.o",
           "comm/nccl/CMakeFiles/dtrain_cuda.dir/plugin/*.cu.o")
# Multiprocessor limits, CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
SHARED_BYTES = {"sm_80": 164 * 1024, "sm_90a": 228 * 1024, "sm_100": 228 * 1024, "sm_120": 100 * 1024}
WARPS_MAX = {"sm_80": 64, "sm_90a": 64, "sm_100": 64, "sm_120": 48}
BLOCKS_MAX = {"sm_80": 32, "sm_90a": 32, "sm_100": 32, "sm_120": 24}
REGISTERS, SHARED_RESERVED = 65536, 1024
# Launched with these, without a __launch_bounds__ to read.
THREADS = {"ColumnsKernel": 512, "AddPartials": 256, "AddInOrder": 1, "ImageKernel": 1}

Kernel = collections.namedtuple(
    "Kernel",
    "source function name form arch registers stack local shared threads loads stores shape occupancy in_flight "
    "arithmetic")


def find_cuobjdump():
    """The CUDA toolkit's, or the one that Triton's wheel brings; None where there is neither."""
    places = [shutil.which("cuobjdump"), "/usr/local/cuda/bin/cuobjdump"]
    for pattern in ("nvidia/cu13/bin", "triton/backends/nvidia/bin"):
        places += glob.glob(f"{ROOT}/.deps/python/lib/python3*/site-packages/{pattern}/cuobjdump")
    return next((p for p in places if p and os.access(p, os.X_OK)), None)


def occupancy(threads, registers, shared, arch):
    """Resident warps by those that a multiprocessor holds, as NVIDIA's occupancy calculator: registers
    are given to warps in 256s, shared memory to blocks in 128 bytes beside 1 KiB of the system's."""
    warps = -(-threads // 32)
    by_registers = REGISTERS // (-(-max(registers, 1) * 32 // 256) * 256) // warps
    by_shared = SHARED_BYTES[arch] // (-(-(shared + SHARED_RESERVED) // 128) * 128)
    warps_max = WARPS_MAX[arch]
    return min(warps_max // warps, BLOCKS_MAX[arch], by_registers, by_shared) * warps / warps_max


def resident_blocks(kernel, threads):
    """Blocks of `threads` that a multiprocessor holds."""
    warps = -(-threads // 32)
    share = occupancy(threads, kernel.registers, kernel.shared, kernel.arch)
    return round(share * WARPS_MAX[kernel.arch] / warps)


def kernel_name(demangled):
    """The function's name and its template arguments, ("RowsKernel", "float, 8, true, false")."""
    text = demangled.replace("(anonymous namespace)::", "").replace("(bool)", "").replace("(int)", "")
    match = re.search(r"([A-Za-z_]\w*)(<.*>)?\(", strip_return(text))
    arguments = match.group(2) or ""
    return match.group(1), re.sub(r"dtrain::(kernels|comm)::", "", arguments[1:-1])


def strip_return(text):
    """Without namespaces and the return type before the name."""
    text = re.sub(r"^void ", "", text)
    depth = 0
    for i, c in enumerate(text):  # The last :: outside of template arguments, before the parameters.
        depth += (c == "<") - (c == ">")
        if c == "(" and depth == 0:
            head = text[:i]
            break
    else:
        return text + "("
    depth, start = 0, 0
    for i, c in enumerate(head):
        depth += (c == "<") - (c == ">")
        if depth == 0 and head[i:i + 2] == "::":
            start = i + 2
    return head[start:] + "("


def wide_form(arguments):
    """Whether the instantiation is the one for aligned data: every kernel's width, or the flag that
    says so, is its first argument that is a number, a bool or a format's neighbour."""
    first = re.search(r"(?:^|, )(true|false|\d+)(?=,|$)", arguments)
    return bool(first) and first.group(1) in ("true", "8")


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def demangle(names):
    names = sorted(names)
    output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                            check=True).stdout.split("\n")
    return dict(zip(names, output))


def resources(cuobjdump, path):
    """{(arch, function): {"REG": .., "STACK": .., "SHARED": .., "LOCAL": ..}}"""
    found, arch, function = {}, None, None
    for line in run(cuobjdump, "-res-usage", path).split("\n"):
        if match := re.match(r"arch = (\w+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function (\S+):", line):
            function = match.group(1)
        elif "REG:" in line:
            found[arch, function] = {k: int(v) for k, v in re.findall(r"(\w+):(\d+)", line)}
    return found


def own_shared(arch, facts):
    """Shared memory of a kernel's own: from compute capability 9.0 on the system's KiB is counted in."""
    return facts["SHARED"] - (SHARED_RESERVED if arch != "sm_80" and facts["SHARED"] > 0 else 0)


def ptx_architectures(cuobjdump, path):
    """The architectures that an object has PTX for."""
    return set(re.findall(r"\.(sm_\w+)\.ptx", run(cuobjdump, "-lptx", path)))


def launch_bounds(cuobjdump, path):
    """{function: threads a block, at most}, which is the same for every architecture."""
    found, function = {}, None
    lines = iter(run(cuobjdump, "-elf", "-arch", ARCHITECTURES[-1], path).split("\n"))
    for line in lines:
        if match := re.match(r"\.nv\.info\.(\S+)", line):
            function = match.group(1)
        elif "EIATTR_MAX_THREADS" in line:
            value = re.search(r"Value:\s*(.*)", next(lines) + next(lines)).group(1)
            x, y, z = (int(word, 16) for word in value.split()[:3])
            found[function] = x * y * z
    return found


def code_of(cuobjdump, path, architectures):
    """{(arch, function): its instructions}"""
    codes = {}
    for arch in architectures:
        codes.update(cuda_sass.functions(run(cuobjdump, "-sass", "-arch", arch, path)))
    return codes


def read_object(cuobjdump, path, architectures):
    source = os.path.basename(path).removesuffix(".o")
    usage = {(arch, function): facts for (arch, function), facts in resources(cuobjdump, path).items()
             if arch in architectures}
    codes = code_of(cuobjdump, path, architectures) if usage else {}
    bounds = launch_bounds(cuobjdump, path) if usage else {}
    names = demangle({function for _, function in usage})
    for (arch, function), facts in sorted(usage.items()):
        if "cub::" in names[function] or "dtrain" not in names[function]:
            continue  # CUB's own kernels, which the sort of embedding.cu takes in.
        name, arguments = kernel_name(names[function])
        threads = bounds.get(function) or THREADS.get(name) or 1024
        shared = own_shared(arch, facts)
        code = codes[arch, function]
        graph = cuda_sass.Graph(code)
        loads, stores = cuda_sass.widths(code)
        yield Kernel(source, function, f"{name}<{arguments}>" if arguments else name,
                     "wide" if wide_form(arguments) else "other", arch, facts["REG"], facts["STACK"],
                     facts["LOCAL"], shared, threads, dict(loads), dict(stores),
                     cuda_sass.shape(graph), occupancy(threads, facts["REG"], shared, arch),
                     cuda_in_flight.loaded(code), cuda_arithmetic.of(code, graph))


def objects_of(build):
    """The objects of sources that are still there: a build folder keeps those of files that have moved."""
    found = []
    for pattern in OBJECTS:
        for path in glob.glob(f"{build}/{pattern}", recursive=True):
            folder, source = re.fullmatch(r"(.*)/CMakeFiles/[^/]*\.dir/(.*)\.o", os.path.relpath(path, build)).groups()
            if os.path.exists(f"{ROOT}/{folder}/{source}"):
                found.append(path)
    return sorted(found)


def read_build(build, architectures=ARCHITECTURES):
    """The kernels of every object that a build has, as compiled for `architectures`, and the sources
    that have one."""
    cuobjdump = find_cuobjdump()
    if cuobjdump is None:
        sys.exit("no cuobjdump: install CUDA's binary utilities, or the Python peers (./dev deps test)")
    paths = objects_of(build)
    return [k for path in paths for k in read_object(cuobjdump, path, architectures)], [
        os.path.basename(p).removesuffix(".o") for p in paths]


def summary(kernels):
    """A row for each source, kernel, form and architecture: the worst of its instantiations."""
    groups = collections.defaultdict(list)
    for k in kernels:
        groups[k.source, k.name.split("<")[0], k.form, k.arch].append(k)
    rows = []
    for (source, name, form, arch), group in sorted(groups.items()):
        rows.append({"source": source, "kernel": name, "form": form, "arch": arch,
                     "instantiations": len(group),
                     "registers": max(k.registers for k in group),
                     "shared_bytes": max(k.shared for k in group),
                     "local_bytes": max(k.stack + k.local for k in group),
                     "threads": max(k.threads for k in group),
                     "occupancy": min(k.occupancy for k in group),
                     "loads_128": min(k.loads.get(128, 0) for k in group),
                     "stores_128": min(k.stores.get(128, 0) for k in group)})
    return rows


def main():
    parser = argparse.ArgumentParser(description="CUDA kernels as compiled: a table from their objects.")
    parser.add_argument("--build", default=f"{ROOT}/build/release")
    parser.add_argument("--json", help="write the table to this file")
    options = parser.parse_args()
    kernels, sources = read_build(options.build)
    if not sources:
        sys.exit(f"no CUDA objects in {options.build}: nvcc was not found when it was configured")
    rows = summary(kernels)
    print(f"{'source':22} {'kernel':24} {'form':5} {'arch':7} {'regs':>4} {'shared':>6} {'local':>5} "
          f"{'threads':>7} {'occup.':>6} {'LDG128':>6} {'STG128':>6}")
    for r in rows:
        print(f"{r['source']:22} {r['kernel']:24} {r['form']:5} {r['arch']:7} {r['registers']:4} "
              f"{r['shared_bytes']:6} {r['local_bytes']:5} {r['threads']:7} {r['occupancy']:6.0%} "
              f"{r['loads_128']:6} {r['stores_128']:6}")
    print(f"{len(kernels)} kernels of {len(sources)} sources; theoretical occupancy, worst of a row's "
          "instantiations; compiled, not run on a GPU")
    print("\nBytes on the way from memory for each multiprocessor, and the share of a copy's rate that they allow:")
    in_flight = cuda_in_flight.rows(kernels, resident_blocks)
    print(cuda_in_flight.table(in_flight))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"bench": "cuda_code", "note": "compiled, not run on a GPU", "rows": rows,
                       "in_flight": [row._asdict() for row in in_flight]}, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
