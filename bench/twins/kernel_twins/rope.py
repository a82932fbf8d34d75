"""Rotary positions: half-split, interleaved, and the gradient of a fused projection."""
import torch

from .twin import Twin, twin

HEAD_DIM, SEQUENCE = 128, 1024  # bench/kernels/rope_cases.cc has the same.


def rope_table(tokens, device):
    places = torch.arange(tokens, device=device) % SEQUENCE
    angles = torch.outer(places, 10000.0 ** (-torch.arange(64, device=device) / 64.0))
    return angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)


def turn_halves(x, cos, sin):
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)


@twin("rope_halves")
def rope_halves(setting, dtype):
    x = setting.rows(dtype).unflatten(-1, (-1, HEAD_DIM))
    cos, sin = rope_table(len(x), setting.device)
    return Twin(lambda: turn_halves(x, cos, sin))


@twin("rope_interleaved")
def rope_interleaved(setting, dtype):
    x = setting.rows(dtype).unflatten(-1, (-1, HEAD_DIM // 2, 2))
    cos, sin = rope_table(len(x), setting.device)

    def turn():
        a, b = x.float().unbind(-1)
        return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).to(dtype)
    return Twin(turn)


@twin("rope_qkv_backward")
def rope_qkv_backward(setting, dtype):
    heads = setting.rows(dtype).unflatten(-1, (-1, HEAD_DIM))
    eighth = heads.shape[1] // 8  # 12, 2 and 2 of the CPU's 16 heads.
    q, k, v = (part.contiguous() for part in heads.split((6 * eighth, eighth, eighth), 1))
    cos, sin = rope_table(len(heads), setting.device)
    return Twin(lambda: torch.cat((turn_halves(q, cos, -sin), turn_halves(k, cos, -sin), v), 1))
