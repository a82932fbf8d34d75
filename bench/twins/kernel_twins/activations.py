"""SwiGLU and GeGLU, from one buffer or two, and GELU."""
import torch
from torch.nn import functional as F

from .twin import TWINS, Twin, twin


@twin("swiglu_forward")
def swiglu_forward(setting, dtype):
    gate, up = setting.rows(dtype), setting.rows(dtype)
    return Twin(lambda: F.silu(gate) * up)


@twin("swiglu_backward")
def swiglu_backward(setting, dtype):
    gate, up = setting.rows(dtype).requires_grad_(), setting.rows(dtype).requires_grad_()
    dout, y = setting.rows(dtype), F.silu(gate) * up

    def compiled():
        g, u, d = gate.detach().float(), up.detach().float(), dout.float()
        sigmoid = torch.sigmoid(g)
        silu = g * sigmoid
        dgate = d * u * (sigmoid + silu * (1 - sigmoid))
        return dgate.to(dtype), (d * silu).to(dtype)
    return Twin(lambda: torch.autograd.grad(y, (gate, up), dout, retain_graph=True), compiled)


@twin("swiglu_fused_forward")
def swiglu_fused_forward(setting, dtype):
    both = fused_rows(setting, dtype)
    return Twin(lambda: F.silu(both[:, :setting.hidden]) * both[:, setting.hidden:])


@twin("swiglu_fused_backward")
def swiglu_fused_backward(setting, dtype):
    def silu(g):
        sigmoid = torch.sigmoid(g)
        return g * sigmoid, sigmoid * (1 + g * (1 - sigmoid))
    return gated_backward(setting, dtype, F.silu, silu)


@twin("geglu_fused_forward")
def geglu_fused_forward(setting, dtype):
    both = fused_rows(setting, dtype)
    return Twin(lambda: F.gelu(both[:, :setting.hidden]) * both[:, setting.hidden:])


@twin("geglu_fused_backward")
def geglu_fused_backward(setting, dtype):
    def gelu(g):
        distribution = 0.5 * (1 + torch.erf(g * 0.5 ** 0.5))
        return g * distribution, distribution + g * torch.exp(-0.5 * g * g) * 0.3989422804014327
    return gated_backward(setting, dtype, F.gelu, gelu)


def fused_rows(setting, dtype):
    return torch.randn(setting.elements // setting.hidden, 2 * setting.hidden,
                       device=setting.device).to(dtype)


def gated_backward(setting, dtype, activation, value_and_slope):
    both = fused_rows(setting, dtype).requires_grad_()
    dout, hidden = setting.rows(dtype), setting.hidden
    y = activation(both[:, :hidden]) * both[:, hidden:]

    def compiled():
        d, all_of = dout.float(), both.detach().float()
        value, slope = value_and_slope(all_of[:, :hidden])
        return torch.cat((d * all_of[:, hidden:] * slope, d * value), -1).to(dtype)
    return Twin(lambda: torch.autograd.grad(y, both, dout, retain_graph=True)[0], compiled)


def gelu_forward_of(approximate):
    def make(setting, dtype):
        x = setting.rows(dtype)
        return Twin(lambda: F.gelu(x, approximate=approximate))
    return make


def gelu_backward_of(approximate):
    def make(setting, dtype):
        x, dy = setting.rows(dtype), setting.rows(dtype)
        return Twin(lambda: torch.ops.aten.gelu_backward(dy, x, approximate=approximate))
    return make


TWINS["gelu_forward"], TWINS["gelu_backward"] = gelu_forward_of("none"), gelu_backward_of("none")
TWINS["gelu_tanh_forward"], TWINS["gelu_tanh_backward"] = (gelu_forward_of("tanh"),
                                                           gelu_backward_of("tanh"))
