"""Every ZeRO stage beside DDP, FSDP2 and DeepSpeed: same weights and data, 30 steps, fp32 and bf16.

The peers' twins are those of the benchmarks, in one process: importing them takes longer than the
training. They run on the CPU over Gloo.
"""
import importlib.util
import sys

import end_to_end
from end_to_end import SOURCE, EndToEnd

sys.path.insert(0, f"{SOURCE}/bench")
from peers import read_facts, stages_command, twin_environment  # noqa: E402

STEPS = 30
# Of a loss. 1.5e-7, a float's last bit, was seen; another CPU's matrix products may sum in another
# order than torch's Python wheel does, which training multiplies.
TOLERANCE = 1e-5
# All keep fp32 weights and sums, and round to bf16's 8 bits in other places: autocast inside
# products alone, FSDP2 and DeepSpeed whatever an operation hands on, dtrain not inside its fused
# ones. 1.8e-4 was seen; one rounding of a logit is 4e-3, and a loss is a mean over many.
BF16_TOLERANCE = 2e-3
# DeepSpeed's stage 3 makes many small collectives, each of which a busy machine delays.
PEERS_TIME_BOUND_S = 480
TORCH_WAYS = ["ddp:0", "fsdp2:2", "fsdp2:3"]  # FSDP2 has no stage 1.
DEEPSPEED_WAYS = ["deepspeed:1", "deepspeed:2", "deepspeed:3"]


class Peers(EndToEnd):
    initial = None

    def weights(self):
        """In fp32, whatever is trained in: the seed's, which masters begin with too."""
        if Peers.initial is None:
            Peers.initial = self.initial_weights()
        return Peers.initial

    def peers_losses(self, name, ways, sets):
        facts = f"{self.folder}/{name}-facts"
        command = stages_command(ways, self.config, facts, sets, ["--weights", self.weights()])
        result = self.run_program(command, env=twin_environment(), timeout=PEERS_TIME_BOUND_S)
        self.assertEqual(result.code, 0, result.output)
        steps = {way: read_facts(f"{facts}.{way.replace(':', '-')}") for way in ways}
        return {way: {f["step"]: f["loss"] for f in lines if f["kind"] == "step"}
                for way, lines in steps.items()}

    def compare(self, name, sets, tolerance):
        """The largest relative difference of losses, by peer and stage."""
        has_deepspeed = importlib.util.find_spec("deepspeed") is not None
        ways = TORCH_WAYS + (DEEPSPEED_WAYS if has_deepspeed else [])
        ours = {stage: self.losses(self.train(2, f"{name}-{stage}",
                                              [*sets, f"zero_optimization.stage={stage}"]))
                for stage in range(4)}
        for way, theirs in self.peers_losses(name, ways, sets).items():
            mine = ours[int(way.split(":")[1])]
            self.assertEqual(len(theirs), STEPS, way)
            largest = max(abs(mine[step] / theirs[step] - 1) for step in theirs)
            print(f"{name}, {way}: losses differ by at most {largest:.2g}", flush=True)
            self.assert_close(mine, theirs, tolerance)
        if not has_deepspeed:
            self.skipTest("DeepSpeed's wheel is not installed (./dev deps test installs it); "
                          "only DDP and FSDP2 were compared")

    def test_every_stage_has_the_losses_of_ddp_fsdp2_and_deepspeed(self):
        self.compare("fp32", [f"train_steps={STEPS}"], TOLERANCE)

    def test_in_bf16_too_as_far_as_its_rounding_goes(self):
        self.compare("bf16", [f"train_steps={STEPS}", "bf16.enabled=true"], BF16_TOLERANCE)


if __name__ == "__main__":
    end_to_end.main()
