"""./dev bench optimizer: dtrain's AdamW beside torch.optim.AdamW(fused=True) and DeepSpeedCPUAdam.

One process, one set of buffers and threads. A round is: a probe that streams the minimal bytes,
each contender once in an order that turns with the round, the probe again; ratios are those of one
round, goals are medians over rounds. Rounds whose probes differ by more than a tenth do not count
and are taken again, so that as many count as were asked for; a machine on which that takes more
than three times as many rounds is too busy to measure.
Gradients are put back before each call, so that nobody works on what another left.

Two jobs. adamw: fp32, 28 bytes a parameter. mixed: unscale, norm, clip, finite check, AdamW on the
fp32 master, bf16 copy, 34 bytes a parameter with the norm as a pass of its own; its peer is the
better of two sequences of torch calls, found in the same rounds.
"""
import argparse
import ctypes
import math
import os
import statistics
import sys
import time

from report import NO_BOUND, begin, print_goals, write_results
from rounds import rotated, spread

LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.95), 1e-8, 0.1
UNSCALE, NORM_MAX = 1 / 1024, 1.0
DRIFT_MAX = 0.1
TRIES = 3  # At most this many times the number of rounds that should count are run.
# torch sums the squares of one large tensor in fp32 and comes out 1.1 % too small at 100M elements.
# The first step has the sign's length, but for gradients near eps, where the clip shows.
TOLERANCE = {"adamw": 1e-6, "mixed": 1e-2}
GRAIN = 4096  # Streams have a multiple of it: the norm's block, and the probe's piece.
# A layer of the 100M GPT of `./dev bench zero`, for buffers cut as a model is.
HIDDEN, INTERMEDIATE = 768, 2048
LAYER = [HIDDEN * HIDDEN] * 4 + [HIDDEN * INTERMEDIATE] * 3 + [HIDDEN] * 2


class Settings(ctypes.Structure):
    """AdamWSettings of bench/optimizer_kernels.cc."""

    _fields_ = [("lr", ctypes.c_double), ("beta1", ctypes.c_double), ("beta2", ctypes.c_double),
                ("eps", ctypes.c_double), ("weight_decay", ctypes.c_double),
                ("step", ctypes.c_int64)]


def load_library(folder):
    """Loads dtrain's kernels. To be called after torch is loaded, so that they share its libgomp."""
    library = ctypes.CDLL(os.path.join(folder, "libbench_optimizer.so"))
    library.dt_variant.restype = ctypes.c_char_p
    library.dt_norm_blocks.restype = ctypes.c_int64
    library.dt_mixed_update.restype = ctypes.c_double
    library.dt_probe.restype = ctypes.c_float
    return library


class Buffers:
    """p, m, v, g in fp32 and the bf16 copy, as streams of one arena; the gradient's original."""

    def __init__(self, torch, count):
        self.torch, self.count = torch, count
        self.stride = 4 * count + 8192  # No power of two, so that streams use different cache sets.
        self.arena = torch.zeros(5 * self.stride, dtype=torch.uint8)
        self.p, self.m, self.v, self.g = (self._stream(i, torch.float32) for i in range(4))
        self.copy = self._stream(4, torch.bfloat16)
        generator = torch.Generator().manual_seed(1)
        self.p.normal_(0, 0.02, generator=generator)
        self.first_gradient = torch.empty(count).normal_(0, 1, generator=generator)
        self.refill()

    def _stream(self, index, dtype):
        size = self.torch.empty((), dtype=dtype).element_size()
        begin = index * self.stride
        return self.arena[begin:begin + size * self.count].view(dtype)

    def refill(self):
        self.g.copy_(self.first_gradient)

    def views(self, sizes):
        """[(p, g, m, v)] of consecutive parameters."""
        streams = [stream.split(sizes) for stream in (self.p, self.g, self.m, self.v)]
        return list(zip(*streams))


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


