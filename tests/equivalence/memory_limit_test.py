"""A model whose states do not fit into one rank's memory trains at ZeRO stage 3 on several.

Every rank is in a memory cgroup of its own, so that the kernel is the judge: what takes more is
killed. Needs a memory controller that this user may write to (root; cgroup version 1 or 2).
"""
import os
import tempfile
import unittest

import end_to_end
from end_to_end import BIN, EndToEnd

MODEL = {"vocab_size": 256, "hidden_size": 640, "intermediate_size": 1728, "num_hidden_layers": 8,
         "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 32}
STATE_BYTES = 16 * 40e6  # fp32 values, gradients and two moments of 40M parameters.
PROCESS_BYTES = 170e6    # LibTorch, the transport, activations.
ENTER = 'echo $$ > "$1/rank-$RANK/cgroup.procs" && shift && exec "$@"'


def memory_group():
    """(folder of this process's memory group, name of its limit), or None."""
    with open("/proc/self/cgroup", encoding="ascii") as file:
        paths = {line.split(":")[1]: line.strip().split(":", 2)[2] for line in file}
    version1 = f"/sys/fs/cgroup/memory{paths.get('memory', '/missing')}"
    version2 = f"/sys/fs/cgroup{paths.get('', '/missing')}"
    for folder, limit in ((version1, "memory.limit_in_bytes"), (version2, "memory.max")):
        try:
            probe = tempfile.mkdtemp(prefix="dtrain-probe-", dir=folder)
        except OSError:
            continue
        found = os.access(f"{probe}/{limit}", os.W_OK)
        os.rmdir(probe)
        if found:
            return folder, limit
    return None


GROUP = memory_group()


@unittest.skipIf(GROUP is None, "no memory cgroup that this user may write to")
class MemoryLimit(EndToEnd):
    def setUp(self):
        self.group = tempfile.mkdtemp(prefix="dtrain-ranks-", dir=GROUP[0])

    def tearDown(self):
        for rank in os.listdir(self.group):
            if rank.startswith("rank-"):
                os.rmdir(f"{self.group}/{rank}")
        os.rmdir(self.group)

    def train_within(self, name, ranks, limit_bytes, sets):
        for rank in range(ranks):
            folder = f"{self.group}/rank-{rank}"
            os.makedirs(folder, exist_ok=True)
            with open(f"{folder}/{GROUP[1]}", "w", encoding="ascii") as file:
                file.write(str(int(limit_bytes)))
        run_dir = f"{self.folder}/{name}"
        config = self.write_config("large.json", model=MODEL)
        batch = ["train_batch_size=4", f"train_micro_batch_size_per_gpu={4 // ranks}"]
        words = [word for value in [*sets, *batch, "train_steps=3"] for word in ("--set", value)]
        result = self.run_program(
            [f"{BIN}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir, "--",
             "/bin/sh", "-c", ENTER, "sh", self.group, f"{BIN}/dtrain-gpt", config, *words])
        return run_dir, result

    def test_stage_three_trains_what_no_rank_can_hold(self):
        free = self.train(1, "free", ["train_batch_size=4", "train_micro_batch_size_per_gpu=4",
                                      "train_steps=3"],
                          config=self.write_config("large.json", model=MODEL))
        tight = ["zero_optimization.stage=3", "zero_optimization.reduce_bucket_size=1000000",
                 "zero_optimization.stage3_max_live_parameters=4000000",
                 "zero_optimization.stage3_prefetch_bucket_size=2000000"]
        for ranks in (2, 4):
            limit = PROCESS_BYTES + 1.2 * STATE_BYTES / ranks
            _, whole = self.train_within(f"whole-{ranks}", ranks, limit, [])
            self.assertEqual(whole.code, 64, whole.output)
            self.assertIn("zero_optimization.stage", whole.output)
            run_dir, shared = self.train_within(f"shared-{ranks}", ranks, limit, tight)
            self.assertEqual(shared.code, 0, shared.output)
            self.assert_close(self.losses(run_dir), self.losses(free), 1e-5)


if __name__ == "__main__":
    end_to_end.main()
