"""The example's GPT under DeepSpeed on CPU over Gloo, at the ZeRO stage of the configuration.

`zero_optimization` goes to DeepSpeed as it stands: the keys are its own. torch's fused AdamW is the
optimizer, faster on CPU tensors than DeepSpeedCPUAdam and needing no compiler.
"""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")  # Read when deepspeed is imported.

import deepspeed  # noqa: E402

import twin  # noqa: E402

# Its shared-memory all-reduce serves inference alone, and would be compiled here for minutes.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


class DeepSpeed(twin.Peer):
    def __init__(self, setting, model):
        self.setting = setting
        config = {
            "train_batch_size": setting.global_batch,
            "train_micro_batch_size_per_gpu": setting.micro,
            "gradient_accumulation_steps": setting.accumulation,
            "gradient_clipping": setting.clip,
            "zero_optimization": setting.config["zero_optimization"],
            "bf16": {"enabled": setting.bf16},
            "steps_per_print": 1 << 30,
        }
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=setting.adamw(model.parameters()), config=config,
            dist_init_required=False)

    def micro_batch(self, tokens, targets, last):
        loss = self.engine(tokens, targets)
        self.engine.backward(loss)  # Divides by the number of micro-batches.
        if not last:
            self.engine.step()
        return loss.detach() / self.setting.accumulation

    def update(self):
        self.engine.step()


make_peer = DeepSpeed

if __name__ == "__main__":
    twin.main(make_peer)
