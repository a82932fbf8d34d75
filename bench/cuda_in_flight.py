"""How many bytes each memory-bound CUDA kernel has on the way from memory, for each multiprocessor: what a launch's
shape, registers and shared memory leave room for, times what a thread loads by 16 bytes before it first uses any of
it. Below what latency times bandwidth asks for (Little's law), a kernel cannot reach the rate of a copy, whatever
else it does.

An estimate from the compiled code; nothing here was run on a GPU. It is what can be on the way at most: every thread
is taken to be where it waits for most, and a load of a weight or a table counts although a cache may hold it.
"""
import collections
import re

import cuda_sass

BYTES_MIN = 16 * 1024
SHARE_MIN = 0.95
# Rows of norms, embeddings, rotary positions and matrices by their width: 8,192 tokens, in heads of 128 sixteen a
# token. A row of cross-entropy is a vocabulary. All that is no matrix is flat.
WIDTHS = {128: 16 * 8192, 768: 8192, 4096: 8192}
VOCABULARY, CROSS_ENTROPY_ROWS = 50304, 8192
FLAT = 1 << 26
# Multiprocessors and bytes a second from memory (NVIDIA's data sheets: A100 80GB SXM, H100 SXM, B200, RTX 5090), and
# seconds until a load's data is there while memory is busy. The last is an estimate: an idle H100 answers in 479
# cycles, 270 ns (Luo et al. 2024, arXiv 2402.13499), and near its full rate loads wait for each other for as long
# again and more.
MACHINES = {"sm_80": ("A100", 108, 2.04e12, 600e-9), "sm_90a": ("H100", 132, 3.35e12, 650e-9),
            "sm_100": ("B200", 148, 8.0e12, 750e-9), "sm_120": ("RTX 5090", 170, 1.79e12, 600e-9)}
# A norm's template arguments behind the type, threads a block, rows a block, chunks of a backward: what RowPlanOf and
# RowChunksCuda of kernels/cuda give for these widths, as tests/kernels/cuda_index_test.cc asserts. Below it the same
# of RowBlockOf and RowTeamOf: threads along a row and rows of a block, and a team's template argument.
PLANS = {128: ("8, 1, 16", 256, 16, 528), 768: ("8, 3, 32", 256, 8, 528), 4096: ("8, 2, 0", 256, 1, 264)}
ROW_BLOCKS = {128: (16, 8), 768: (96, 1), 4096: (128, 1)}
ROW_TEAMS = {128: 8, 768: 32, 4096: 0}

# How a kernel is launched: the widths of its rows (None: it is flat), and a function of the kernel and a width that
# gives threads a block and blocks, or None for an instantiation that rows of this width do not take.
Launch = collections.namedtuple("Launch", "widths shape")
# The instantiation of a kind that has the fewest bytes on the way, on one machine.
Row = collections.namedtuple("Row", "source kernel types width arch machine threads blocks loaded passes bytes share")

# Kernels without a form for aligned data, which wait for little: why they are not held to bytes on the way.
NARROW = {
    "AddInOrder": "one thread over a number a rank",
    "AddPartials": "one block over up to 1,024 numbers",
    "KeysKernel": "widens nothing: a token's id of 8 bytes becomes two numbers of 4; the sort follows",
    "ImageKernel": "is asked for, and never launched",
    "StartsKernel": "a binary search",
    "StepVerdictKernel": "one block over two numbers a rank",
    "TotalsKernel": "one block over a number a token",
    "TreeKernel": "a tree over one number for each 4,096 elements",
    "TrustKernel": "one block over two numbers for each 4,096 elements",
    "ColumnsKernel": "adds columns of the partial sums, a thread each",
}
# Kernels of a form for aligned data that the estimate says nothing of.
EXEMPT = {"FillBody": "loads nothing: it only writes"}
# These kernels hold both forms and choose by the address.
BOTH = {"BlockSquareSumsKernel", "MomentsKernel"}

REGISTER = re.compile(r"\bR(\d+)\b")
TYPES = {"float": "fp32", "BFloat16": "bf16", "__nv_bfloat16": "bf16", "Float16": "fp16", "__half": "fp16"}
TYPE = re.compile(r"\bfloat\b|__nv_bfloat16|BFloat16|Float16|__half")


