"""The common part of the twins: arguments, configuration, batches, schedule, and the facts they write.

A twin is run by torchrun with dtrain's configuration file and trains the same model on the same
batches; what differs is a `Peer`, one library's way to make a step of them.
"""
import argparse
import contextlib
import datetime
import json
import math
import os
import re
import sys
import time

import torch
import torch.distributed as dist

from cuda_libraries import mapped_cuda_libraries
from gpt_model import DEFAULTS, Gpt
from tokens import TokenSampler


class Peer:
    """`micro_batch` adds a micro-batch's gradients, `update` makes a step of them."""

    optimizer = None  # Its groups have the learning rate.

    def micro_batch(self, tokens, targets, last):
        """The loss over the number of micro-batches in a step, detached."""
        raise NotImplementedError

    def update(self):
        raise NotImplementedError


class Setting:
    """The values in force."""

    def __init__(self, config, world, compile_model=False):
        self.config, self.compile = config, compile_model
        self.global_batch = config["train_batch_size"]
        self.micro = config["train_micro_batch_size_per_gpu"]
        self.accumulation = self.global_batch // (self.micro * world)
        self.sequence = config["data"]["sequence_length"]
        self.clip = config.get("gradient_clipping", 1.0)
        self.bf16 = config.get("bf16", {}).get("enabled", False)

    def adamw(self, parameters):
        """Fused: the fastest that torch has for CPU tensors, and DeepSpeed's own is slower."""
        p = self.config["optimizer"]["params"]
        return torch.optim.AdamW(parameters, lr=p["lr"], betas=p.get("betas", (0.9, 0.999)),
                                 eps=p.get("eps", 1e-8), weight_decay=p.get("weight_decay", 0.0),
                                 fused=True)


def argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--weights", help="safetensors file to start from")
    parser.add_argument("--facts", required=True, help="JSON lines: what happened and when")
    parser.add_argument("--profile", action="store_true", help="GEMM + attention share of a step")
    parser.add_argument("--compile", action="store_true", help="torch.compile, where the peer has it")
    parser.add_argument("--timeout", type=float, help="seconds that a collective may take; left out: the peer's own")
    return parser


def read_config(path, overrides):
    with open(path, encoding="utf-8") as file:
        config = json.loads(re.sub(r"^\s*//.*$", "", file.read(), flags=re.M))
    for item in overrides:
        key, value = item.split("=", 1)
        target = config
        *folders, last = key.split(".")
        for folder in folders:
            target = target.setdefault(folder, {})
        target[last] = json.loads(value) if value[:1] in '0123456789-[{"tf' else value
    return config


def learning_rate(config, step):
    """dtrain's WarmupCosineLR with linear warm-up, or a constant."""
    base = config["optimizer"]["params"]["lr"]
    if "scheduler" not in config:
        return base
    assert config["scheduler"]["type"] == "WarmupCosineLR"
    p = config["scheduler"]["params"]
    warmup, total = max(2, p["warmup_num_steps"]), p["total_num_steps"]
    if step == 0:
        return 0.0  # The scheduler steps after the optimizer and starts from nothing.
    n = step - 1
    if n < warmup:
        r0 = p.get("warmup_min_ratio", 0.0)
        g = n / warmup if p.get("warmup_type") == "linear" else math.log(n + 1) / math.log(warmup)
        return base * (r0 + g * (1 - r0))
    progress = min(1.0, (n - warmup + 1) / max(1, total - warmup))
    low = p.get("cos_min_ratio", 1e-4)
    return base * (low + (1 - low) * (1 + math.cos(math.pi * progress)) / 2)


def gemm_attention_share(profiler, seconds):
    """The share of GEMM and attention in `seconds` of steps. Gaps between operations and waits for
    peers belong to the rest. Compiled code announces its products by names of its own."""
    pattern = r"aten::(mm|addmm|bmm)$|scaled_dot_product|flash_attention|extern_kernels"
    return 1e-6 / seconds * sum(event.self_cpu_time_total for event in profiler.key_averages()
                                if re.search(pattern, event.key))


class Facts:
    """Rank 0's JSON lines; the other ranks write none."""

    def __init__(self, path, rank):
        self.file = open(path, "a", encoding="utf-8") if rank == 0 else None

    def say(self, **fact):
        if self.file:
            self.file.write(json.dumps({"ts": time.time(), **fact}) + "\n")
            self.file.flush()


def start_model(args, setting):
    torch.manual_seed(setting.config["seed"])
    model = Gpt({**DEFAULTS, **setting.config.get("model", {})})
    if args.weights:
        from safetensors.torch import load_file
        model.load_state_dict(load_file(args.weights), strict=True)
    return model


def train(args, setting, peer, facts):
    rank, world = dist.get_rank(), dist.get_world_size()
    config = setting.config
    sampler = TokenSampler(config["data"]["train"][0], setting.sequence, setting.global_batch,
                           config["seed"])
    profiler, profiled_s = None, 0.0
    for step in range(config["train_steps"]):
        if args.profile and step == config["train_steps"] - 3 and rank == 0:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.__enter__()
        start = time.perf_counter()
        for group in peer.optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        total = 0.0
        for g in range(setting.accumulation):
            batch = torch.from_numpy(sampler.micro_batch(step, g, rank, world, setting.micro))
            tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
            if step == 0 and g == 0:
                facts.say(kind="first_forward")
            total += peer.micro_batch(tokens, targets, last=g + 1 == setting.accumulation)
        peer.update()
        mean = total.clone()
        dist.all_reduce(mean)
        seconds = time.perf_counter() - start
        profiled_s += seconds if profiler else 0.0
        facts.say(kind="step", step=step + 1, loss=mean.item() / world,
                  tokens_per_s=setting.global_batch * setting.sequence / seconds, seconds=seconds, ranks=world)
    facts.say(kind="libraries", cuda=mapped_cuda_libraries(), torch=torch.__version__)
    if profiler is not None:
        profiler.__exit__(None, None, None)
        facts.say(kind="profile", gemm_attention_share=gemm_attention_share(profiler,
                                                                                 profiled_s))


@contextlib.contextmanager
def process_group(timeout_s=None):
    """The program's last act: at its end it leaves at once, since the peers' own threads, at times still
    running when the interpreter unloads them, end a process that has done its work with SIGABRT."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", timeout=None if timeout_s is None else datetime.timedelta(seconds=timeout_s))
    yield
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def run(args, make_peer, overrides, facts):
    """Trains a new model; `make_peer(setting, model)` gives the Peer."""
    setting = Setting(read_config(args.config, overrides), dist.get_world_size(), args.compile)
    peer = make_peer(setting, start_model(args, setting))
    train(args, setting, peer, Facts(facts, dist.get_rank()))


def main(make_peer):
    args = argument_parser().parse_args()
    with process_group(args.timeout):
        run(args, make_peer, args.set, args.facts)
