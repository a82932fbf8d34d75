"""Processes of ranks that lost another one are used again in the next attempt (docs/FAILURES.md, Restarts)."""
import json
import os
import signal

import end_to_end
from end_to_end import EndToEnd
from faults_test import ranks_of

STEPS = 500
SAVED = ["deterministic=true", f"train_steps={STEPS}", "checkpoint.interval=5"]
RESTARTS = ["--max-restarts", "4"]


class Reuse(EndToEnd):
    """Trainings of two ranks, of which one is killed or stopped; all have the numbers of one without faults."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls("right_losses")
        cls.right = case.losses(case.train(2, "right", SAVED))

    def right_losses(self):
        """Gives setUpClass an instance, which runs the training without a fault."""

    def start_run(self, name, extra=(), sets=()):
        run_dir = f"{self.folder}/{name}"
        process = self.start(self.launch_command(2, run_dir, [*SAVED, *sets], extra=[*RESTARTS, *extra]))
        return run_dir, process

    @staticmethod
    def events(run_dir, kind):
        try:
            with open(f"{run_dir}/events.jsonl", encoding="utf-8") as file:
                lines = [json.loads(line) for line in file.read().split("\n")[:-1]]
        except OSError:
            return []
        return [line for line in lines if line["event"] == kind]

    def check_end(self, run_dir, process):
        result = self.finish(process)
        self.assertEqual(result.code, 0, result.output)
        steps = [r for r in self.records(run_dir) if r["kind"] == "step" and "train/loss" in r["m"]]
        self.assertEqual({r["step"] for r in steps}, set(self.right))
        for record in steps:  # Also those that were taken before a fault, and are taken again.
            self.assertEqual(record["m"]["train/loss"], self.right[record["step"]], record["step"])
        return steps

    def reused(self, run_dir):
        return [(event["rank"], event["pid"]) for event in self.events(run_dir, "reuse")]

    def test_the_survivor_of_a_killed_rank_goes_on_in_its_process_again_and_again(self):
        run_dir, process = self.start_run("killed")
        kills = []
        for step in (12, 150):
            self.await_step(run_dir, step, process)
            pids = ranks_of(process.pid)
            os.kill(pids[1], signal.SIGKILL)
            kills += self.await_kills(run_dir, process, len(kills) + 1)
            self.wait_until(lambda: len(self.reused(run_dir)) == len(kills), "the survivor is reused", process)
            self.assertEqual(self.reused(run_dir)[-1], (0, pids[0]))
        steps = self.check_end(run_dir, process)
        self.assertEqual(len({pid for _, pid in self.reused(run_dir)}), 1, "the same process each time")
        self.assertIn("rank-0.err", os.listdir(f"{run_dir}/logs/attempt-2"))
        for kill in kills:
            again = min(r["ts"] for r in steps if r["ts"] > kill["ts"])
            print(f"{again - kill['ts']:.3f} s from a killed rank to the next right step, survivor reused")

    def await_kills(self, run_dir, process, count):
        """The ends by SIGKILL so far, of which the last alone is given."""
        def kills():
            return [e for e in self.events(run_dir, "end") if e["signal"] == signal.SIGKILL]
        self.wait_until(lambda: len(kills()) >= count, f"{count} killed ranks are seen", process)
        return kills()[-1:]

    def test_the_survivor_of_a_stopped_rank_is_reused_and_the_stopped_one_is_killed(self):
        run_dir, process = self.start_run("stopped")
        self.await_step(run_dir, 30, process)
        pids = ranks_of(process.pid)
        os.kill(pids[1], signal.SIGSTOP)
        self.wait_until(lambda: self.reused(run_dir), "the survivor is reused", process)
        self.assertEqual(self.reused(run_dir), [(0, pids[0])])
        self.assertFalse(os.path.exists(f"/proc/{pids[1]}"))
        self.check_end(run_dir, process)

    def test_a_survivor_that_is_killed_too_is_replaced(self):
        run_dir, process = self.start_run("both")
        self.await_step(run_dir, 12, process)
        pids = ranks_of(process.pid)
        os.kill(pids[1], signal.SIGKILL)
        self.wait_until(lambda: self.reused(run_dir), "the survivor is reused", process)
        os.kill(pids[0], signal.SIGKILL)
        self.check_end(run_dir, process)

    def test_without_reuse_all_processes_are_new(self):
        run_dir, process = self.start_run("anew", extra=["--no-reuse"])
        self.await_step(run_dir, 12, process)
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        self.check_end(run_dir, process)
        self.assertEqual(self.reused(run_dir), [])
        self.assertEqual([e["rank"] for e in self.events(run_dir, "spawn")], [0, 1, 0, 1])

    def test_a_process_in_reserve_takes_the_place_of_a_killed_rank(self):
        run_dir, process = self.start_run("reserve", extra=["--reserve"], sets=["comm.hang_timeout_s=0"])
        self.wait_until(lambda: any(record.get("durable") for record in self.records(run_dir)), "a checkpoint", process)
        pids = ranks_of(process.pid)
        os.kill(pids[1], signal.SIGSTOP)  # So that the training is not over before that process is ready.
        self.wait_until(lambda: self.events(run_dir, "reserve"), "a process waits in reserve", process)
        [waits] = [event["pid"] for event in self.events(run_dir, "reserve")]
        self.assertEqual(ranks_of(process.pid), pids, "it is no rank")
        self.assertNotIn(waits, pids.values())
        os.kill(pids[1], signal.SIGKILL)
        [kill] = self.await_kills(run_dir, process, 1)
        steps = self.check_end(run_dir, process)
        self.assertEqual([(e["rank"], e["pid"]) for e in self.events(run_dir, "reserve_taken")], [(1, waits)])
        self.assertEqual(self.reused(run_dir), [(0, pids[0])])
        self.assertEqual([e["rank"] for e in self.events(run_dir, "spawn")], [0, 1], "no other was started")
        self.assertIn("rank-1.err", os.listdir(f"{run_dir}/logs/attempt-1"))
        again = min(r["ts"] for r in steps if r["ts"] > kill["ts"] and r["attempt"] == 1)
        print(f"{again - kill['ts']:.3f} s from a killed rank to the next right step, a process in reserve")

    def test_sigterm_while_a_survivor_waits_ends_it_with_the_job(self):
        # Without a checkpoint the launcher waits for a second, and the survivor with it.
        run_dir, process = self.start_run("waits", sets=["checkpoint.interval=0", "train_steps=100000"])
        self.await_step(run_dir, 5, process)
        survivor = ranks_of(process.pid)[0]
        os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
        self.wait_until(lambda: self.events(run_dir, "restart"), "the restart is told", process)
        self.assertEqual([e["pid"] for e in self.events(run_dir, "end") if e["kept"]], [survivor])
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, 143, result.output)
        self.assertFalse(os.path.exists(f"/proc/{survivor}"))

    def test_a_survivor_of_a_job_that_is_not_restarted_is_ended(self):
        run_dir = f"{self.folder}/last"
        process = self.start(self.launch_command(
            2, run_dir, [*SAVED, "checkpoint.interval=0"], extra=["--max-restarts", "1"]))
        for step in (5, 5):
            kills = len([e for e in self.events(run_dir, "end") if e["signal"] == signal.SIGKILL])
            taken = len(self.records(run_dir))
            self.wait_until(lambda: len(self.records(run_dir)) > taken + step, "some steps", process)
            os.kill(ranks_of(process.pid)[1], signal.SIGKILL)
            self.await_kills(run_dir, process, kills + 1)
        result = self.finish(process)
        self.assertEqual(result.code, 137, result.output)
        self.assertIn("all 1 restarts of --max-restarts are used", result.output)


if __name__ == "__main__":
    end_to_end.main()
