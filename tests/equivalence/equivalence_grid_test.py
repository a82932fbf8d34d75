"""The whole grid of the numerics contract with the real programs: every stage, precision, policy of the
wire and way to resume. It takes minutes; equivalence_test.py has one case of each kind."""
import end_to_end
from end_to_end import EndToEnd

ALL_SHARED = end_to_end.ALL_SHARED
TWELVE = ["train_batch_size=12", "train_micro_batch_size_per_gpu=2"]
# Number of terms of the longest sums, those over the tokens of a step.
TOLERANCE = end_to_end.fp32_tolerance(12 * end_to_end.SMALL["data"]["sequence_length"])
# bf16 keeps 8 bits: a rounding is off by 2^-9 at most, the difference of two numbers that were
# rounded by 2^-8 of the larger one. A token's loss is a difference of logits, which are rounded
# themselves and made of rounded weights: twice 2^-8. fp16 keeps three bits more.
ROUNDED_WEIGHTS = 2.0 ** -7
# Gradients that are rounded in other places change each element's update by at most 2^-8, and the loss
# by that share of the updates' effect, which is less than the loss; the changed weights may then be
# rounded to the neighbouring value, which is another 2^-8.
ROUNDED_GRADIENTS = 2.0 ** -7


class Grid(EndToEnd):
    def end_of(self, losses):
        return sum(losses[step] for step in range(51, 61)) / 10

    def check_end(self, name, losses, exact, nats):
        self.assertNotEqual(losses, exact, f"{name} changed nothing")
        self.assertGreater(exact[1] - self.end_of(exact), 1.5, "the loss falls by 2 nats or so")
        self.assertLess(abs(self.end_of(losses) - self.end_of(exact)), nats,
                        f"{name}: {self.end_of(losses)} and {self.end_of(exact)}")

    def test_fewer_bits_on_the_wire_end_near_the_fp32_loss(self):
        steps = ["train_steps=60"]
        compressed = ["comm.compression.start_step=5", "comm.compression.min_elements=0"]
        policies = {
            "bf16": ["comm.wire_dtype=bf16"],
            "fp16": ["communication_data_type=fp16"],
            "int8": ["comm.compression.type=int8", *compressed],
            "powersgd": ["comm.compression.type=powersgd", "comm.compression.rank=2", *compressed],
            "int8-1": ["comm.compression.type=int8", "zero_optimization.stage=1", *compressed],
            "powersgd-1": ["comm.compression.type=powersgd", "comm.compression.rank=2",
                           "zero_optimization.stage=1", *compressed],
            "bf16-3": ["communication_data_type=bf16", "zero_optimization.stage=3"],
        }
        exact = self.losses(self.train(2, "exact", steps))
        for name, sets in policies.items():
            # A twentieth of the loss that the training gains.
            self.check_end(name, self.losses(self.train(2, name, [*steps, *sets])), exact, 0.1)

    def test_zero_plus_plus_ends_near_the_exact_loss(self):
        zero = ["zero_optimization.stage=3", ALL_SHARED, *TWELVE, "train_steps=60"]
        weights = "zero_optimization.zero_quantized_weights=true"
        gradients = "zero_optimization.zero_quantized_gradients=true"
        second = "zero_optimization.zero_hpz_partition_size=2"
        exact = self.losses(self.train(2, "exact-3", zero))
        for ranks, name, sets in [(2, "weights", [weights]), (2, "gradients", [gradients]),
                                  (2, "all", [weights, gradients, second]),
                                  (3, "both", [weights, gradients])]:
            losses = self.losses(self.train(ranks, f"zeropp-{name}", [*zero, *sets]))
            self.check_end(name, losses, exact, 0.05)

    def test_every_zero_stage_trains_as_stage_zero_does(self):
        one = self.losses(self.train(1, "one", ["train_batch_size=12"]))
        for ranks in (2, 3):
            for stage in (0, 1, 2, 3):
                sharded = self.train(ranks, f"stage{stage}-{ranks}",
                                     [*TWELVE, f"zero_optimization.stage={stage}", ALL_SHARED])
                self.assert_close(self.losses(sharded), one, TOLERANCE)

    def test_deterministic_runs_are_equal_to_the_bit_whatever_the_way(self):
        sets = ["deterministic=true", "train_batch_size=12"]
        for ranks in (2, 3):
            batch = f"train_micro_batch_size_per_gpu={12 // ranks}"  # No accumulation.
            ways = {"plain": [], "one-bucket": ["zero_optimization.reduce_bucket_size=5e8"],
                    "tcp": ["comm.transport=tcp"], "again": [],
                    "stage1": ["zero_optimization.stage=1"],
                    "stage2": ["zero_optimization.stage=2"],
                    "stage2-tcp": ["zero_optimization.stage=2", "comm.transport=tcp"],
                    "stage3": ["zero_optimization.stage=3"],
                    "stage3-tcp": ["zero_optimization.stage=3", "comm.transport=tcp"],
                    "stage3-all-shared": ["zero_optimization.stage=3", ALL_SHARED],
                    "stage3-tight": ["zero_optimization.stage=3", ALL_SHARED,
                                     "zero_optimization.reduce_bucket_size=10000",
                                     "zero_optimization.stage3_max_live_parameters=20000"]}
            runs = {name: self.train(ranks, f"bits-{name}-{ranks}", [*sets, batch, *way])
                    for name, way in ways.items()}
            for name, run_dir in runs.items():
                self.assertEqual(self.losses(run_dir), self.losses(runs["plain"]), name)
                self.assertEqual(self.norms(run_dir), self.norms(runs["plain"]), name)

    def test_resume_is_no_interruption_to_the_bit_at_every_stage_and_precision(self):
        for stage in (0, 1, 2, 3):
            for precision in ("fp32", "bf16", "fp16"):
                sets = [f"zero_optimization.stage={stage}", "train_micro_batch_size_per_gpu=2"]
                if precision != "fp32":
                    sets.append(f"{precision}.enabled=true")
                self.check_resume(f"resume-{precision}-{stage}", sets)

    def test_mixed_precision_trains_near_fp32_and_the_same_at_every_stage(self):
        exact = self.losses(self.train(2, "fp32"))
        for precision in ("bf16", "fp16"):
            # The norm's order of summation depends on the stage; clipping with it would change the last bit.
            sets = [f"{precision}.enabled=true", "gradient_clipping=0"]
            plain = self.losses(self.train(2, f"{precision}-stage-0", sets))
            self.assertNotEqual(plain, exact)
            self.assert_close(plain, exact, ROUNDED_WEIGHTS + ROUNDED_GRADIENTS)
            for stage in (1, 2, 3):
                sharded = self.losses(self.train(
                    2, f"{precision}-stage-{stage}", [*sets, f"zero_optimization.stage={stage}"]))
                self.assertEqual(sharded, plain, f"{precision}, stage {stage}")

    def test_mixed_precision_goes_on_at_another_stage_and_world_size(self):
        for precision in ("bf16", "fp16"):
            sets = [f"{precision}.enabled=true", "zero_optimization.stage=2"]
            straight = self.losses(self.train(2, f"{precision}-straight", [*sets, "train_steps=8"]))
            self.train(2, f"{precision}-moved", [*sets, "train_steps=4"])
            moved = self.losses(self.train(1, f"{precision}-moved",
                                           [f"{precision}.enabled=true", "train_steps=8"]))
            # One rank's gradient is rounded once for the whole batch; each of two ranks rounds its own.
            self.assert_close(moved, straight, ROUNDED_GRADIENTS)


if __name__ == "__main__":
    end_to_end.main()