def blocks_of(items, each):
    return -(-items // each)


def flat(elements, most=None):
    """A grid over FLAT elements, so many of them a thread, in at most `most` blocks."""
    def shape(kernel, _):
        blocks = blocks_of(FLAT, elements * kernel.threads)
        return kernel.threads, min(blocks, most or blocks)
    return Launch((None,), shape)


def norm(kernel, width):
    arguments, threads, at_once, chunks = PLANS[width]
    if f", {arguments}, " not in kernel.name:
        return None
    blocks = blocks_of(WIDTHS[width], at_once)
    return threads, min(blocks, chunks) if kernel.name.startswith("Backward") else blocks


def row_blocks(rows):
    """Blocks of RowBlockOf's shape over `rows` rows, or the width's, of eight elements a thread."""
    def shape(_, width):
        across, at_once = ROW_BLOCKS[width]
        return across * at_once, blocks_of(rows or WIDTHS[width], at_once) * blocks_of(width // 8, across)
    return shape


def row_teams(kernel, width):
    team = ROW_TEAMS[width]
    if not kernel.name.endswith(f"true, {team}>"):
        return None
    return kernel.threads, blocks_of(WIDTHS[width], kernel.threads // team if team else 1)


def tiles(kernel, width):
    return kernel.threads, blocks_of(WIDTHS[width], 64) * blocks_of(width, 64)


# A kernel's name, or its source and its name where several have it.
LAUNCHES = {
    "AdamWStochasticKernel": flat(32),
    "AddParts": flat(8, most=4096),
    "BlockSquareSumsKernel": flat(16),
    "Cast": flat(8, most=4096),
    "DequantizeKernel": flat(16),
    "DropoutKernel": flat(32),
    "ElementwiseKernel": flat(8),
    "FromKernel": flat(16),
    "MomentsKernel": flat(16),
    "QuantizeKernel": flat(16),
    "RowsToKernel": Launch(tuple(WIDTHS), row_teams),
    "ScaleKernel": flat(16),
    "SquarePartials": flat(8, most=1024),
    "ToKernel": flat(16),
    "TransposeKernel": Launch(tuple(WIDTHS), tiles),
    "cross_entropy.cu RowsKernel": Launch((VOCABULARY,), lambda kernel, _: (kernel.threads, CROSS_ENTROPY_ROWS)),
    # In rows of heads of 128, a thread of rope has eight pairs of a query or a key.
    "embedding.cu RowsKernel": Launch(tuple(WIDTHS), row_blocks(VOCABULARY)),
    "layernorm.cu BackwardKernel": Launch(tuple(WIDTHS), norm),
    "layernorm.cu ForwardKernel": Launch(tuple(WIDTHS), norm),
    "rmsnorm.cu BackwardKernel": Launch(tuple(WIDTHS), norm),
    "rmsnorm.cu ForwardKernel": Launch(tuple(WIDTHS), norm),
    "rope.cu Kernel": Launch(tuple(WIDTHS), row_blocks(None)),
}


def registers(text):
    return {int(number) for number in REGISTER.findall(text)}


def loaded(code):
    """The most bytes that wide loads of a thread have been asked for and not used yet, anywhere in its code as
    it stands: a branch with a condition is taken to go on, and behind one without, nothing is on the way."""
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
        elif not instruction.conditional and re.match(r"EXIT|RET|BRX|BRA\S*\s+0x", instruction.text):
            waiting = {}
        most = max(most, sum(n for _, n in waiting.values()))
    return most


def launch_of(kernel):
    name = kernel.name.split("<")[0]
    return LAUNCHES.get(f"{kernel.source} {name}") or LAUNCHES.get(name)


def is_held(kernel):
    """Whether a kernel is for aligned data."""
    return kernel.form == "wide" or kernel.name.split("<")[0] in BOTH


def kind_of(kernel):
    """Names what one row of the table is about: an element-wise kernel's body or a kernel, and its types of data."""
    body = re.search(r"\w+Body\b", kernel.name)
    name = body.group(0) if body else kernel.name.split("<")[0]
    if kernel.source == "cross_entropy.cu" and kernel.name.endswith("true>"):
        name += " + gradient"
    types = [TYPES[word] for word in TYPE.findall(kernel.name)] or ["fp32"]
    return name, " ".join(dict.fromkeys(types))


def estimate(kernel, width, resident_blocks):
    """A kernel's Row, or None where rows of this width do not take it."""
    shape = launch_of(kernel).shape(kernel, width)
    if shape is None:
        return None
    threads, launched = shape
    machine, processors, rate, latency = MACHINES[kernel.arch]
    blocks = min(resident_blocks(kernel, threads), launched / processors)
    in_flight = blocks * threads * kernel.in_flight
    return Row(kernel.source, *kind_of(kernel), width, kernel.arch, machine, threads, blocks, kernel.in_flight,
               kernel.arithmetic.passes, in_flight, min(1, in_flight * processors / (rate * latency)))


def rows(kernels, resident_blocks):
    """A Row for each source, kind of kernel, width and architecture, in that order."""
    least = {}
    for kernel in kernels:
        launch = launch_of(kernel) if is_held(kernel) else None
        for width in launch.widths if launch and kind_of(kernel)[0] not in EXEMPT else ():
            row = estimate(kernel, width, resident_blocks)
            if row:
                key = (row.source, row.kernel, row.types, width or 0, row.arch)
                least[key] = min(least.get(key, row), row, key=lambda one: one.bytes)
    return [least[key] for key in sorted(least)]


def table(found):
    """A line for each kind of kernel and width: as launched on an H100, and bytes and share on each machine."""
    machines = [machine for machine, *_ in MACHINES.values() if any(row.machine == machine for row in found)]
    lines = [f"{'source':20} {'kernel':21} {'types':9} {'width':>5} {'passes':>6} {'threads':>7} {'B/thread':>8} "
             f"{'blocks/SM':>9}" + "".join(f"{machine + ' KiB/SM, of copy':>27}" for machine in machines)]
    groups = collections.defaultdict(dict)
    for row in found:
        groups[row.source, row.kernel, row.types, row.width][row.machine] = row
    for (source, kernel, types, width), group in groups.items():
        one = group.get("H100") or next(iter(group.values()))
        line = (f"{source:20} {kernel:21} {types:9} {width or 'flat':>5} {one.passes:6} {one.threads:7} "
                f"{one.loaded:8} {one.blocks:9.1f}")
        for machine in machines:
            line += f"{group[machine].bytes / 1024:20.1f} {group[machine].share:6.0%}"
        lines.append(line)
    lines += [f"not held to it: {name}: {why}" for name, why in {**EXEMPT, **NARROW}.items()]
    return "\n".join(lines)
