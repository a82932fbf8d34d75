"""Twins: torch's eager and compiled forms of one operation, found by the case's name."""
import torch


class Setting:
    """Sizes, and fresh operands of `elements` numbers [rows, hidden] on a device."""

    def __init__(self, elements, hidden, shapes, device="cpu"):
        self.elements, self.hidden, self.shapes = elements, hidden, shapes
        self.device = device

    def shape(self, name):
        """The sizes of the C++ case beside `elements` and `hidden`."""
        return next(shape for case, shape in self.shapes.items() if case.startswith(name))

    def rows(self, dtype):
        return torch.randn(self.elements // self.hidden, self.hidden, device=self.device).to(dtype)

    def flat(self, dtype):
        return torch.randn(self.elements, device=self.device).to(dtype)

    def empty(self, dtype):
        return torch.empty(self.elements, dtype=dtype, device=self.device)


class Twin:
    """`eager` and `compiled` each do the operation once and return what it wrote; `compiled` is
    what torch.compile is given, unless `never_compiled`. Operands live in the closures. `others`:
    {name: eager form} of the same operation where torch has several; the fastest is the peer."""

    def __init__(self, eager, compiled=None, never_compiled=False, others=None):
        self.eager, self.compiled = eager, compiled or eager
        self.never_compiled = never_compiled
        self.others = others or {}

    def eager_forms(self):
        return {"eager": self.eager, **self.others}

    def form_of_compile(self):
        return self.compiled if self.never_compiled else torch.compile(self.compiled, dynamic=False)


TWINS = {}


def twin(*names):
    """Registers a maker: (setting, dtype) -> Twin. A name without a type is made for both."""
    def register(make):
        for name in names:
            TWINS[name] = make
        return make
    return register


def find(name):
    """(maker, dtype) of a case, or None: the whole name, else the name less its type."""
    if name in TWINS:
        return TWINS[name], None
    base, _, suffix = name.rpartition("_")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}.get(suffix)
    return (TWINS[base], dtype) if base in TWINS and dtype else None
