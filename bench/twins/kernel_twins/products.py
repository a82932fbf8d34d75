"""Matrix products of an MLP's layers, as torch does them: a product, then what follows it."""
import torch
from torch.nn import functional as F

from .twin import Twin, twin


class Sizes:
    """A product of bench/kernels/cuda_products.cc. Numbers are in [0.5, 1) as there, since a GPU's clock
    depends on them."""

    def __init__(self, setting, dtype):
        self.tokens, self.hidden, self.inner = 2 * setting.hidden, setting.hidden, 4 * setting.hidden
        self.dtype, self.device = dtype, setting.device

    def random(self, *shape):
        return (torch.rand(*shape, device=self.device) * 0.5 + 0.5).to(self.dtype)


@twin("product")
def product(setting, dtype):
    s = Sizes(setting, dtype)
    x, weight = s.random(s.tokens, s.hidden), s.random(s.inner, s.hidden)
    return Twin(lambda: torch.mm(x, weight.t()))


@twin("product_input_gradient")
def product_input_gradient(setting, dtype):
    s = Sizes(setting, dtype)
    dy, weight = s.random(s.tokens, s.inner), s.random(s.inner, s.hidden)
    return Twin(lambda: torch.mm(dy, weight))


@twin("product_bias")
def product_bias(setting, dtype):
    s = Sizes(setting, dtype)
    x, weight, bias = s.random(s.tokens, s.hidden), s.random(s.inner, s.hidden), s.random(s.inner)
    return Twin(lambda: F.linear(x, weight, bias))


@twin("product_bias_gelu")
def product_bias_gelu(setting, dtype):
    s = Sizes(setting, dtype)
    x, weight, bias = s.random(s.tokens, s.hidden), s.random(s.inner, s.hidden), s.random(s.inner)

    def forward():
        h = F.linear(x, weight, bias)
        return F.gelu(h, approximate="tanh"), h
    return Twin(forward)


@twin("product_gelu_gradient")
def product_gelu_gradient(setting, dtype):
    s = Sizes(setting, dtype)
    dy, weight, h = s.random(s.tokens, s.hidden), s.random(s.hidden, s.inner), s.random(s.tokens, s.inner)
    return Twin(lambda: torch.ops.aten.gelu_backward(torch.mm(dy, weight), h, approximate="tanh"))


@twin("product_weight_gradient")
def product_weight_gradient(setting, dtype):
    s = Sizes(setting, dtype)
    dy, x = s.random(s.tokens, s.inner), s.random(s.tokens, s.hidden)
    gradient = torch.zeros(s.inner, s.hidden, device=s.device)

    def add():
        return gradient.add_(torch.mm(dy.t(), x))
    made = Twin(add)
    made.in_place = True
    return made
