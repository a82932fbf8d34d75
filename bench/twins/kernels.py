"""torch's own forms of the operations that `dtrain bench kernels` measures: eager and compiled.

A process that bench/kernels.py talks to: standard input gives `NAME eager|compile` a line, and each is
one timed call, answered by one JSON line: {"s": seconds} or {"missing": why}. The first call of
a compiled form compiles it; its outputs are compared with eager's before anything is timed. Every
answer says whether it was "compiled" and, where outputs can be compared, their relative "distance"
and the distance "allowed".
"""
import argparse
import json
import sys
import time

import torch
from torch.nn import functional as F

EPS, DECAY, LR, BETA1, BETA2 = 1e-6, 0.1, 1e-3, 0.9, 0.999
ARENA_STREAMS = 6  # Of four bytes an element: bench/kernels/case.h.
GROSS = 10  # Times the tolerance: not the same work, and an end. What lies between is in the answer.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2,
             torch.float8_e4m3fn: 2e-2, torch.float8_e5m2: 2e-2, torch.int8: 2e-2}


class Setting:
    """Sizes, and fresh operands of `elements` numbers [rows, hidden] on a device."""

    def __init__(self, elements, hidden, shapes, device="cpu"):
        self.elements, self.hidden, self.shapes = elements, hidden, shapes
        self.device = device

    def shape(self, name):
        """What the C++ case says of itself beyond `elements` and `hidden`."""
        return next(shape for case, shape in self.shapes.items() if case.startswith(name))

    def rows(self, dtype):
        return torch.randn(self.elements // self.hidden, self.hidden, device=self.device).to(dtype)

    def flat(self, dtype):
        return torch.randn(self.elements, device=self.device).to(dtype)

    def empty(self, dtype):
        return torch.empty(self.elements, dtype=dtype, device=self.device)


class Twin:
    """`eager` and `compiled` each do the operation once and return what it wrote; `compiled` is
    what torch.compile is given, unless `never_compiled`. Operands live in the closures."""

    def __init__(self, eager, compiled=None, never_compiled=False):
        self.eager, self.compiled = eager, compiled or eager
        self.never_compiled = never_compiled

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


def adamw(setting, gradient_type, copy):
    p, m, v = (setting.flat(torch.float32) for _ in range(3))
    v.abs_()
    g, low = setting.flat(gradient_type), setting.empty(torch.bfloat16)
    step = torch.tensor(5.0, device=setting.device)

    def eager():
        torch._fused_adamw_([p], [g.float()], [m], [v], [], [step], lr=LR, beta1=BETA1, beta2=BETA2,
                            weight_decay=DECAY, eps=1e-8, amsgrad=False, maximize=False)
        return low.copy_(p) if copy else p

    def compiled():
        gradient = g.float()
        first = torch.lerp(m, gradient, 1 - BETA1)
        second = BETA2 * v + (1 - BETA2) * gradient * gradient
        size = LR / (1 - BETA1 ** 5)
        value = p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8)
        m.copy_(first)
        v.copy_(second)
        p.copy_(value)
        if copy:
            low.copy_(value)
            return low
        return p
    # In place: both advance the same state, so their outputs differ by a step and are not compared.
    result = Twin(eager, compiled)
    result.in_place = True
    return result


@twin("adamw_f32")
def adamw_f32(setting, _):
    return adamw(setting, torch.float32, copy=False)


@twin("adamw_f32_copy_bf16")
def adamw_f32_copy(setting, _):
    return adamw(setting, torch.float32, copy=True)


@twin("adamw_bf16_copy_bf16")
def adamw_bf16_copy(setting, _):
    return adamw(setting, torch.bfloat16, copy=True)


@twin("adamw_bf16_states")
def adamw_bf16_states(setting, _):
    """The moments in bf16, as torch's fused kernel has them of bf16 parameters alone: written out."""
    p, g = setting.flat(torch.float32), setting.flat(torch.float32)
    m, v = (setting.flat(torch.bfloat16).abs_() for _ in range(2))

    def step():
        first = torch.lerp(m.float(), g, 1 - BETA1)
        second = BETA2 * v.float() + (1 - BETA2) * g * g
        m.copy_(first)
        v.copy_(second)
        size = LR / (1 - BETA1 ** 5)
        p.copy_(p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8))
        return p
    result = Twin(step)
    result.in_place = True
    return result


@twin("adamw_stochastic")
def adamw_stochastic(setting, _):
    """bf16 moments, rounded up with the probability of what is cut off: as torchao writes it."""
    p, g = setting.flat(torch.float32), setting.flat(torch.float32)
    m, v = (setting.flat(torch.bfloat16).abs_() for _ in range(2))

    def rounded(x):
        noise = torch.randint_like(x, 0, 1 << 16, dtype=torch.int32)
        return ((x.view(torch.int32) + noise) & -(1 << 16)).view(torch.float32).to(torch.bfloat16)

    def step():
        first = torch.lerp(m.float(), g, 1 - BETA1)
        second = BETA2 * v.float() + (1 - BETA2) * g * g
        m.copy_(rounded(first))
        v.copy_(rounded(second))
        size = LR / (1 - BETA1 ** 5)
        p.copy_(p * (1 - LR * DECAY) - size * first / (second.sqrt() / (1 - BETA2 ** 5) ** 0.5 + 1e-8))
        return p
    result = Twin(step)
    result.in_place = True
    return result


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


