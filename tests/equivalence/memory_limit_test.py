"""A model whose states do not fit into one rank's memory trains at ZeRO stage 3 on several, and on
one with its states in files; what fits nowhere is refused before it is made.

Every rank is in a memory cgroup of its own, so that the kernel is the judge: what takes more is
killed. Needs a memory controller that this user may write to (root; cgroup version 1 or 2).
"""
import contextlib
import os
import re
import tempfile
import unittest

import end_to_end
from end_to_end import BIN, EndToEnd
from memory_cgroup import memory_group

MODEL = {"vocab_size": 256, "hidden_size": 448, "intermediate_size": 1216, "num_hidden_layers": 8,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}
STATE_BYTES = 16 * 20e6  # fp32 values, gradients and two moments of 20M parameters.
PROCESS_BYTES = 170e6    # LibTorch, the transport, activations.
# Number of terms of the longest sums, those over the inner width.
TOLERANCE = end_to_end.fp32_tolerance(MODEL["intermediate_size"])
ENTER = 'echo $$ > "$1/rank-$RANK/cgroup.procs" && shift && exec "$@"'


GROUP = memory_group()


@unittest.skipIf(GROUP is None, "no memory cgroup that this user may write to")
class MemoryLimit(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.free_run = None

    def setUp(self):
        self.group = tempfile.mkdtemp(prefix="dtrain-ranks-", dir=GROUP[0])
        # Else the ranks' groups have no limit in version 2. Version 1 has no such file.
        with contextlib.suppress(OSError), open(f"{self.group}/cgroup.subtree_control", "w", encoding="ascii") as file:
            file.write("+memory")

    def tearDown(self):
        super().tearDown()
        for rank in os.listdir(self.group):
            if rank.startswith("rank-"):
                self.wait_until(lambda rank=rank: self.is_removed(f"{self.group}/{rank}"), f"{rank}'s processes leave")
        os.rmdir(self.group)

    @staticmethod
    def is_removed(group):
        """Whether it could be: a process that has ended is in its group for another moment."""
        with contextlib.suppress(OSError):
            os.rmdir(group)
        return not os.path.exists(group)

    def train_within(self, name, ranks, limit_bytes, sets, samples=4):
        for rank in range(ranks):
            folder = f"{self.group}/rank-{rank}"
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{GROUP[1]}", "w", encoding="ascii") as file:
                file.write(str(int(limit_bytes)))
        run_dir = f"{self.folder}/{name}"
        config = self.write_config("large.json", model=MODEL)
        batch = [f"train_batch_size={samples}",
                 f"train_micro_batch_size_per_gpu={samples // ranks}"]
        words = [word for value in ["train_steps=3", *batch, *sets] for word in ("--set", value)]
        result = self.run_program(
            [f"{BIN}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir, "--",
             "/bin/sh", "-c", ENTER, "sh", self.group, f"{BIN}/dtrain-gpt", config, *words])
        return run_dir, result

    def free(self):
        """The run directory of four steps of one rank without a limit."""
        if MemoryLimit.free_run is None:
            MemoryLimit.free_run = self.train(
                1, "free", ["train_batch_size=4", "train_micro_batch_size_per_gpu=4",
                            "train_steps=4"], config=self.write_config("large.json", model=MODEL))
        return MemoryLimit.free_run

    def peak(self, rank=0):
        """Memory in use by the cgroup, including the page cache of its files; None if unknown."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            path = f"{self.group}/rank-{rank}/{name}"
            if os.path.exists(path):
                with open(path, encoding="ascii") as file:
                    return int(file.read())
        return None

    def refused(self, name, ranks, limit, sets, *texts):
        """Checks that the run is refused at once, by one line of rank 0, without a step or a signal."""
        run_dir, result = self.train_within(name, ranks, limit, sets)
        self.assertEqual(result.code, 64, result.output)
        for text in texts:
            self.assertIn(text, result.output)
        self.assertLess(result.seconds, 60)
        self.assertEqual(self.losses(run_dir), {})
        self.assertFalse(os.path.exists(f"{run_dir}/checkpoints") and
                         os.listdir(f"{run_dir}/checkpoints"))
        return result.output

    def test_weights_that_no_memory_holds_are_refused_before_they_are_made(self):
        # 26 billion parameters; then by the machine's own memory, without a limit.
        large = ["model.hidden_size=32768", "model.intermediate_size=32768"]
        for ranks, limit in ((2, 400e6), (1, 1 << 62)):
            output = self.refused(f"large-{ranks}-{limit:.0e}", ranks, limit, large,
                                  "million parameters", "but a rank has", "GB: ")
            self.assertNotIn("SIGKILL", output)
            needed, available = re.search(r"take ([\d.e+]+) GB on each.* has ([\d.e+]+) GB",
                                          output).groups()
            self.assertGreater(float(needed), 400)
            self.assertLess(float(available), 400)
            if (peak := self.peak()) is not None:
                self.assertLess(peak, 300e6, "nothing of the model was touched")

    def test_a_micro_batch_that_does_not_fit_is_refused_with_one_that_does(self):
        self.refused("tokens", 1, PROCESS_BYTES + 1.5 * STATE_BYTES,
                     ["train_micro_batch_size_per_gpu=512", "train_batch_size=512"],
                     "activations of a micro-batch of 512 x 32 tokens",
                     ": train_micro_batch_size_per_gpu ")

    def test_one_rank_with_its_states_in_files_trains_what_it_cannot_hold(self):
        losses, weights = self.losses(self.free()), self.model_files(self.free())
        first_three = {step: loss for step, loss in losses.items() if step < 4}
        nvme = f"{self.folder}/nvme"  # On a disk: files in memory would count.
        os.makedirs(nvme, exist_ok=True)
        states = ["zero_optimization.offload_optimizer.device=nvme",
                  f"zero_optimization.offload_optimizer.nvme_path={nvme}",
                  "zero_optimization.reduce_bucket_size=1000000"]
        shared = ["zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme",
                  f"zero_optimization.offload_param.nvme_path={nvme}",
                  "zero_optimization.stage3_max_live_parameters=4000000",
                  "zero_optimization.stage3_prefetch_bucket_size=2000000"]
        # In near memory: fp32 weights and gradients are half of the states; gradients alone a quarter.
        for name, sets, share in (("states", ["zero_optimization.stage=2", *states], 0.5),
                                  ("weights", [*shared, *states], 0.25)):
            limit = PROCESS_BYTES + (share + 0.2) * STATE_BYTES
            self.refused(f"near-{name}", 1, limit, ["zero_optimization.stage=3"], "but a rank has")
            run_dir, far = self.train_within(f"far-{name}", 1, limit, sets)
            self.assertEqual(far.code, 0, far.output)
            self.assertEqual(self.losses(run_dir), first_three, name)
            _, resumed = self.train_within(f"far-{name}", 1, limit, [*sets, "train_steps=4"])
            self.assertEqual(resumed.code, 0, resumed.output)
            self.assertEqual(self.losses(run_dir), losses, name)
            self.assertEqual(self.model_files(run_dir), weights, name)
            self.assertEqual(os.listdir(nvme), [], "the files have no name")

    def test_stage_three_trains_what_no_rank_can_hold(self):
        ranks = 4
        tight = ["zero_optimization.stage=3", "zero_optimization.reduce_bucket_size=1000000",
                 "zero_optimization.stage3_max_live_parameters=4000000",
                 "zero_optimization.stage3_prefetch_bucket_size=2000000"]
        limit = PROCESS_BYTES + 1.2 * STATE_BYTES / ranks
        _, whole = self.train_within("whole", ranks, limit, [])
        self.assertEqual(whole.code, 64, whole.output)
        self.assertIn("zero_optimization.stage", whole.output)
        run_dir, shared = self.train_within("shared", ranks, limit, tight)
        self.assertEqual(shared.code, 0, shared.output)
        losses = self.losses(run_dir)
        self.assertEqual(len(losses), 3)
        self.assert_close(losses, {step: loss for step, loss in self.losses(self.free()).items()
                                   if step < 4}, TOLERANCE)


if __name__ == "__main__":
    end_to_end.main()