class Ours:
    def __init__(self, library, buffers):
        self.library, self.b = library, buffers
        self.settings = Settings(LR, *BETAS, EPS, DECAY, 0)
        self.scratch = buffers.torch.empty(library.dt_norm_blocks(ctypes.c_int64(buffers.count)),
                                           dtype=buffers.torch.float64)

    def adamw(self):
        b, self.settings.step = self.b, self.settings.step + 1
        self.library.dt_adamw(ctypes.c_int64(b.count), pointer(b.p), pointer(b.g), pointer(b.m),
                              pointer(b.v), ctypes.byref(self.settings))

    def mixed(self):
        b, self.settings.step = self.b, self.settings.step + 1
        norm = self.library.dt_mixed_update(
            ctypes.c_int64(b.count), pointer(b.p), pointer(b.g), pointer(b.m), pointer(b.v),
            pointer(b.copy), pointer(self.scratch), ctypes.c_double(UNSCALE),
            ctypes.c_double(NORM_MAX), ctypes.byref(self.settings))
        assert math.isfinite(norm)


def with_states(optimizer, views, step):
    """The optimizer of these parameters works on the shared moments."""
    for parameter, (_, _, m, v) in zip(optimizer.param_groups[0]["params"], views):
        optimizer.state[parameter] = {"step": step(), "exp_avg": m, "exp_avg_sq": v}
    return optimizer


def parameters_of(torch, views):
    parameters = []
    for p, g, _, _ in views:
        parameters.append(torch.nn.Parameter(p))
        parameters[-1].grad = g
    return parameters


class Torch:
    """torch.optim.AdamW(fused=True), alone and with the rest of a mixed-precision update."""

    def __init__(self, buffers, sizes):
        self.torch, self.b = buffers.torch, buffers
        views = buffers.views(sizes)
        self.parameters = parameters_of(self.torch, views)
        self.optimizer = with_states(
            self.torch.optim.AdamW(self.parameters, lr=LR, betas=BETAS, eps=EPS,
                                   weight_decay=DECAY, fused=True),
            views, lambda: self.torch.zeros(()))
        self.copies = buffers.copy.split(sizes)

    def adamw(self):
        self.optimizer.step()

    def _copy_out(self):
        self.torch._foreach_copy_(list(self.copies), [p.data for p in self.parameters])

    def mixed_calls(self):
        """The calls of a usual training loop: unscale, clip_grad_norm_, step, copy."""
        grads = [p.grad for p in self.parameters]
        self.torch._foreach_mul_(grads, UNSCALE)
        norm = self.torch.nn.utils.clip_grad_norm_(self.parameters, NORM_MAX, foreach=True)
        if self.torch.isfinite(norm):
            self.optimizer.step()
            self._copy_out()

    def mixed_scaled(self):
        """Fewest passes: the norm, then unscale and clip inside the fused step by grad_scale."""
        grads = [p.grad for p in self.parameters]
        norms = self.torch._foreach_norm(grads)
        norm = self.torch.linalg.vector_norm(self.torch.stack(norms)) * UNSCALE
        factor = self.torch.clamp(NORM_MAX / (norm + 1e-6), max=1.0) * UNSCALE
        self.optimizer.grad_scale = 1.0 / factor
        self.optimizer.found_inf = (~self.torch.isfinite(norm)).float()
        self.optimizer.step()
        self.optimizer.grad_scale = self.optimizer.found_inf = None
        self._copy_out()


def deepspeed_adam(buffers, sizes):
    """Compiles on first use (minutes), outside all timing. None when it is not installed."""
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam
    except ImportError as error:
        print(f"DeepSpeedCPUAdam is not here ({error}): ./dev deps test", flush=True)
        return None
    views = buffers.views(sizes)
    return with_states(
        DeepSpeedCPUAdam(parameters_of(buffers.torch, views), lr=LR, betas=BETAS, eps=EPS,
                         weight_decay=DECAY, adamw_mode=True),
        views, lambda: 0)