def rms_operands(setting, dtype):
    x, weight = setting.rows(dtype), torch.rand(setting.hidden, device=setting.device).to(dtype) + 0.5
    return x, weight


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


@twin("rmsnorm_add_backward")
def rmsnorm_add_backward(setting, dtype):
    return rmsnorm_backward_of(setting, dtype, residual=True)


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


@twin("cross_entropy")
def cross_entropy(setting, dtype):
    """Losses and the gradient of their sum."""
    vocabulary = setting.shape("cross_entropy")["vocabulary"]
    x = torch.randn(setting.elements // vocabulary, vocabulary, device=setting.device).to(dtype)
    targets = torch.randint(0, vocabulary, (x.shape[0],), device=setting.device)
    columns = torch.arange(vocabulary, device=setting.device)
    x.requires_grad_()

    def eager():
        losses = F.cross_entropy(x, targets, reduction="none")
        return losses.detach(), torch.autograd.grad(losses.sum(), x)[0]

    def compiled():
        logits = x.detach().float()
        lse = torch.logsumexp(logits, -1, keepdim=True)
        losses = lse - logits.gather(1, targets[:, None])
        gradient = torch.exp(logits - lse) - (columns == targets[:, None]).float()
        return losses.squeeze(1).to(dtype), gradient.to(dtype)
    return Twin(eager, compiled)


@twin("dropout")
def dropout(setting, dtype):
    x = setting.flat(dtype)
    result = Twin(lambda: F.dropout(x, 0.1, training=True))
    result.random = True
    return result


@twin("embedding_backward")
def embedding_backward(setting, dtype):
    dy = setting.rows(dtype)
    ids = torch.randint(0, len(dy), (len(dy),), device=setting.device)

    def backward():
        return torch.ops.aten.embedding_dense_backward(dy, ids, len(dy), -1, False)
    # torch.compile makes an index_put of it that accumulates, and was 6.7 (fp32) and 9.3 times
    # (bf16) as slow as eager's, its fastest form. torch.compiler.disable changes nothing here:
    # torch.compile unwraps the function that it is given.
    return Twin(backward, never_compiled=True)


@twin("amax")
def amax(setting, dtype):
    x = setting.flat(dtype)
    return Twin(lambda: torch.linalg.vector_norm(x, float("inf")), lambda: x.abs().amax())


FP8 = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


def cast_to_fp8(name):
    largest = torch.finfo(FP8[name]).max

    def make(setting, dtype):
        x = setting.flat(dtype)
        return Twin(lambda: ((x.float() * 16).clamp(-largest, largest).to(FP8[name]), x.abs().amax()))
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

INT8_BLOCK = 256


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

HEAD_DIM, SEQUENCE = 128, 1024  # Of bench/kernels/rope_cases.cc.


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


def find(name):
    """(maker, dtype) of a case, or None: the whole name, else the name less its type."""
    if name in TWINS:
        return TWINS[name], None
    base, _, suffix = name.rpartition("_")
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}.get(suffix)
    return (TWINS[base], dtype) if base in TWINS and dtype else None


def flatten(outputs):
    return [t.float() for t in (outputs if isinstance(outputs, tuple) else (outputs,))]


def check_equal(name, eager, compiled):
    """The two peers do the same work: the largest relative distance of an output, and what of it
    is allowed."""
    limit = max(TOLERANCE[t.dtype] for t in (eager if isinstance(eager, tuple) else (eager,)))
    distances = []
    for index, (a, b) in enumerate(zip(flatten(eager), flatten(compiled))):
        distances.append(((a - b).norm() / a.norm().clamp_min(1e-30)).item())
        if not distances[-1] <= GROSS * limit:
            raise SystemExit(f"{name}: output {index} of torch.compile is {distances[-1]:.2g} off "
                             f"eager's, allowed: {limit}, and at most {GROSS} times that")
    return {"distance": max(distances), "allowed": limit}


class Ready:
    """The forms of one case, compiled, compared and warm."""

    evicting = None  # As large as dtrain's arena: what it writes leaves nothing in the caches.

    def __init__(self, name, setting):
        if Ready.evicting is None:
            Ready.evicting = torch.empty(ARENA_STREAMS * setting.elements)
        maker, dtype = find(name)
        self.twin = maker(setting, dtype)
        torch._dynamo.reset()
        self.forms = {"eager": self.twin.eager, "compile": self.twin.form_of_compile()}
        self.said = {"compiled": not self.twin.never_compiled}
        eager, compiled = self.forms["eager"](), self.forms["compile"]()
        if not (getattr(self.twin, "in_place", False) or getattr(self.twin, "random", False)):
            self.said.update(check_equal(name, eager, compiled))
        for form in self.forms.values():
            form()

    def seconds(self, kind):
        Ready.evicting.fill_(0.01)
        start = time.perf_counter()
        self.forms[kind]()
        return time.perf_counter() - start


def serve(setting):
    current, ready = None, None
    for line in sys.stdin:
        name, kind = line.split()
        if find(name) is None:
            print(json.dumps({"missing": f"bench/twins/kernels.py has no twin of {name}"}), flush=True)
            continue
        if name != current:
            ready = None  # Frees the operands before the next case makes its own.
            current, ready = name, Ready(name, setting)
        print(json.dumps({"s": ready.seconds(kind), **ready.said}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="{}", help="JSON: case -> what else it must know")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    serve(Setting(args.elements, args.hidden, json.loads(args.shapes)))


if __name__ == "__main__":
    main()
