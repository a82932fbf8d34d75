"""FP8 and int8: largest magnitudes, codes, transposed codes, and numbers again."""
import torch

from .twin import TWINS, Twin, twin

FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
INT8_BLOCK = 256


def largest_magnitude(x):
    """The largest magnitude in x, found in one pass without a copy of the magnitudes."""
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high)


@twin("amax")
def amax(setting, dtype):
    x = setting.flat(dtype)
    return Twin(lambda: x.abs().amax(), others={"aminmax": lambda: largest_magnitude(x), "vector_norm":
                lambda: torch.linalg.vector_norm(x, float("inf"))})


def cast_to_fp8(name):
    largest = torch.finfo(FP8[name]).max

    def make(setting, dtype):
        x = setting.flat(dtype)

        def codes():
            return (x.float() * 16).clamp(-largest, largest).to(FP8[name])
        return Twin(lambda: (codes(), x.abs().amax()),
                    others={"aminmax": lambda: (codes(), largest_magnitude(x))})
    return make


def cast_from_fp8(name):
    def make(setting, dtype):
        x = setting.flat(torch.float32).to(FP8[name])
        return Twin(lambda: (x.float() * 0.0625).to(dtype))
    return make


def transpose_to_fp8(name):
    largest = torch.finfo(FP8[name]).max

    def make(setting, dtype):
        x = setting.rows(dtype)

        def cast():
            codes = (x.float() * 16).clamp(-largest, largest).to(FP8[name])
            return codes, codes.t().contiguous()
        return Twin(cast)
    return make


for one in FP8:
    TWINS[f"cast_to_{one}"], TWINS[f"cast_from_{one}"] = cast_to_fp8(one), cast_from_fp8(one)
    TWINS[f"transpose_to_{one}"] = transpose_to_fp8(one)


@twin("quantize_int8")
def quantize_int8(setting, dtype):
    x = setting.flat(dtype).view(-1, INT8_BLOCK)

    def quantize():
        wide = x.float()
        scale = wide.abs().amax(1, keepdim=True) / 127
        return (wide * (1 / scale)).round().to(torch.int8), scale
    return Twin(quantize)


@twin("dequantize_int8")
def dequantize_int8(setting, dtype):
    values = torch.randint(-127, 128, (setting.elements // INT8_BLOCK, INT8_BLOCK),
                           device=setting.device, dtype=torch.int8)
    scales = torch.rand(len(values), 1, device=setting.device)
    return Twin(lambda: (values.float() * scales).to(dtype))
