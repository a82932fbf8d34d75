"""The example's GPT in Python, which every twin trains.

Same shapes and names as `dtrain-gpt`'s, in the fastest eager formulation known: separate
projections, no chunk, no cat.
"""
import math

import torch
from torch import nn
from torch.nn import functional as F


class RmsNorm(nn.Module):
    def __init__(self, hidden, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(hidden)), eps

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x, cos, sin):
    """Half-split rotary positions; x [batch, sequence, heads, head_dim]. torch.stack of two halves is
    the one copy that eager needs. The result has x's type, whatever type the angles have."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2).to(x.dtype)


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
        # The loss is in fp32: in bf16 it would have eight bits.
        return F.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.reshape(-1))


DEFAULTS = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 6,
    "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 256,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
}
