"""An image classifier on a dataset of its own. cnn.cc is the same program with dtrain."""
import itertools
import json
import sys

import torch
from accelerate import Accelerator
from net import Net
from safetensors.torch import load_file


class Stripes(torch.utils.data.Dataset):
    """The class says how wide the stripes are, and whether they lie or stand."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        label = index % 4
        wave = ((torch.arange(16) + index // 4) * (label // 2 + 1) % 8) / 8.0
        image = wave.view(1, 16) if label % 2 == 0 else wave.view(16, 1)
        return image.expand(1, 16, 16), torch.tensor(label)


def train(config, weights):
    accelerator = Accelerator(cpu=True)
    net = Net()
    if weights:
        net.load_state_dict(load_file(f"{weights}/model.safetensors"))
    optimizer = torch.optim.AdamW(net.parameters(), **config["optimizer"]["params"])
    data = torch.utils.data.DataLoader(Stripes(), batch_size=config["train_batch_size"])
    net, optimizer, data = accelerator.prepare(net, optimizer, data)
    batches = itertools.chain.from_iterable(itertools.repeat(data))
    for step, (images, labels) in zip(range(config["train_steps"]), batches):
        loss = torch.nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(json.dumps({"step": step + 1, "loss": accelerator.reduce(loss, "mean").item()}))
    accelerator.save_state("checkpoint")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        train(json.load(file), weights=sys.argv[2] if len(sys.argv) > 2 else None)
