"""The network of decoder.h."""
import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 32)
        self.places = nn.Embedding(16, 32)
        self.norm1 = nn.LayerNorm(32)
        self.attention = nn.Linear(32, 96)
        self.merge = nn.Linear(32, 32)
        self.norm2 = nn.LayerNorm(32)
        self.up = nn.Linear(32, 64)
        self.down = nn.Linear(64, 32)
        self.head = nn.Linear(32, 32)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        heads = self.attention(self.norm1(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.down(nn.functional.gelu(self.up(self.norm2(x)))))
