"""A GAN: two optimizers with settings of their own. gan.cc is the same with dtrain."""
import itertools
import json
import sys

import torch
from accelerate import Accelerator
from nets import Mlp
from safetensors.torch import load_file
from torch.nn.functional import softplus


class Circle(torch.utils.data.Dataset):
    """Points of a circle, and the noise that stands beside each."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        angle = torch.tensor([index * 0.1, index * 0.1 + 1.5707963267948966], dtype=torch.float64)
        noise = torch.tensor([index * 0.7, index * 1.1, index * 1.3, index * 1.9], dtype=torch.float64)
        return angle.sin().float(), noise.sin().float()


def optimizer_of(net, config, name):
    settings = {**config["optimizer"]["params"], **config["engines"][name]}
    return torch.optim.AdamW(net.parameters(), **settings)


def train(config, weights):
    accelerator = Accelerator(cpu=True)
    generator, discriminator = Mlp(4, 2), Mlp(2, 1)
    if weights:
        generator.load_state_dict(load_file(f"{weights}/generator/model.safetensors"))
        discriminator.load_state_dict(load_file(f"{weights}/discriminator/model.safetensors"))
    g_optimizer = optimizer_of(generator, config, "generator")
    d_optimizer = optimizer_of(discriminator, config, "discriminator")
    data = torch.utils.data.DataLoader(Circle(), batch_size=config["train_batch_size"])
    generator, discriminator, g_optimizer, d_optimizer, data = accelerator.prepare(
        generator, discriminator, g_optimizer, d_optimizer, data)
    batches = itertools.chain.from_iterable(itertools.repeat(data))
    for step in range(config["train_steps"]):
        points, noise = next(batches)
        made = generator(noise).detach()
        d_loss = (softplus(-discriminator(points)) + softplus(discriminator(made))).mean()
        d_optimizer.zero_grad()
        accelerator.backward(d_loss)
        d_optimizer.step()
        points, noise = next(batches)
        g_loss = softplus(-discriminator(generator(noise))).mean()
        g_optimizer.zero_grad()
        accelerator.backward(g_loss)
        g_optimizer.step()
        accelerator.print(json.dumps({"step": step + 1, "loss": accelerator.reduce(g_loss, "mean").item(),
                                      "discriminator_loss": accelerator.reduce(d_loss, "mean").item()}))
    accelerator.save_state("checkpoint")


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as file:
        train(json.load(file), weights=sys.argv[2] if len(sys.argv) > 2 else None)
