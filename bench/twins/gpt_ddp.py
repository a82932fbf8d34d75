"""The example's GPT under torch DistributedDataParallel: the peer of `dtrain-gpt`.

Run by torchrun with the same configuration file; same shapes, batches, optimizer and schedule, in the
fastest eager formulation known (separate projections, fused AdamW, gradients as bucket views; no chunk,
no cat). With --weights it starts from dtrain's weights, so that losses can be compared.
"""
import argparse
import json
import math
import os
import re
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tokens import TokenSampler


class RmsNorm(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x, cos, sin):
    """Half-split rotary positions; x [batch, sequence, heads, head_dim]. torch.stack of two halves is
    the one copy that eager needs."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2)


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads = o["num_attention_heads"], o["num_key_value_heads"]
        hidden = o["hidden_size"]
        self.head_dim = hidden // self.heads
        self.q_proj = nn.Linear(hidden, self.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head_dim, hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, sequence, _ = x.shape
        q = rotate(self.q_proj(x).view(batch, sequence, self.heads, self.head_dim), cos, sin)
        k = rotate(self.k_proj(x).view(batch, sequence, self.kv_heads, self.head_dim), cos, sin)
        v = self.v_proj(x).view(batch, sequence, self.kv_heads, self.head_dim)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
            enable_gqa=self.kv_heads != self.heads)
        return self.o_proj(y.transpose(1, 2).reshape(batch, sequence, -1))


class Mlp(nn.Module):
    def __init__(self, o):
        super().__init__()
        hidden, inner = o["hidden_size"], o["intermediate_size"]
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.input_layernorm = RmsNorm(o["hidden_size"], o["rms_norm_eps"])
        self.self_attn = Attention(o)
        self.post_attention_layernorm = RmsNorm(o["hidden_size"], o["rms_norm_eps"])
        self.mlp = Mlp(o)

    def forward(self, x, cos, sin):
        h = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return h + self.mlp(self.post_attention_layernorm(h))


class Backbone(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.embed_tokens = nn.Embedding(o["vocab_size"], o["hidden_size"])
        self.layers = nn.ModuleList(Layer(o) for _ in range(o["num_hidden_layers"]))
        self.norm = RmsNorm(o["hidden_size"], o["rms_norm_eps"])
        half = o["hidden_size"] // o["num_attention_heads"] // 2
        frequency = o["rope_theta"] ** (torch.arange(half, dtype=torch.float64) / -half)
        angle = torch.outer(torch.arange(o["max_position_embeddings"], dtype=torch.float64), frequency)
        self.register_buffer("cos", angle.cos().float().unsqueeze(1), persistent=False)
        self.register_buffer("sin", angle.sin().float().unsqueeze(1), persistent=False)

    def forward(self, tokens):
        h = self.embed_tokens(tokens)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.norm(h)


class Gpt(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.model = Backbone(o)
        self.tied = o["tie_word_embeddings"]
        if not self.tied:
            self.lm_head = nn.Linear(o["hidden_size"], o["vocab_size"], bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = "o_proj" in name or "down_proj" in name
                nn.init.normal_(p, std=0.02 / (math.sqrt(2 * o["num_hidden_layers"]) if residual else 1))

    def forward(self, tokens, targets):
        h = self.model(tokens)
        logits = F.linear(h, self.model.embed_tokens.weight) if self.tied else self.lm_head(h)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


DEFAULTS = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}


def read_config(path, overrides):
    text = re.sub(r"^\s*//.*$", "", open(path, encoding="utf-8").read(), flags=re.M)
    config = json.loads(text)
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--weights", help="safetensors file to start from")
    parser.add_argument("--facts", required=True, help="JSON lines: what happened and when")
    parser.add_argument("--profile", action="store_true", help="GEMM + attention share of a step")
    args = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    config = read_config(args.config, args.set)
    options = {**DEFAULTS, **config.get("model", {})}
    global_batch = config["train_batch_size"]
    micro = config["train_micro_batch_size_per_gpu"]
    accumulation = global_batch // (micro * world)
    sequence = config["data"]["sequence_length"]
    torch.manual_seed(config["seed"])
    model = Gpt(options)
    if args.weights:
        from safetensors.torch import load_file
        model.load_state_dict(load_file(args.weights), strict=True)
    ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    p = config["optimizer"]["params"]
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=p["lr"], betas=p.get("betas", (0.9, 0.999)),
                                  eps=p.get("eps", 1e-8), weight_decay=p.get("weight_decay", 0.0),
                                  fused=True)
    sampler = TokenSampler(config["data"]["train"][0], sequence, global_batch, config["seed"])
    facts = open(args.facts, "a", encoding="utf-8") if rank == 0 else None

    def say(**fact):
        if facts:
            facts.write(json.dumps({"ts": time.time(), **fact}) + "\n")
            facts.flush()

    clip = config.get("gradient_clipping", 1.0)
    profiler = None
    for step in range(config["train_steps"]):
        if args.profile and step == config["train_steps"] - 3 and rank == 0:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.__enter__()
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        total = 0.0
        for g in range(accumulation):
            batch = torch.from_numpy(sampler.micro_batch(step, g, rank, world, micro))
            tokens, targets = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
            if step == 0 and g == 0:
                say(kind="first_forward")
            ddp.require_backward_grad_sync = g + 1 == accumulation
            loss = ddp(tokens, targets) / accumulation
            loss.backward()
            total += loss.detach()
        if clip > 0:
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = total.clone()
        dist.all_reduce(mean)
        seconds = time.perf_counter() - start
        say(kind="step", step=step + 1, loss=mean.item() / world,
            tokens_per_s=global_batch * sequence / seconds, seconds=seconds)
    if profiler is not None:
        profiler.__exit__(None, None, None)
        total = share = 0.0
        for event in profiler.key_averages():
            total += event.self_cpu_time_total
            if re.search(r"aten::(mm|addmm|bmm)$|scaled_dot_product|flash_attention", event.key):
                share += event.self_cpu_time_total
        say(kind="profile", gemm_attention_share=share / total)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
