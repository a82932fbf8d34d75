"""The numerics contract through the real programs: ranks, accumulation, stages and resume."""
import sys

import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd


# The test's model is so small that all of its parameters would stay whole.
ALL_SHARED = "zero_optimization.stage3_param_persistence_threshold=0"


class Equivalence(EndToEnd):
    def test_two_and_three_ranks_train_as_one_does(self):
        one = self.losses(self.train(1, "one", ["train_batch_size=12"]))
        self.assertEqual(len(one), 10)
        self.assertLess(one[10], one[1])
        two = self.losses(self.train(2, "two", ["train_batch_size=12",
                                                "train_micro_batch_size_per_gpu=6"]))
        three = self.losses(self.train(3, "three", ["train_batch_size=12"]))
        # fp32 sums in another order; 1e-5 is ten times what was seen.
        self.assert_close(two, one, 1e-5)
        self.assert_close(three, one, 1e-5)

    def test_accumulation_one_by_eight_is_two_by_four(self):
        by_eight = self.losses(self.train(1, "acc8", ["train_batch_size=8",
                                                      "train_micro_batch_size_per_gpu=8"]))
        by_four = self.losses(self.train(1, "acc4", ["train_batch_size=8",
                                                     "train_micro_batch_size_per_gpu=4"]))
        self.assert_close(by_four, by_eight, 1e-5)

    def test_bucket_size_and_tcp_do_not_change_the_losses(self):
        shm = self.losses(self.train(2, "shm"))
        tcp = self.losses(self.train(2, "tcp", ["comm.transport=tcp"]))
        large = self.losses(self.train(2, "large", ["zero_optimization.reduce_bucket_size=5e8"]))
        self.assert_close(tcp, shm, 1e-6)
        self.assert_close(large, shm, 1e-6)

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
            losses = self.losses(self.train(2, name, [*steps, *sets]))
            self.assertNotEqual(losses, exact, f"{name} changed nothing")
            last = [sum(run[s] for s in range(51, 61)) / 10 for run in (losses, exact)]
            # The loss falls by 2 nats in these steps.
            self.assertLess(abs(last[0] - last[1]), 0.1, f"{name}: {last}")

    def test_zero_plus_plus_ends_near_the_exact_loss_and_resumes_to_the_bit(self):
        zero = ["zero_optimization.stage=3", ALL_SHARED, "train_batch_size=12",
                "train_micro_batch_size_per_gpu=2"]
        weights = "zero_optimization.zero_quantized_weights=true"
        gradients = "zero_optimization.zero_quantized_gradients=true"
        second = "zero_optimization.zero_hpz_partition_size=2"
        exact = self.losses(self.train(2, "exact-3", [*zero, "train_steps=60"]))
        for ranks, name, sets in [(2, "weights", [weights]), (2, "gradients", [gradients]),
                                  (2, "all", [weights, gradients, second]),
                                  (3, "both", [weights, gradients])]:
            losses = self.losses(self.train(ranks, f"zeropp-{name}",
                                            [*zero, *sets, "train_steps=60"]))
            self.assertNotEqual(losses, exact, name)
            last = [sum(run[s] for s in range(51, 61)) / 10 for run in (losses, exact)]
            # The loss falls by 2 nats in these steps.
            self.assertLess(abs(last[0] - last[1]), 0.05, f"{name}: {last}")
        sets = [*zero, weights, gradients, "train_batch_size=4"]
        straight = self.train(2, "zeropp-straight", [*sets, "train_steps=12"])
        self.train(2, "zeropp-resumed", [*sets, "train_steps=5"])
        resumed = self.train(2, "zeropp-resumed", [*sets, "train_steps=12"])
        self.assertEqual(self.losses(straight), self.losses(resumed))
        self.assertEqual(self.model_files(straight), self.model_files(resumed))

    def test_a_compressed_run_resumes_the_same_way_each_time(self):
        sets = ["comm.compression.type=powersgd", "comm.compression.start_step=2",
                "comm.compression.min_elements=0", "comm.compression.rank=2"]
        losses = []
        for name in ("first", "second"):
            self.train(2, name, [*sets, "train_steps=6"])
            losses.append(self.losses(self.train(2, name, [*sets, "train_steps=12"])))
        self.assertEqual(len(losses[0]), 12)
        self.assertEqual(losses[0], losses[1])

    def test_resume_is_no_interruption_to_the_bit(self):
        straight = self.train(2, "straight", ["train_steps=12"])
        self.train(2, "resumed", ["train_steps=5"])
        resumed = self.train(2, "resumed", ["train_steps=12"])
        self.assertEqual(self.losses(straight), self.losses(resumed))
        self.assertEqual(self.model_files(straight), self.model_files(resumed))

    def test_a_run_goes_on_with_another_number_of_ranks(self):
        straight = self.losses(self.train(2, "same", ["train_steps=10"]))
        self.train(2, "changed", ["train_steps=5"])
        changed = self.losses(self.train(1, "changed", ["train_steps=10"]))
        self.assert_close(changed, straight, 1e-5)

    def test_every_zero_stage_trains_as_stage_zero_does(self):
        sets = ["train_batch_size=12", "train_micro_batch_size_per_gpu=2"]
        for ranks in (2, 3):
            plain = self.losses(self.train(ranks, f"stage0-{ranks}", sets))
            for stage in (1, 2, 3):
                sharded = self.train(ranks, f"stage{stage}-{ranks}",
                                     [*sets, f"zero_optimization.stage={stage}", ALL_SHARED])
                self.assert_close(self.losses(sharded), plain, 1e-5)

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

    def norms(self, run_dir):
        return [r["m"]["train/grad_norm"] for r in self.records(run_dir)
                if r["kind"] == "step" and "train/grad_norm" in r["m"]]

    def test_a_run_goes_on_at_another_stage_with_another_number_of_ranks(self):
        sets = ["train_batch_size=12", "train_micro_batch_size_per_gpu=2"]
        straight = self.losses(self.train(2, "one-stage", sets))
        ways = [(2, 1, 2), (3, 3, 4), (3, 2, 6), (1, 0, 8), (2, 3, 10)]
        for ranks, stage, until in ways:
            self.train(ranks, "stages", [*sets, f"zero_optimization.stage={stage}",
                                         f"train_steps={until}"])
        self.assert_close(self.losses(f"{self.folder}/stages"), straight, 1e-5)

    def test_resume_at_stages_two_and_three_is_no_interruption_to_the_bit(self):
        for stage in (2, 3):
            sets = [f"zero_optimization.stage={stage}", "train_micro_batch_size_per_gpu=2"]
            straight = self.train(2, f"straight-{stage}", [*sets, "train_steps=12"])
            self.train(2, f"resumed-{stage}", [*sets, "train_steps=5"])
            resumed = self.train(2, f"resumed-{stage}", [*sets, "train_steps=12"])
            self.assertEqual(self.losses(straight), self.losses(resumed))
            self.assertEqual(self.model_files(straight), self.model_files(resumed))

    def test_mixed_precision_trains_near_fp32_and_the_same_at_every_stage(self):
        exact = self.losses(self.train(2, "fp32"))
        for precision in ("bf16", "fp16"):
            # The norm sums in another order by stage; clipping with it would move the last bit.
            sets = [f"{precision}.enabled=true", "gradient_clipping=0"]
            plain = self.losses(self.train(2, f"{precision}-stage-0", sets))
            self.assertNotEqual(plain, exact)
            self.assert_close(plain, exact, 2e-2)
            for stage in (1, 2, 3):
                sharded = self.losses(self.train(
                    2, f"{precision}-stage-{stage}", [*sets, f"zero_optimization.stage={stage}"]))
                self.assertEqual(sharded, plain, f"{precision}, stage {stage}")

    def test_mixed_precision_resumes_to_the_bit_and_at_another_stage_and_world_size(self):
        for precision in ("bf16", "fp16"):
            sets = [f"{precision}.enabled=true", "zero_optimization.stage=2"]
            straight = self.train(2, f"{precision}-straight", [*sets, "train_steps=8"])
            self.train(2, f"{precision}-resumed", [*sets, "train_steps=4"])
            resumed = self.train(2, f"{precision}-resumed", [*sets, "train_steps=8"])
            self.assertEqual(self.losses(straight), self.losses(resumed))
            self.assertEqual(self.model_files(straight), self.model_files(resumed))
            self.train(2, f"{precision}-moved", [*sets, "train_steps=4"])
            moved = self.train(1, f"{precision}-moved",
                               [f"{precision}.enabled=true", "train_steps=8"])
            # One rank's gradients are rounded once for the whole batch, two ranks' each for theirs.
            self.assert_close(self.losses(moved), self.losses(straight), 1e-2)


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
        self.assert_close(self.check([], "alone", one_thread), ours, 1e-5)


if __name__ == "__main__":
    end_to_end.main()
