"""How a compiled CUDA kernel reaches global memory: its loops and its straight code, read from `cuobjdump -sass`.

An access is *wide* from 16 bytes on and *narrow* below. A loop is what the graph of jumps says: code that is
jumped back to from a place that only it leads to, with all between; an access belongs to the innermost loop
that holds it. A narrow access is *beside* a wide one when whatever runs one of them comes by the other too:
with a scalar that costs little, with one more stream it costs as much again. A loop with nothing wide in it
or beside it is what is left for an end that no 16 bytes fit, or a hot loop that was compiled narrow: that a
reader must know, and tests/kernels/cuda_code_test.py lists.
"""
import collections
import re

Instruction = collections.namedtuple("Instruction", "at text conditional")
# `tail`: nothing in it is wide, nor beside something wide.
Loop = collections.namedtuple("Loop", "wide narrow tail")
# The loops that access global memory; narrow accesses of the straight code, beside a wide one or not.
Shape = collections.namedtuple("Shape", "loops beside apart")

WIDE_BITS = 128
LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+\s+)?([^;]+?)\s*;")
ADDRESS = re.compile(r"0x([0-9a-f]+)")


def functions(sass):
    """{(arch, function): [Instruction]}, of the text of `cuobjdump -sass`."""
    found, arch, code = {}, None, None
    for line in sass.split("\n"):
        if match := LINE.match(line):
            code.append(Instruction(int(match.group(1), 16), match.group(3), bool(match.group(2))))
        elif match := re.search(r"Function : (\S+)", line):
            code = found[arch, match.group(1)] = []
        elif match := re.match(r"arch = (\w+)", line):
            arch = match.group(1)
    return found


def access(instruction):
    """("load" or "store", bits) of an instruction that accesses global memory; None of another."""
    match = re.match(r"(LD|ST)G?\.E((?:\.\w+)*)", instruction.text)
    if not match:
        return None
    width = re.search(r"\.[US]?(8|16|64|128|256)(?:\.|$)", match.group(2))
    return {"LD": "load", "ST": "store"}[match.group(1)], int(width.group(1)) if width else 32


def widths(code):
    """(Counter of the loads' bits, Counter of the stores')."""
    found = {"load": collections.Counter(), "store": collections.Counter()}
    for kind, bits in filter(None, map(access, code)):
        found[kind][bits] += 1
    return found["load"], found["store"]


def target(instruction):
    return int(ADDRESS.findall(instruction.text)[-1], 16)


def successors(code):
    """Returns for each instruction the places of those that may follow it, and the places where code begins."""
    place = {instruction.at: i for i, instruction in enumerate(code)}
    joins = collections.defaultdict(set)
    for instruction in code:
        if instruction.text.startswith("BSSY"):
            joins[instruction.text.split()[1].rstrip(",")].add(place[target(instruction)])
    follow, roots = [], {0}
    for i, instruction in enumerate(code):
        word = instruction.text.split()[0].split(".")[0]
        onward = {i + 1} & set(range(len(code)))
        if word == "BRA":
            # A second predicate stands among the operands.
            always = not instruction.conditional and re.match(r"BRA\S*\s+0x", instruction.text)
            onward = {place[target(instruction)]} | (set() if always else onward)
        elif word in ("EXIT", "RET", "BRX", "JMX") and not instruction.conditional:
            onward = set()
        elif word == "BSYNC":
            ends = joins[instruction.text.split()[1]]
            onward = onward & ends or ends or onward
        elif word == "CALL" and ADDRESS.search(instruction.text):
            roots.add(place[target(instruction)])
        follow.append(onward)
    return follow, roots


class Graph:
    """The straight pieces of a kernel, and for each the pieces that every way to it goes through."""

    def __init__(self, code):
        follow, roots = successors(code)
        heads = set(roots)
        for i, onward in enumerate(follow):
            if onward != {i + 1}:
                heads |= onward | {i + 1}
        heads = sorted(head for head in heads if head < len(code))
        number = {head: piece for piece, head in enumerate(heads)}
        self.code = [code[head:end] for head, end in zip(heads, [*heads[1:], len(code)])]
        self.after = [{number[i] for i in follow[end - 1]} for end in [*heads[1:], len(code)]]
        self.roots = {number[root] for root in roots}
        self.order = self.reached()
        self.before = collections.defaultdict(set)
        for piece in self.order:
            for after in self.after[piece]:
                self.before[after].add(piece)
        self.over = self.dominators()

    def reached(self):
        """The pieces that can be come by, each before those that it alone leads to."""
        order, seen = [], set()
        for root in sorted(self.roots):
            stack = [] if root in seen else [(root, iter(self.after[root]))]
            seen.add(root)
            while stack:
                piece, onward = stack[-1]
                after = next((one for one in onward if one not in seen), None)
                if after is None:
                    order.append(piece)
                    stack.pop()
                else:
                    seen.add(after)
                    stack.append((after, iter(self.after[after])))
        return order[::-1]

    def dominators(self):
        over = {piece: {piece} if piece in self.roots else set(self.order) for piece in self.order}
        changed = True
        while changed:
            changed = False
            for piece in self.order:
                if piece not in self.roots:
                    new = set.intersection(*(over[b] for b in self.before[piece])) | {piece}
                    changed |= new != over[piece]
                    over[piece] = new
        return over

    def natural_loops(self):
        """[(its head, its pieces, those of them that jump back)], an inner loop before those around it."""
        bodies, latches = collections.defaultdict(set), collections.defaultdict(set)
        for piece in self.order:
            for head in self.after[piece] & self.over[piece]:  # A jump back.
                body, stack = {head}, [piece]
                while stack:
                    one = stack.pop()
                    if one not in body:
                        body.add(one)
                        stack += self.before[one]
                bodies[head] |= body
                latches[head].add(piece)
        return sorted(((head, body, latches[head]) for head, body in bodies.items()), key=lambda loop: len(loop[1]))


def shape(graph):
    """The Shape of a kernel. ValueError where a jump cannot be followed to an access."""
    narrow, wide = collections.Counter(), collections.Counter()
    for piece, instructions in enumerate(graph.code):
        for _, bits in filter(None, map(access, instructions)):
            (wide if bits >= WIDE_BITS else narrow)[piece] += 1
    lost = (set(narrow) | set(wide)) - set(graph.order)
    if lost:
        raise ValueError(f"no jump leads to the access at {graph.code[min(lost)][0].at:#x}")
    beside = {n for n in narrow if any(n in graph.over[w] or w in graph.over[n] for w in wide)}
    loops, looped = [], set()
    for _, body, _ in graph.natural_loops():
        own = body - looped  # Inner loops came first.
        looped |= body
        counts = [sum(counter[piece] for piece in own) for counter in (wide, narrow)]
        if any(counts):
            loops.append(Loop(*counts, not body & (set(wide) | beside)))
    straight = set(narrow) - looped
    return Shape(loops, sum(narrow[n] for n in straight & beside), sum(narrow[n] for n in straight - beside))
