"""A Transformer on sequences of its own. transformer.cc is the same program with dtrain."""
import itertools
import json
import sys

import torch
from accelerate import Accelerator
from decoder import Decoder
from safetensors.torch import load_file


class Counting(torch.utils.data.Dataset):
    """Sequences that count up by a step of their own: the inputs, and the token behind each."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        row = (torch.arange(17) * (index % 5 + 1) + index * 3) % 32
        return row[:16], row[1:]


def train(config, weights):
    accelerator = Accelerator(cpu=True)
    net = Decoder()
    if weights:
        net.load_state_dict(load_file(f"{weights}/model.safetensors"))
    optimizer = torch.optim.AdamW(net.parameters(), **config["optimizer"]["params"])
    data = torch.utils.data.DataLoader(Counting(), batch_size=config["train_batch_size"])
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    batches = itertools.chain.from_iterable(itertools.repeat(data))
    for step, (tokens, targets) in zip(range(config["train_steps"]), batches):
        loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(json.dumps({"step": step + 1, "loss": accelerator.reduce(loss, "mean").item()}))
    accelerator.save_state("checkpoint")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        train(json.load(file), weights=sys.argv[2] if len(sys.argv) > 2 else None)
