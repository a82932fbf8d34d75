"""The example's GPT under torch DistributedDataParallel: the peer of `dtrain-gpt`.

It uses DDP's fastest form: gradients as bucket views, fused AdamW, no reduction before the last
micro-batch; a single rank trains the plain module. --compile compiles it (around DDP, as torch
documents). With --weights it starts from dtrain's weights, so that losses can be compared. With
bf16.enabled it trains under autocast, its way to keep fp32 weights.
"""
import contextlib

import torch
import torch.distributed as dist
from torch import nn

import twin


class Ddp(twin.Peer):
    def __init__(self, setting, model):
        self.setting = setting
        self.ddp = None
        if dist.get_world_size() > 1:
            self.ddp = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.module = self.ddp or model
        self.optimizer = setting.adamw(self.module.parameters())
        if setting.compile:
            self.module = torch.compile(self.module, dynamic=False)

    def micro_batch(self, tokens, targets, last):
        with contextlib.nullcontext() if last or self.ddp is None else self.ddp.no_sync():
            with torch.autocast("cpu", torch.bfloat16, enabled=self.setting.bf16):
                loss = self.module(tokens, targets) / self.setting.accumulation
            loss.backward()
        return loss.detach()

    def update(self):
        if self.setting.clip > 0:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.setting.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


make_peer = Ddp

if __name__ == "__main__":
    twin.main(make_peer)
