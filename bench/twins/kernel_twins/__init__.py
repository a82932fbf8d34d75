"""torch's own forms of the operations that `dtrain bench kernels` measures, a module a family.

`find(name)` gives the maker of a case and its type; importing the families registers them.
"""
from . import activations, flat, narrow, norms, optimizers, products, rope, tokens
from .norms import EPS
from .twin import Setting, find
