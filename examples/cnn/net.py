"""The network of net.h."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.head = nn.Linear(16 * 4 * 4, 4)

    def forward(self, images):
        half = torch.max_pool2d(torch.relu(self.first(images)), 2)
        return self.head(torch.max_pool2d(torch.relu(self.second(half)), 2).flatten(1))
