"""Liger's forms of the operations that kernel_peers measures: those whose mathematics is the same.

Its GEGLU takes the tanh form of GELU where the case has the exact one, and is not here.
"""
import torch

import kernel_twins
from kernel_twins.rope import HEAD_DIM, SEQUENCE, rope_table


def backward_of(forward, inputs, gradients):
    """Liger's backward may write into what forward saved, so each call has a forward of its own,
    whose time `kernel_peers.measure` takes off."""
    def both():
        return torch.autograd.grad(forward(), inputs, gradients)
    both.forward = forward
    return both


def weights(setting, dtype, number):
    return [torch.rand(setting.hidden, device=setting.device).to(dtype).requires_grad_()
            for _ in range(number)]


def rmsnorm(setting, dtype):
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    x, (weight,) = setting.rows(dtype).requires_grad_(), weights(setting, dtype, 1)
    return (lambda: LigerRMSNormFunction.apply(x, weight, kernel_twins.EPS)), (x, weight), 1


def rmsnorm_add(setting, dtype):
    from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction
    x, residual = setting.rows(dtype).requires_grad_(), setting.rows(dtype).requires_grad_()
    weight, = weights(setting, dtype, 1)
    return (lambda: LigerFusedAddRMSNormFunction.apply(x, residual, weight, kernel_twins.EPS),
            (x, residual, weight), 2)


def layernorm(setting, dtype):
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    x, (weight, bias) = setting.rows(dtype).requires_grad_(), weights(setting, dtype, 2)
    return (lambda: LigerLayerNormFunction.apply(x, weight, bias, kernel_twins.EPS),
            (x, weight, bias), 1)


def swiglu(setting, dtype):
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction
    gate, up = setting.rows(dtype).requires_grad_(), setting.rows(dtype).requires_grad_()
    return (lambda: LigerSiLUMulFunction.apply(gate, up)), (gate, up), 1


BOTH_WAYS = {"rmsnorm_add": rmsnorm_add, "rmsnorm": rmsnorm, "layernorm": layernorm,
             "swiglu_fused": swiglu, "swiglu": swiglu}


def rope_halves(setting, dtype):
    """The rotation of a query and a key that have half of the heads each."""
    from liger_kernel.ops.rope import LigerRopeFunction
    heads = setting.rows(dtype).unflatten(-1, (-1, HEAD_DIM)).unflatten(0, (-1, SEQUENCE))
    # They have the layout of a projection's output. Liger transposes them back and copies non-contiguous ones.
    q, k = (part.contiguous().transpose(1, 2) for part in heads.chunk(2, 2))
    cos, sin = (torch.cat((half, half), -1).squeeze(1).unsqueeze(0).to(dtype)
                for half in rope_table(SEQUENCE, setting.device))
    return lambda: LigerRopeFunction.apply(q, k, cos, sin)


def cross_entropy(setting, dtype):
    """Liger's forward writes the gradient over the logits, so later calls have other numbers."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    vocabulary = setting.shape("cross_entropy")["vocabulary"]
    x = torch.randn(setting.elements // vocabulary, vocabulary, device=setting.device).to(dtype)
    targets = torch.randint(0, vocabulary, (x.shape[0],), device=setting.device)
    x.requires_grad_()
    return lambda: LigerCrossEntropyFunction.apply(x, targets, None, -100, 0.0, 0.0, "sum")


WHOLE = {"rope_halves": rope_halves, "cross_entropy": cross_entropy}


def form(name, setting, dtype):
    """A function that calls Liger's form of a case, or None if Liger has none. ImportError if Liger is
    not installed."""
    case, _, _ = name.rpartition("_")  # Without the type.
    if case in WHOLE:
        return WHOLE[case](setting, dtype)
    operation, _, way = case.rpartition("_")
    if operation not in BOTH_WAYS or way not in ("forward", "backward"):
        return None
    call, inputs, results = BOTH_WAYS[operation](setting, dtype)
    if way == "forward":
        return call
    gradients = [setting.rows(dtype) for _ in range(results)]
    return backward_of(call, inputs, gradients)
