"""RMSNorm and LayerNorm, alone and of a sum; RMSNorm of attention heads."""
import torch
from torch.nn import functional as F

from .rope import HEAD_DIM
from .twin import TWINS, Setting, Twin, twin

EPS = 1e-6


def rms_operands(setting, dtype):
    x, weight = setting.rows(dtype), torch.rand(setting.hidden, device=setting.device).to(dtype) + 0.5
    return x, weight


def heads(setting):
    """The same numbers as rows of a head each."""
    return Setting(setting.elements, HEAD_DIM, setting.shapes, setting.device)


@twin("rmsnorm_forward")
def rmsnorm_forward(setting, dtype):
    x, weight = rms_operands(setting, dtype)
    return Twin(lambda: F.rms_norm(x, (setting.hidden,), weight, EPS))


@twin("rmsnorm_add_forward")
def rmsnorm_add_forward(setting, dtype):
    x, weight = rms_operands(setting, dtype)
    residual = setting.rows(dtype)

    def forward():
        h = x + residual
        return F.rms_norm(h, (setting.hidden,), weight, EPS), h
    return Twin(forward)


def rmsnorm_backward_of(setting, dtype, residual):
    x, weight = rms_operands(setting, dtype)
    dy, dsum = setting.rows(dtype), setting.rows(dtype)
    x.requires_grad_()
    weight.requires_grad_()
    y = F.rms_norm(x, (setting.hidden,), weight, EPS)
    h, w = x.detach(), weight.detach()
    rstd = torch.rsqrt(h.float().square().mean(-1, keepdim=True) + EPS)

    def eager():
        dh, dweight = torch.autograd.grad(y, (x, weight), dy, retain_graph=True)
        return dh + dsum if residual else dh, dweight

    def compiled():
        gradient, normal = dy.float(), h.float() * rstd
        scaled = gradient * w.float()
        dh = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
        dh = dh + dsum.float() if residual else dh
        return dh.to(dtype), (gradient * normal).sum(0).to(dtype)
    return Twin(eager, compiled)


@twin("rmsnorm_backward")
def rmsnorm_backward(setting, dtype):
    return rmsnorm_backward_of(setting, dtype, residual=False)


@twin("rmsnorm_heads_forward")
def rmsnorm_heads_forward(setting, dtype):
    return rmsnorm_forward(heads(setting), dtype)


@twin("rmsnorm_heads_backward")
def rmsnorm_heads_backward(setting, dtype):
    return rmsnorm_backward(heads(setting), dtype)


@twin("rmsnorm_add_backward")
def rmsnorm_add_backward(setting, dtype):
    return rmsnorm_backward_of(setting, dtype, residual=True)


@twin("layernorm_forward")
def layernorm_forward(setting, dtype):
    x, weight = rms_operands(setting, dtype)
    bias = torch.rand(setting.hidden, device=setting.device).to(dtype)
    return Twin(lambda: F.layer_norm(x, (setting.hidden,), weight, bias, EPS))


@twin("layernorm_add_forward")
def layernorm_add_forward(setting, dtype):
    x, weight = rms_operands(setting, dtype)
    residual, bias = setting.rows(dtype), torch.rand(setting.hidden, device=setting.device).to(dtype)

    def forward():
        h = x + residual
        return F.layer_norm(h, (setting.hidden,), weight, bias, EPS), h
    return Twin(forward)


def layernorm_backward_of(residual):
    def make(setting, dtype):
        x, weight = rms_operands(setting, dtype)
        dy, dsum = setting.rows(dtype), setting.rows(dtype)
        bias = torch.rand(setting.hidden, device=setting.device).to(dtype).requires_grad_()
        x.requires_grad_()
        weight.requires_grad_()
        y = F.layer_norm(x, (setting.hidden,), weight, bias, EPS)
        h, w = x.detach(), weight.detach()
        mean = h.float().mean(-1, keepdim=True)
        rstd = torch.rsqrt(h.float().var(-1, keepdim=True, correction=0) + EPS)

        def eager():
            dh, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), dy, retain_graph=True)
            return dh + dsum if residual else dh, dweight, dbias

        def compiled():
            gradient, normal = dy.float(), (h.float() - mean) * rstd
            scaled = gradient * w.float()
            dh = rstd * (scaled - scaled.mean(-1, keepdim=True)
                         - normal * (scaled * normal).mean(-1, keepdim=True))
            dh = dh + dsum.float() if residual else dh
            return dh.to(dtype), (gradient * normal).sum(0).to(dtype), gradient.sum(0).to(dtype)
        return Twin(eager, compiled)
    return make


TWINS["layernorm_backward"] = layernorm_backward_of(residual=False)
TWINS["layernorm_add_backward"] = layernorm_backward_of(residual=True)
