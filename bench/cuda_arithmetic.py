"""Reads from a compiled CUDA kernel's instructions what costs it time: how often it goes over its data, fp64
in its loops, and how it rounds to bf16 and FP8. A conversion of two numbers is one instruction
of the hardware (F2FP); the same by integer operations is five for each number, of which a Hopper multiprocessor does
64 a cycle.
"""
import collections
import re

import cuda_sass

# Loops that load by 16 bytes with a reduction between them; conversions to a format, two numbers each, and from FP8;
# numbers rounded by integer operations; fp64 operations, and those of them that each round of a loop over global
# memory executes.
Arithmetic = collections.namedtuple("Arithmetic", "passes packs unpacks integers fp64 fp64_rounds")

PACK = re.compile(r"F2FP(?:\.\w+)*?\.(BF16|E4M3|E5M2)(?:\.F32)?\.PACK_AB")
UNPACK = re.compile(r"F2FP\.F16\.(E4M3|E5M2)\b")
# Adds half of the last place that is kept, less one: of bf16, e4m3 and e5m2 as kernels/quantize/fp8_math.h has them.
HALVES = re.compile(r"V?I(?:ADD|MAD)3?\b.* 0x(?:7fff|7ffff|fffff)\b")
FP64 = re.compile(r"D(?:ADD|MUL|FMA)\b")
# Where threads tell each other their results.
REDUCTION = re.compile(r"(?:SHFL|REDUX|BAR|VOTE|CREDUX)\b")


def matching(code, pattern):
    return [match for match in (pattern.match(instruction.text) for instruction in code) if match]


def rounds(graph):
    """The instructions that each round executes of a loop that accesses global memory: those on all ways from its
    head to a jump back, without those that a predicate may leave out."""
    found = {}
    for _, body, latches in graph.natural_loops():
        if any(cuda_sass.access(instruction) for piece in body for instruction in graph.code[piece]):
            for piece in body.intersection(*(graph.over[latch] for latch in latches)):
                found.update((instruction.at, instruction) for instruction in graph.code[piece]
                             if not instruction.conditional)
    return [found[at] for at in sorted(found)]


def passes(code, graph):
    """How often a kernel goes over its data: once, and once more for each loop of wide loads behind a reduction that
    is behind another such loop. Inner loops count as the loop around them."""
    outermost = {}  # The number of the outermost loop that holds the instruction at an address.
    for number, (_, body, _) in enumerate(graph.natural_loops()):
        for piece in body:
            outermost.update((instruction.at, number) for instruction in graph.code[piece])
    count, last, reduced = 0, None, True
    for instruction in code:
        loop = outermost.get(instruction.at)
        if REDUCTION.match(instruction.text):
            reduced = True
        elif loop is not None and cuda_sass.access(instruction) == ("load", cuda_sass.WIDE_BITS) and loop != last:
            count += reduced
            last, reduced = loop, False
    return max(count, 1)


def of(code, graph):
    """The Arithmetic of a kernel's instructions, of which `graph` is the graph."""
    return Arithmetic(passes(code, graph), dict(collections.Counter(m.group(1) for m in matching(code, PACK))),
                      dict(collections.Counter(m.group(1) for m in matching(code, UNPACK))),
                      len(matching(code, HALVES)), len(matching(code, FP64)), len(matching(rounds(graph), FP64)))
