"""The numerics contract end to end: what only the real programs show.

That every stage, precision and number of ranks trains alike is proven on the engine
(tests/runtime: engine_models_test, engine_ranks_test, engine_zeropp_test). What the launcher, the
program, its configuration, the token files and the checkpoints add is proven here, once for each
kind. The whole grid of settings is equivalence_grid_test.py, which takes minutes.
"""
import sys

import end_to_end
from end_to_end import BIN, EndToEnd

ALL_SHARED = end_to_end.ALL_SHARED
TWELVE = ["train_batch_size=12", "train_micro_batch_size_per_gpu=2"]
# The longest sums: over the tokens of a step.
TOLERANCE = end_to_end.fp32_tolerance(12 * end_to_end.SMALL["data"]["sequence_length"])


class Equivalence(EndToEnd):
    def test_three_ranks_with_micro_batches_and_everything_shared_out_train_as_one_does(self):
        one = self.losses(self.train(1, "one", ["train_batch_size=12",
                                                "train_micro_batch_size_per_gpu=12"]))
        self.assertEqual(len(one), 10)
        self.assertLess(one[10], one[1])
        three = self.losses(self.train(3, "three", [*TWELVE, "zero_optimization.stage=3",
                                                    ALL_SHARED]))
        self.assert_close(three, one, TOLERANCE)

    def test_deterministic_runs_are_equal_to_the_bit_whatever_the_way(self):
        sets = ["deterministic=true", "train_batch_size=12", "train_micro_batch_size_per_gpu=4"]
        ways = {"plain": [],
                "stage1-one-bucket": ["zero_optimization.stage=1",
                                      "zero_optimization.reduce_bucket_size=5e8"],
                "stage2-tcp": ["zero_optimization.stage=2", "comm.transport=tcp"],
                "stage3-tight-tcp": ["zero_optimization.stage=3", ALL_SHARED, "comm.transport=tcp",
                                     "zero_optimization.reduce_bucket_size=10000",
                                     "zero_optimization.stage3_max_live_parameters=20000"]}
        runs = {name: self.train(3, f"bits-{name}", [*sets, *way]) for name, way in ways.items()}
        for name, run_dir in runs.items():
            self.assertEqual(self.losses(run_dir), self.losses(runs["plain"]), name)
            self.assertEqual(self.norms(run_dir), self.norms(runs["plain"]), name)

    def test_a_run_goes_on_at_another_stage_with_another_number_of_ranks(self):
        straight = self.losses(self.train(2, "one-stage", TWELVE))
        ways = [(2, 1, 2), (3, 3, 4), (3, 2, 6), (1, 0, 8), (2, 3, 10)]
        for ranks, stage, until in ways:
            self.train(ranks, "stages", [*TWELVE, f"zero_optimization.stage={stage}",
                                         f"train_steps={until}"])
        self.assert_close(self.losses(f"{self.folder}/stages"), straight, TOLERANCE)

    def test_resume_is_no_interruption_to_the_bit(self):
        # Loss scale and masters; what ranks share out, persistent weights beside it; int8 on the
        # wire.
        self.check_resume("fp16-2", ["fp16.enabled=true", "zero_optimization.stage=2"])
        self.check_resume("stage-3", ["zero_optimization.stage=3",
                                      "train_micro_batch_size_per_gpu=2"])
        self.check_resume("zeropp", ["zero_optimization.stage=3", ALL_SHARED,
                                     "zero_optimization.zero_quantized_weights=true",
                                     "zero_optimization.zero_quantized_gradients=true"])

    def test_a_compressed_run_resumes_the_same_way_each_time(self):
        sets = ["comm.compression.type=powersgd", "comm.compression.start_step=2",
                "comm.compression.min_elements=0", "comm.compression.rank=2"]
        losses = []
        for name in ("first", "second"):
            self.train(2, name, [*sets, "train_steps=6"])
            losses.append(self.losses(self.train(2, name, [*sets, "train_steps=12"])))
        self.assertEqual(len(losses[0]), 12)
        self.assertEqual(losses[0], losses[1])


class Launchers(EndToEnd):
    """A program runs unchanged under other launchers and alone."""

    def check(self, command, name, env=None):
        run_dir = f"{self.folder}/{name}"
        result = self.run_program([*command, f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir],
                                  env=env)
        self.assertEqual(result.code, 0, result.output)
        return self.losses(run_dir)

    def test_torchrun_and_mpirun_and_alone_give_the_losses_of_dtrain_launch(self):
        ours = self.losses(self.train(2, "launch"))
        one_thread = {"OMP_NUM_THREADS": "1"}
        torchrun = self.check([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2",
                               "--no-python", "--standalone"], "torchrun", one_thread)
        self.assertEqual(torchrun, ours)
        mpirun = self.check(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2"], "mpirun",
                            one_thread)
        self.assertEqual(mpirun, ours)
        self.assert_close(self.check([], "alone", one_thread), ours, TOLERANCE)


if __name__ == "__main__":
    end_to_end.main()