class Probe:
    """Seconds to stream the minimal bytes of a job, with the faster kind of stores."""

    PASSES = {"adamw": [(4, 3, 0, 3)], "mixed": [(1, 0, 0, 0), (4, 3, 1, 3)]}

    def __init__(self, library, buffers, job):
        self.library, self.b, self.passes = library, buffers, self.PASSES[job]
        self.arena = buffers.torch.zeros_like(buffers.arena)  # It writes: not on anyone's states.
        self.bytes = sum(4 * (reads + writes) + 2 * narrow
                         for reads, writes, narrow, _ in self.passes) * buffers.count
        times = {kind: min(self._seconds(kind) for _ in range(3)) for kind in (0, 1)}
        self.kind = min(times, key=times.get)

    def _seconds(self, non_temporal):
        start = time.perf_counter()
        for reads, writes, narrow, in_place in self.passes:
            self.library.dt_probe(ctypes.c_int64(self.b.count // 16 * 16), pointer(self.arena),
                                  ctypes.c_int64(self.b.stride), reads, writes, narrow, in_place,
                                  non_temporal)
        return time.perf_counter() - start

    def seconds(self):
        return self._seconds(self.kind)


def seconds_of(buffers, call):
    buffers.refill()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def check_equal(buffers, calls, tolerance):
    """All contenders take the same step from the same state, or the times mean nothing.

    tolerance: of the step's length, the learning rate."""
    first, reference = buffers.p.clone(), None
    for name, (call, reset) in calls.items():
        buffers.p.copy_(first)
        buffers.m.zero_()
        buffers.v.zero_()
        buffers.refill()
        reset()
        call()
        reference = buffers.p.clone() if reference is None else reference
        worst = (buffers.p - reference).abs().max().item()
        if not worst <= tolerance * LR + 2 ** -23 * 0.2:  # An ulp of the largest weight.
            sys.exit(f"bench: {name} differs from {next(iter(calls))} by {worst:g} after one step")
        reset()
    buffers.p.copy_(first)


def measure(buffers, probe, calls, rounds, label):
    """[{name: seconds, "probe": seconds}] of `rounds` rounds that count; and how many did not."""
    for call in calls.values():
        seconds_of(buffers, call)
    counted, discarded = [], 0
    while len(counted) < rounds and len(counted) + discarded < TRIES * rounds:
        before = probe.seconds()
        order = rotated(calls, len(counted) + discarded)
        row = {name: seconds_of(buffers, calls[name]) for name in order}
        after = probe.seconds()
        if abs(before - after) > DRIFT_MAX * min(before, after):
            discarded += 1
            continue
        counted.append({**row, "probe": (before + after) / 2})
    print(f"{label}: {len(counted)} rounds, {discarded} discarded, load {os.getloadavg()[0]:.1f}",
          flush=True)
    if len(counted) < rounds:
        sys.exit(f"bench: {label}: the probe moved by more than a tenth in {discarded} of "
                 f"{len(counted) + discarded} rounds, so only {len(counted)} of {rounds} count: the machine "
                 "is too busy to measure; end what else runs")
    return counted, discarded


def times_faster(rounds, peer):
    """How many times as fast as `peer` dtrain is, with the spread."""
    return spread([row[peer] / row["dtrain"] for row in rounds])


def print_table(job, rounds, probe, count):
    print(f"\n{job:18}{'ms':>9}{'Gparam/s':>10}{'GB/s':>8}{'of probe':>10}{'dtrain is':>12}")
    for name in rounds[0]:
        seconds = statistics.median(row[name] for row in rounds)
        fraction = statistics.median(row["probe"] / row[name] for row in rounds)
        faster = "" if name in ("dtrain", "probe") else f"{times_faster(rounds, name)['median']:10.3f}x"
        print(f"{name:18}{seconds * 1e3:9.1f}{count / seconds * 1e-9:10.3f}"
              f"{probe.bytes / seconds * 1e-9:8.1f}{fraction:10.3f}{faster:>12}")


def cut(name, count):
    if name == "flat":
        return [count]
    sizes = []
    while sum(sizes) + sum(LAYER) <= count:
        sizes += LAYER
    return sizes + ([count - sum(sizes)] if sum(sizes) < count else [])


def run(torch, args, library):
    import importlib.metadata
    buffers = Buffers(torch, args.parameters // GRAIN * GRAIN)
    results = {}
    ours = Ours(library, buffers)
    for layout in args.layouts:
        sizes = cut(layout, buffers.count)
        peer = Torch(buffers, sizes)
        deepspeed = deepspeed_adam(buffers, sizes) if "adamw" in args.jobs else None

        def reset():
            ours.settings.step = 0
            for state in peer.optimizer.state.values():
                state["step"].zero_()
            for state in deepspeed.state.values() if deepspeed else ():
                state["step"] = 0

        jobs = {"adamw": {"dtrain": ours.adamw, "torch-fused": peer.adamw},
                "mixed": {"dtrain": ours.mixed, "torch-calls": peer.mixed_calls,
                          "torch-scaled": peer.mixed_scaled}}
        if deepspeed:
            jobs["adamw"]["DeepSpeedCPUAdam"] = deepspeed.step
        for job in args.jobs:
            check_equal(buffers, {name: (call, reset) for name, call in jobs[job].items()},
                        TOLERANCE[job])
            probe = Probe(library, buffers, job)
            rounds, discarded = measure(buffers, probe, jobs[job], args.rounds,
                                        f"{job} {layout} ({len(sizes)} tensors)")
            print_table(f"{job} {layout}", rounds, probe, buffers.count)
            results[f"{job}.{layout}"] = {
                "tensors": len(sizes), "rounds_counted": len(rounds), "discarded": discarded,
                "rounds": rounds,
                "faster_than": {name: times_faster(rounds, name) for name in rounds[0]
                                if name not in ("dtrain", "probe")}}
    versions = {"torch": torch.__version__,
                "deepspeed": importlib.metadata.version("deepspeed") if deepspeed else None}
    write_results(args.json, "optimizer", parameters=buffers.count, threads=args.threads,
                  simd=library.dt_variant().decode(), versions=versions, results=results,
                  goals=print_goals(all_goals({"results": results})))


def all_goals(results):
    """The goals of a results file."""
    return [goal for name, found in results["results"].items()
            for goal in goals_of(*name.split("."), found["rounds"])]


def goals_of(job, layout, rounds):
    name = f"optimizer.{job}.{layout}"
    if job == "adamw":
        goals = [(f"{name}_vs_torch_fused", times_faster(rounds, "torch-fused")["median"], ">=",
                  0.97)]
        if "DeepSpeedCPUAdam" in rounds[0]:
            goals.append((f"{name}_vs_deepspeed",
                          times_faster(rounds, "DeepSpeedCPUAdam")["median"], ">=", 2))
        return goals
    best = min(("torch-calls", "torch-scaled"), key=lambda peer: statistics.median(
        row[peer] for row in rounds))
    over_probe = statistics.median(row["dtrain"] / row["probe"] for row in rounds)
    return [(f"{name}_vs_best_torch_sequence", times_faster(rounds, best)["median"], ">=", 1.3),
            (f"{name}_time_of_probe", over_probe, "<=", 1.05, *([NO_BOUND] if over_probe < 1 else []))]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--parameters", type=int, default=100_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="that count")
    parser.add_argument("--jobs", nargs="+", default=["adamw", "mixed"],
                        choices=["adamw", "mixed"])
    parser.add_argument("--layouts", nargs="+", default=["flat", "model"],
                        choices=["flat", "model"],
                        help="one tensor, or cut as the 100M GPT of ./dev bench zero is")
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)  # Read when torch is loaded.
    # DeepSpeed compiles its operation beside the build, for the CPU alone.
    os.environ.setdefault("TORCH_EXTENSIONS_DIR",
                          os.path.join(os.path.abspath(args.bin), "..", "torch_extensions"))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    import torch
    torch.set_num_threads(args.threads)
    args.json = begin("optimizer", args.json)
    with torch.no_grad():
        run(torch, args, load_library(args.bin))


if __name__ == "__main__":
    main()
