"""A run directory that another launch uses or has used: two jobs that write to one, and a launch that is
refused beside the logs of the run before."""
import glob
import os
import signal

import end_to_end
from checkpoint_kill_test import Tail
from end_to_end import BIN, EndToEnd

# Long enough for another job to start meanwhile. What it begins from is kept.
ENDLESS = ["train_steps=1000000", "checkpoint.interval=50", "checkpoint.keep=1000"]
# The warning about a failed save; only jobs that go on have it.
PROMISES = ("was not saved", "the last good one", "restart 1 of")


class RunDirectory(EndToEnd):
    def test_a_job_whose_directory_another_one_takes_ends_for_good_without_a_promise_to_go_on(self):
        for name, sets in (("in-the-background", []), ("in-the-foreground", ["checkpoint.async=false"])):
            run_dir = f"{self.folder}/{name}"
            command = self.launch_command(2, run_dir, [*ENDLESS, *sets], extra=["--max-restarts", "3"])
            first = self.start(command)
            self.await_checkpoint(run_dir, first)
            refused = self.run_program(command)
            self.assertEqual(refused.code, 75, refused.output)
            self.assert_one_line(refused.output, "already runs in run directory", "dtrain stop", "--run-dir")
            # A launch on another host sees the files alone.
            second = self.start(command, {"XDG_RUNTIME_DIR": self.folder})
            result = self.finish(first)  # By itself, as soon as it saves.
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, "Another job writes to this run directory",
                                 "stop one of them", "--run-dir")
            for promise in PROMISES:
                self.assertNotIn(promise, result.output)
            # Before its first step a signal would end it with nothing to save.
            tail = Tail(f"{run_dir}/metrics/rank-0.jsonl")
            self.wait_until(lambda tail=tail: any(record["kind"] == "step" for record in tail.records()),
                            "the one that took it goes on", second)
            second.send_signal(signal.SIGTERM)
            result = self.finish(second)
            self.assertEqual(result.code, 143, result.output)
            self.assertNotIn("Another job", result.output)

    def test_fresh_holds_until_an_attempt_has_begun_beside_checkpoints_of_another_run(self):
        sets = ["deterministic=true", "train_steps=3", "checkpoint.interval=1",
                f"checkpoint.dir={self.folder}/elsewhere"]
        run_dir = self.train(2, "anew", sets)
        right = self.losses(run_dir)
        command = self.launch_command(2, run_dir, sets, extra=["--max-restarts", "1"])
        at = command.index(f"{BIN}/dtrain-gpt")
        # The first attempt ends before its ranks have looked for checkpoints.
        script = '[ "$DTRAIN_ATTEMPT" = 1 ] || exit 75; exec "$0" "$@"'
        result = self.run_program([*command[:at], "sh", "-c", script, *command[at:], "--fresh"])
        self.assertEqual(result.code, 0, result.output)
        self.assertIn("restart 1 of 1", result.output)
        self.assertEqual(self.losses(run_dir), right, "it has taken all steps anew")
        self.assertTrue(os.path.exists(f"{run_dir}.old-1/config.json"))

    def await_checkpoint(self, run_dir, process):
        """Waits until a first one is committed."""
        self.wait_until(lambda: glob.glob(f"{run_dir}/checkpoints/step-*/MANIFEST.json"), "a checkpoint",
                        process)

    @staticmethod
    def logs(run_dir):
        """{path: content}"""
        found = {}
        for path in glob.glob(f"{run_dir}/logs/attempt-*/*"):
            with open(path, "rb") as file:
                found[os.path.relpath(path, f"{run_dir}/logs")] = file.read()
        return found

    def test_a_refused_launch_leaves_the_logs_of_the_run_before(self):
        run_dir = self.train(2, "before", ["train_steps=2"])
        before = self.logs(run_dir)
        self.assertIn("attempt-0/rank-1.err", before)
        words = self.launch_command(2, run_dir, ["train_steps=3"])
        refused = (
            # By the ranks, which have logs of their own.
            ([*words, "--set", "seed=4"], "seed was 3, now 4"),
            # By the launcher, before a rank starts.
            ([*words, "--fresh", "--set", "sead=4"], "sead"),
            ([word if word != "2" else "0" for word in words], "--nproc-per-node"),
            ([word if word != f"{BIN}/dtrain-gpt" else f"{BIN}/no-such" for word in words], "no-such"))
        for number, (command, says) in enumerate(refused):
            result = self.run_program(command)
            self.assertEqual(result.code, 64, result.output)
            self.assertIn(says, result.output)
            now = self.logs(run_dir)
            self.assertEqual({path: now.get(path) for path in before}, before, says)
            self.assertFalse(os.path.exists(f"{run_dir}.old-1"), "it was not moved either")
            later = {path.split("/")[0] for path in set(now) - set(before)}
            self.assertEqual(later, {"attempt-1"}, f"refusal {number} has written elsewhere")
        self.train(2, "before", ["train_steps=3"])
        now = self.logs(run_dir)
        self.assertEqual({path: now.get(path) for path in before}, before, "a later run has its own")
        self.assertIn("attempt-2/rank-0.err", now)


if __name__ == "__main__":
    end_to_end.main()
