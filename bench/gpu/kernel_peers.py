"""torch eager, torch.compile and, where installed, Liger on the shapes of dtrain-bench-kernels-cuda.

Times are medians of rounds of many launches between two CUDA events. Writes --json
{"peers": {way: version}, "results": [{"name", "way", "us"} or {"name", "way", "missing"}]}.
"""
import argparse
import importlib.metadata
import os
import statistics
import sys

import torch

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{BENCH}/twins", BENCH]  # Both have a module `kernels`; the twins' one is meant.

import kernel_twins  # noqa: E402
import liger_forms  # noqa: E402
from report import write_json  # noqa: E402

# The most telling first: a cut-off keeps what was measured. fp32 behind bf16, and not of all.
BOTH_TYPES = (
    "rmsnorm_add_forward", "rmsnorm_add_backward", "swiglu_fused_forward", "swiglu_fused_backward",
    "rope_halves", "cross_entropy", "layernorm_add_forward", "layernorm_add_backward",
    "geglu_fused_forward", "geglu_fused_backward", "gelu_forward", "gelu_backward", "dropout",
    "embedding_backward", "rope_qkv_backward", "cast_to_e4m3", "quantize_int8",
    "dequantize_int8", "square_sum", "rmsnorm_heads_forward", "rmsnorm_heads_backward",
    "rmsnorm_forward", "rmsnorm_backward", "layernorm_forward", "layernorm_backward",
    "swiglu_forward", "swiglu_backward", "gelu_tanh_forward", "gelu_tanh_backward",
    "rope_interleaved", "cast_to_e5m2", "cast_from_e4m3", "cast_from_e5m2")
# The cases of bench/kernels/cuda_products.cc.
PRODUCTS = ("product", "product_input_gradient", "product_bias", "product_bias_gelu",
            "product_gelu_gradient", "product_weight_gradient")
NAMES = ["adamw_f32", "adamw_f32_copy_bf16", "adamw_bf16_states", "adamw_stochastic",
         *[f"{name}_bf16" for name in (*BOTH_TYPES, *PRODUCTS)],
         "transpose_to_e4m3_bf16", "transpose_to_e5m2_bf16",
         "cast_f32_bf16", "cast_bf16_f32", "accumulate_f32", "adamw_bf16_copy_bf16",
         *[f"{name}_f32" for name in BOTH_TYPES]]
SHAPES = {"cross_entropy": {"vocabulary": 32768}}  # bench/kernels/cuda_case.h has the same.


def seconds(call, launches):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(launches):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / launches


def measure(call, args):
    for _ in range(5):
        call()
    forward = getattr(call, "forward", None)
    taken = []
    for _ in range(args.rounds):
        once = seconds(call, args.launches)
        taken.append(once - (seconds(forward, args.launches) if forward else 0))
    return statistics.median(taken) * 1e6


def ways_of(name, setting):
    """way -> a function that makes its forms, {form: call}; without any there is no such way."""
    maker, dtype = kernel_twins.find(name)
    twin = maker(setting, dtype)

    def liger():
        call = liger_forms.form(name, setting, dtype)
        return {"liger": call} if call else {}
    return {"eager": twin.eager_forms, "compile": lambda: {"compile": twin.form_of_compile()},
            "liger": liger}


def row(name, way, make, args):
    """The time of the fastest form."""
    try:
        taken = {form: measure(call, args) for form, call in make().items()}
        form = min(taken, key=taken.get, default=None)
        return form and {"name": name, "way": way, "us": taken[form], "form": form}
    except Exception as error:  # A peer that is absent or fails must not end the others.
        return {"name": name, "way": way, "missing": f"{type(error).__name__}: {error}"[:200]}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launches", type=int, default=30)
    parser.add_argument("--json", required=True)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("kernel_peers: torch sees no GPU")
    setting = kernel_twins.Setting(args.elements, args.hidden, SHAPES, "cuda")
    results = []
    for name in NAMES:
        torch._dynamo.reset()
        for way, make in ways_of(name, setting).items():
            found = row(name, way, make, args)
            if found:
                results.append(found)
        torch.cuda.empty_cache()
        # Written after each case, so that a run that is cut off keeps what it measured.
        write_json(args.json, {"peers": versions(), "results": results})


def versions():
    found = {"torch": torch.__version__}
    try:
        found["liger"] = importlib.metadata.version("liger_kernel")
    except importlib.metadata.PackageNotFoundError:
        pass
    return found


if __name__ == "__main__":
    main()
