"""Operations over numbers in a row: norm, copies and casts, scaling, accumulation, dropout."""
import torch
from torch.nn import functional as F

from .twin import TWINS, Twin, twin


@twin("square_sum")
def square_sum(setting, dtype):
    x = setting.flat(dtype)
    return Twin(lambda: torch.linalg.vector_norm(x, dtype=torch.float32),
                lambda: x.float().square().sum().sqrt())


def copying(source, target):
    def make(setting, _):
        x, y = setting.flat(source), setting.empty(target)
        return Twin(lambda: y.copy_(x))
    return make


TWINS["copy_f32"] = copying(torch.float32, torch.float32)
TWINS["cast_f32_bf16"] = copying(torch.float32, torch.bfloat16)
TWINS["cast_bf16_f32"] = copying(torch.bfloat16, torch.float32)


@twin("scale")
def scale(setting, dtype):
    x, y = setting.flat(dtype), setting.empty(dtype)
    return Twin(lambda: torch.mul(x, 0.5, out=y), lambda: y.copy_(x * 0.5))


@twin("accumulate")
def accumulate(setting, dtype):
    x, y = setting.flat(dtype), setting.flat(dtype)
    result = Twin(lambda: y.add_(x))
    result.in_place = True
    return result


@twin("dropout")
def dropout(setting, dtype):
    x = setting.flat(dtype)
    result = Twin(lambda: F.dropout(x, 0.1, training=True))
    result.random = True
    return result
