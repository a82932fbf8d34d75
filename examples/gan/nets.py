"""The networks of nets.h."""
import torch
from torch import nn


class Mlp(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.hidden = nn.Linear(inputs, 32)
        self.output = nn.Linear(32, outputs)

    def forward(self, x):
        return self.output(torch.nn.functional.leaky_relu(self.hidden(x), 0.2))
