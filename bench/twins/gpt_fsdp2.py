"""The example's GPT under FSDP2 (`torch.distributed.fsdp.fully_shard`), layer by layer.

The configuration's ZeRO stage says whether weights are freed after forward and gathered again in
backward (3) or stay until the step's end (2); FSDP2 has no stage 1. With bf16.enabled weights are
gathered in bf16, gradients reduced in fp32.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import twin


class Fsdp2(twin.Peer):
    def __init__(self, setting, model):
        self.setting, self.module = setting, model
        stage = setting.config["zero_optimization"]["stage"]
        if stage not in (2, 3):
            raise SystemExit(f"gpt_fsdp2: zero_optimization.stage {stage}, allowed: 2, 3")
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        precision = MixedPrecisionPolicy()
        if setting.bf16:
            precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                             reduce_dtype=torch.float32)
        for module in (*model.model.layers, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=stage == 3, mp_policy=precision)
        self.optimizer = setting.adamw(model.parameters())

    def micro_batch(self, tokens, targets, last):
        loss = self.module(tokens, targets) / self.setting.accumulation
        loss.backward()  # Reduces every time: a whole gradient never stays.
        return loss.detach()

    def update(self):
        if self.setting.clip > 0:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.setting.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


make_peer = Fsdp2

if __name__ == "__main__":
    twin.main(make_peer)
