"""Every ZeRO stage beside DDP, FSDP2 and DeepSpeed: same weights and data, 30 steps, fp32, and in bf16
three of these ways.

The peers' twins are those of the benchmarks, in one process: importing them takes longer than the
training. They run on the CPU over Gloo. DTRAIN_TEST_LONG trains every way in bf16.

In bf16 no two of them round in the same places, so each peer says itself what rounding may do: its
bf16 losses beside its own fp32 ones, on this machine. The peers work as follows (torch 2.11, DeepSpeed 0.19.8):
- DDP trains under autocast: fp32 weights, gradients and residual stream; products round their inputs
  and results.
- FSDP2 rounds each weight when it is gathered and whatever an operation hands on; gradients come out of
  an operation in bf16 and are reduced in fp32, masters are fp32.
- DeepSpeed casts the module before it copies its fp32 masters from it (engine.py,
  _cast_module_mixed_precision; zero/stage_1_and_2.py, single_partition_of_fp32_groups), so the masters
  begin with rounded weights; data_types.grad_accum_dtype and communication_data_type default to the
  model's type, so gradients are added up, reduced, averaged and clipped in bf16, and widened for AdamW
  alone. Its losses may therefore lie farther from everyone's than those of DDP and FSDP2 from each
  other.
- dtrain keeps fp32 masters of the weights as they were given, and sums gradients in fp32; its fused
  operations do not round inside.
"""
import glob
import importlib.util
import os
import sys

import end_to_end
from end_to_end import SOURCE, EndToEnd
from time_bounds import bound_s

sys.path.insert(0, f"{SOURCE}/bench")
from peers import read_facts, stages_command, twin_environment  # noqa: E402

STEPS = 30
TOKENS = end_to_end.SMALL["train_batch_size"] * end_to_end.SMALL["data"]["sequence_length"]
TOLERANCE = end_to_end.fp32_tolerance(TOKENS)
# The error that bf16 causes in a mean of TOKENS losses without any training: each loss is a difference of
# logits, which are rounded to 2^-9 and computed from rounded weights, 2^-9 again; errors of both signs
# average out with the square root of their number, and four times that is rare.
BF16_MEAN = 4 * 2.0 ** -8 / TOKENS ** 0.5
# Two runs may differ from the exact one in opposite directions.
OPPOSITE_SIDES = 2
# DeepSpeed's stage 3 runs many small collectives, each of which a busy machine delays.
PEERS_TIME_BOUND_S = bound_s(480)
TORCH_WAYS = ["ddp:0", "fsdp2:2", "fsdp2:3"]  # FSDP2 has no stage 1.
DEEPSPEED_WAYS = ["deepspeed:1", "deepspeed:2", "deepspeed:3"]
BF16_WAYS = ["ddp:0", "fsdp2:3", "deepspeed:2"]
if "DTRAIN_TEST_LONG" in os.environ:
    BF16_WAYS = TORCH_WAYS + DEEPSPEED_WAYS


def distance(losses, others):
    """The largest relative difference of two runs' losses."""
    return max(abs(losses[step] / others[step] - 1) for step in others)


class Peers(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ways = TORCH_WAYS + (DEEPSPEED_WAYS if importlib.util.find_spec("deepspeed") else [])
        cls.bf16_ways = [way for way in BF16_WAYS if way in cls.ways]

    def first_weights(self):
        """A file with the initial weights of a run."""
        # With lr = 0 and no decay the first checkpoint holds the initial weights.
        run_dir = self.train(1, "first-weights", ["train_steps=1", "optimizer.params.lr=0",
                                                  "optimizer.params.weight_decay=0"])
        [path] = glob.glob(f"{run_dir}/checkpoints/step-*/model/*.safetensors")
        return path

    def peers_losses(self):
        """{way: {step: loss}}, a way in bf16 by its name with ":bf16"."""
        ways = [*self.ways, *[f"{way}:bf16" for way in self.bf16_ways]]
        facts = f"{self.folder}/facts"
        command = stages_command(ways, self.config, facts, [f"train_steps={STEPS}"],
                                 ["--weights", self.first_weights()])
        result = self.run_program(command, env=twin_environment(), timeout=PEERS_TIME_BOUND_S)
        self.assertEqual(result.code, 0, result.output)
        steps = {way: read_facts(f"{facts}.{way.replace(':', '-')}") for way in ways}
        return {way: {f["step"]: f["loss"] for f in lines if f["kind"] == "step"}
                for way, lines in steps.items()}

    def our_losses(self, stage, precision):
        sets = [f"train_steps={STEPS}", f"zero_optimization.stage={stage}",
                f"bf16.enabled={str(precision == 'bf16').lower()}"]
        return self.losses(self.train(2, f"{precision}-{stage}", sets))

    def check(self, what, measured, allowed):
        print(f"{what}: {measured:.2g} apart, {allowed:.2g} allowed", flush=True)
        with self.subTest(what):
            self.assertLessEqual(measured, allowed)

    def test_every_stage_has_the_losses_of_ddp_fsdp2_and_deepspeed_in_fp32_and_bf16(self):
        stage_of = {way: int(way.split(":")[1]) for way in self.ways}
        exact = {stage: self.our_losses(stage, "fp32") for stage in range(4)}
        rounded = {stage: self.our_losses(stage, "bf16")
                   for stage in sorted({stage_of[way] for way in self.bf16_ways})}
        theirs = self.peers_losses()
        for way, losses in theirs.items():
            self.assertEqual(sorted(losses), list(range(1, STEPS + 1)), way)
        for way in self.ways:
            self.check(f"{way}, fp32", distance(exact[stage_of[way]], theirs[way]), TOLERANCE)
        # The difference of each peer's bf16 run from its own fp32 run.
        spread = {way: distance(theirs[f"{way}:bf16"], theirs[way]) for way in self.bf16_ways}
        for way in self.bf16_ways:
            self.check(f"{way}, bf16 ({spread[way]:.2g} from its own fp32)",
                       distance(rounded[stage_of[way]], theirs[f"{way}:bf16"]),
                       BF16_MEAN + OPPOSITE_SIDES * spread[way])
        # Our bf16 run must not differ more from fp32 than those of the peers.
        for stage, losses in rounded.items():
            self.assertNotEqual(losses, exact[stage])
            self.check(f"dtrain:{stage}, bf16 beside its fp32", distance(losses, exact[stage]),
                       BF16_MEAN + OPPOSITE_SIDES * max(spread[way] for way in TORCH_WAYS
                                                        if way in spread))
        if self.ways == TORCH_WAYS:
            self.skipTest("DeepSpeed's wheel is not installed (./dev deps test installs it); "
                          "only DDP and FSDP2 were compared")


if __name__ == "__main__":
    end_to_end.main()
