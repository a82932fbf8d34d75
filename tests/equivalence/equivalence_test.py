"""The numerics contract end to end: the parts that only the real programs show.

Tests of the engine prove that every stage, precision and number of ranks trains alike
(tests/runtime: engine_models_test, engine_ranks_test, engine_zeropp_test). This test proves what the
launcher, the program, its configuration, the token files and the checkpoints add, once for each kind;
interop_tensorboard_test proves that other launchers change nothing. The whole grid of
settings is equivalence_grid_test.py, which takes minutes.
"""
import shutil

import end_to_end
from end_to_end import EndToEnd

ALL_SHARED = end_to_end.ALL_SHARED
TWELVE = ["train_batch_size=12", "train_micro_batch_size_per_gpu=2"]
# Number of terms of the longest sums, those over the tokens of a step.
TOLERANCE = end_to_end.fp32_tolerance(12 * end_to_end.SMALL["data"]["sequence_length"])


class Equivalence(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.of_one_rank = None

    def losses_of_one_rank(self):
        """The losses of the batch of twelve in one piece."""
        if Equivalence.of_one_rank is None:
            Equivalence.of_one_rank = self.losses(self.train(
                1, "one", ["train_batch_size=12", "train_micro_batch_size_per_gpu=12"]))
        return Equivalence.of_one_rank

    def test_three_ranks_with_micro_batches_and_everything_shared_out_train_as_one_does(self):
        one = self.losses_of_one_rank()
        self.assertEqual(len(one), 10)
        self.assertLess(one[10], one[1])
        three = self.losses(self.train(3, "three", [*TWELVE, "zero_optimization.stage=3",
                                                    ALL_SHARED]))
        self.assert_close(three, one, TOLERANCE)

    def test_deterministic_runs_are_equal_to_the_bit_whatever_the_way(self):
        sets = ["deterministic=true", "train_batch_size=12", "train_micro_batch_size_per_gpu=4"]
        ways = {"plain": [],
                "stage2-one-bucket-tcp": ["zero_optimization.stage=2", "comm.transport=tcp",
                                          "zero_optimization.reduce_bucket_size=5e8"],
                "stage3-tight-tcp": ["zero_optimization.stage=3", ALL_SHARED, "comm.transport=tcp",
                                     "zero_optimization.reduce_bucket_size=10000",
                                     "zero_optimization.stage3_max_live_parameters=20000"]}
        runs = {name: self.train(3, f"bits-{name}", [*sets, *way]) for name, way in ways.items()}
        for name, run_dir in runs.items():
            self.assertEqual(len(self.losses(run_dir)), 10, name)
            self.assertEqual(self.losses(run_dir), self.losses(runs["plain"]), name)
            self.assertEqual(self.norms(run_dir), self.norms(runs["plain"]), name)

    def test_a_run_goes_on_at_another_stage_with_another_number_of_ranks(self):
        for ranks, stage, until in [(2, 1, 3), (3, 3, 5), (1, 0, 7), (2, 2, 10)]:
            self.train(ranks, "stages", [*TWELVE, f"zero_optimization.stage={stage}",
                                         f"train_steps={until}"])
        self.assert_close(self.losses(f"{self.folder}/stages"), self.losses_of_one_rank(), TOLERANCE)

    def test_resume_is_no_interruption_to_the_bit(self):
        # Loss scale and masters; sharded weights beside persistent ones; int8 on the wire.
        self.check_resume("fp16-2", ["fp16.enabled=true", "zero_optimization.stage=2"])
        self.check_resume("stage-3", ["zero_optimization.stage=3",
                                      "train_micro_batch_size_per_gpu=2"])
        self.check_resume("zeropp", ["zero_optimization.stage=3", ALL_SHARED,
                                     "zero_optimization.zero_quantized_weights=true",
                                     "zero_optimization.zero_quantized_gradients=true"])

    def test_a_compressed_run_resumes_the_same_way_each_time(self):
        sets = ["comm.compression.type=powersgd", "comm.compression.start_step=2",
                "comm.compression.min_elements=0", "comm.compression.rank=2"]
        first = self.train(2, "first", [*sets, "train_steps=6"])
        shutil.copytree(first, f"{self.folder}/second", symlinks=True)
        losses = [self.losses(self.train(2, name, [*sets, "train_steps=12"]))
                  for name in ("first", "second")]
        self.assertEqual(len(losses[0]), 12)
        self.assertEqual(losses[0], losses[1])


if __name__ == "__main__":
    end_to_end.main()
