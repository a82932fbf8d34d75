"""`dtrain checkpoint repair` and a step journal: a repair that fences the killed attempt and removes what its
last save left behind takes no journalled step away, and the next start goes on behind them, with the
bits of a run that was never interrupted."""
import contextlib
import glob
import os
import signal

import end_to_end
from end_to_end import BIN, EndToEnd
from faults_test import ranks_of
from processes import marked_processes
from time_bounds import bound_s

STEPS, INTERVAL = 160, 20
SETS = [f"train_steps={STEPS}", f"checkpoint.interval={INTERVAL}", "checkpoint.keep=2", "checkpoint.async=false",
        "checkpoint.journal=async", "checkpoint.journal_share=1", "deterministic=true",
        "metrics.tensorboard=false"]


class JournalRepair(EndToEnd):
    def kill(self, process):
        """SIGKILL to every process of the job."""
        while left := marked_processes(self.mark):
            for pid, _ in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.poll()
        process.communicate(timeout=bound_s(60))

    @staticmethod
    def journal_of(run_dir):
        """{file: bytes} of the journal."""
        files = {}
        for path in glob.glob(f"{run_dir}/checkpoints/journal/*/*"):
            with open(path, "rb") as file:
                files[path] = file.read()
        return files

    def cut(self, run_dir):
        """A training that was killed between two checkpoints, with steps in its journal alone: gives the
        steps of its newest checkpoint and of its last record."""
        process = self.start(self.launch_command(2, run_dir, SETS))
        self.addCleanup(self.kill, process)
        self.await_step(run_dir, 2 * INTERVAL + 1, process)
        ranks = ranks_of(process.pid).values()

        def is_between():
            """Whether the ranks stand still there; they go on if not."""
            self.signal_all(ranks, signal.SIGSTOP)
            if max(self.losses(run_dir)) % INTERVAL in range(3, INTERVAL):
                return True
            self.signal_all(ranks, signal.SIGCONT)
            return False

        self.wait_until(is_between, "steps behind a checkpoint", process)
        self.kill(process)
        newest = max(glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"))
        return int(newest.rsplit("step-", 1)[1][:12]), max(self.losses(run_dir))

    def signal_all(self, pids, number):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def test_a_repair_takes_no_journalled_step_away(self):
        straight = self.train(2, "straight", SETS)
        losses, weights = self.losses(straight), self.model_files(straight)
        run_dir = f"{self.folder}/cut"
        saved, logged = self.cut(run_dir)
        self.assertLess(saved, logged - 2, "the journal holds no step of its own")
        # A save of the killed attempt leaves this behind.
        left = f"{run_dir}/checkpoints/step-{logged:012}.e1"
        os.makedirs(f"{left}/model")
        with open(f"{left}/model/model.safetensors", "wb") as file:
            file.write(b"half")
        journal = self.journal_of(run_dir)
        self.assertTrue(journal)
        tries = []

        def is_free():  # The killed launcher's ranks end a moment after it.
            tries.append(self.run_program([f"{BIN}/dtrain", "checkpoint", "repair", run_dir]))
            return tries[-1].code != 75

        self.wait_until(is_free, "the ranks let go of the checkpoints")
        repaired = tries[-1]
        self.assertEqual(repaired.code, 0, repaired.output)
        self.assertFalse(os.path.exists(left), repaired.output)
        self.assertTrue(os.path.exists(f"{run_dir}/checkpoints/epochs/E00000002"), "it fenced nothing")
        self.assertEqual(self.journal_of(run_dir), journal)
        before = len(self.records(run_dir))
        self.train(2, "cut", SETS)
        after = self.records(run_dir)[before:]
        [restored] = [record["restored"] for record in after if "restored" in record]
        self.assertGreaterEqual(restored, logged - 2)
        self.assertEqual({r["step"]: r["m"]["train/loss"] for r in after if r["kind"] == "step"},
                         {step: loss for step, loss in losses.items() if step > restored})
        self.assertEqual(self.model_files(run_dir), weights)


if __name__ == "__main__":
    end_to_end.main()
