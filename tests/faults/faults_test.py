"""Faults during long runs of the real programs: killed ranks, signals, full disks."""
import glob
import json
import os
import re
import signal
import subprocess
import time
import unittest

import end_to_end
import time_bounds
from end_to_end import BIN, SMALL, EndToEnd
from ports import free_port
from time_bounds import bound_s

LONG = ["train_steps=100000", "checkpoint.interval=0"]
LONG_BEFORE_S = 50  # comm.timeout_s is 60.
SHORT_WINDOWS = ["train_batch_size=2", "train_micro_batch_size_per_gpu=1", "data.sequence_length=8"]


def seconds_of(duration):
    """Seconds of what the launcher writes as 4m58.6s, 300ms or 0."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([0-9.]+)(ms|[hms])", duration))


def ranks_of(launcher_pid):
    """Pids of the launcher's rank processes, by rank."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                environment = dict(item.split(b"=", 1) for item in file.read().split(b"\0")
                                   if b"=" in item)
            pid = int(path.split("/")[2])
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                program = file.read().split(b"\0")[0]
            if program.endswith(b"dtrain-gpt") and b"RANK" in environment:
                parent = pid
                while parent > 1 and parent != launcher_pid:
                    with open(f"/proc/{parent}/stat", encoding="ascii") as file:
                        parent = int(file.read().rsplit(")", 1)[1].split()[1])
                if parent == launcher_pid:
                    found[int(environment[b"RANK"])] = pid
        except OSError:
            pass
    return found


class Failures(EndToEnd):
    def start_long_run(self, name, ranks=2, sets=()):
        run_dir = f"{self.folder}/{name}"
        process = self.start(self.launch_command(ranks, run_dir, [*LONG, *sets]))
        self.await_step(run_dir, 3, process)
        return run_dir, process

    def test_killing_the_launcher_leaves_nothing_of_what_was_seen_before(self):
        # Shows that the check at the end of every test can fail.
        _, process = self.start_long_run("orphans", sets=["comm.transport=shm"])
        left = " ".join(self.left_behind())
        pids = ranks_of(process.pid)
        self.assertEqual(sorted(pids), [0, 1])
        process.kill()
        process.wait()
        for pid in (process.pid, *pids.values()):
            self.assertIn(f"{pid} ", left)
        self.assertIn("memfd:dtrain:world.control", left)
        self.assertRegex(left, r"listens at \[\('\w+', \d+\)")
        end = time.monotonic() + bound_s(30)
        while any(os.path.exists(f"/proc/{p}") for p in pids.values()):
            self.assertLess(time.monotonic(), end, "ranks outlive their launcher")
            time.sleep(0.05)
        process.stdout.close()

    def test_kill_nine_of_a_rank_is_named_and_ends_the_job_with_137(self):
        _, process = self.start_long_run("killed")
        pids = ranks_of(process.pid)
        self.assertEqual(sorted(pids), [0, 1])
        start = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        result = self.finish(process)
        seconds = time.monotonic() - start
        self.assertEqual(result.code, 137, result.output)
        self.assertIn("rank 1", result.output)
        self.assertIn(str(pids[1]), result.output)
        self.assertIn("SIGKILL", result.output)
        self.assertFalse(os.path.exists(f"/proc/{pids[0]}"), "rank 0 is an orphan")
        self.assertLess(seconds, LONG_BEFORE_S)  # launch_test asserts the second.

    def test_a_stopped_rank_is_named_with_host_bucket_and_step_at_the_learnt_limit(self):
        run_dir = f"{self.folder}/stopped"
        process = self.start(self.launch_command(2, run_dir, [
            *LONG, "comm.timeout_min_s=2", "comm.hang_timeout_s=0"]))
        self.await_step(run_dir, 15, process)  # The first calls of a bucket may take 60 s.
        os.kill(ranks_of(process.pid)[1], signal.SIGSTOP)
        result = self.finish(process)
        self.assertEqual(result.code, 75, result.output)
        host = os.uname().nodename
        self.assertRegex(result.output, rf"waiting for rank 1 \(host {re.escape(host)}, pid \d+\)")
        self.assertRegex(result.output, r"(bucket \d+ \(\S+|step agreement).* in step \d+")
        self.assertRegex(result.output, r"not finished after \d")
        self.assertNotIn("not finished after 1m", result.output)
        with open(f"{run_dir}/flight/rank-0.json", encoding="utf-8") as file:
            last = json.load(file)["entries"][-1]
        self.assertIn("waiting for rank 1", json.dumps(last["dtrain"]["error"]))

    def test_the_launcher_finds_a_stopped_rank_and_leaves_a_report(self):
        run_dir = f"{self.folder}/hangs"
        process = self.start(self.launch_command(2, run_dir, LONG))
        self.await_step(run_dir, 30, process)
        pids = ranks_of(process.pid)
        os.kill(pids[1], signal.SIGSTOP)
        start = time.monotonic()
        result = self.finish(process)
        self.assertLess(time.monotonic() - start, LONG_BEFORE_S, "the limit of a small step is some seconds")
        self.assertEqual(result.code, 75, result.output)
        self.assertIn(f"the job hangs: rank 1 (host {os.uname().nodename}, pid {pids[1]})", result.output)
        self.assertIn("a signal has stopped its process", result.output)
        with open(f"{run_dir}/report.json", encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["kind"], report["first"]["rank"]), ("hang", 1))
        waits = report["ranks"][0]
        self.assertTrue(waits["stack"], "it was asked for and can write")
        self.assertTrue(waits["collectives"], "SIGUSR2 writes the flight record")
        self.assertGreater(waits["metrics"]["step"], 10)
        self.assertEqual([t["state"] for t in report["ranks"][1]["threads"]][:1], ["T"])

    @unittest.skipIf(time_bounds.FACTOR > 1, "a sanitizer ends a crash in a way of its own")
    def test_a_crash_is_in_the_report_with_the_stack_of_the_rank(self):
        run_dir, process = self.start_long_run("crashes")
        os.kill(ranks_of(process.pid)[1], signal.SIGSEGV)
        result = self.finish(process)
        self.assertEqual(result.code, 128 + signal.SIGSEGV, result.output)
        self.assertIn(f"report: {run_dir}/report.json", result.output)
        with open(f"{run_dir}/report.json", encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["kind"], report["first"]["signal"]), ("signal", "SIGSEGV"))
        self.assertEqual([e["role"] for e in report["ends"] if e["rank"] == 1], ["first"])
        self.assertTrue(report["ranks"][1]["stack"])

    def test_sigusr2_writes_the_flight_records_and_sigterm_saves_what_goes_on_to_the_bit(self):
        run_dir, process = self.start_long_run("recorded")
        for pid in ranks_of(process.pid).values():
            os.kill(pid, signal.SIGUSR2)
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while len(glob.glob(f"{run_dir}/flight/rank-?.json")) < 2:
            self.assertLess(time.monotonic(), end, "no flight records")
            time.sleep(0.05)
        self.await_step(run_dir, max(self.losses(run_dir)) + 3, process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, 143, result.output)
        self.run_program([f"{BIN}/dtrain", "trace", "merge", run_dir])
        with open(f"{run_dir}/flight/trace.json", encoding="utf-8") as file:
            calls = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X"]
        self.assertEqual({e["pid"] for e in calls}, {0, 1})
        self.assertTrue(any(e["name"].startswith("bucket 0 (") and e["args"]["step"] > 0
                            and e["args"]["bytes"] > 0 for e in calls), calls[:5])
        last = max(self.losses(run_dir)) + 3
        self.train(2, "recorded", [f"train_steps={last}", "checkpoint.interval=0"])
        straight = self.train(2, "not-terminated", [f"train_steps={last}"])
        self.assertEqual(self.losses(run_dir), self.losses(straight))

    def start_long_evaluation(self, name, program):
        """A run whose first step is done and whose evaluation takes minutes: every window of the
        training file, one at a time."""
        run_dir = f"{self.folder}/{name}"
        process = self.start(self.launch_command(
            2, run_dir, [*SHORT_WINDOWS, "eval_interval=1", "eval_batches=1000000", "train_steps=100",
                         f'data.validation=["{self.folder}/data/train.bin"]'], program=program))
        self.await_step(run_dir, 1, process)
        return run_dir, process

    def test_a_signal_in_an_evaluation_saves_and_the_same_command_goes_on_to_the_bit(self):
        for program, number, code in (("dtrain-gpt", signal.SIGINT, 130),
                                      ("dtrain-minimal", signal.SIGTERM, 143)):
            name = f"evaluates-{program}"
            run_dir, process = self.start_long_evaluation(name, program)
            start = time.monotonic()
            process.send_signal(number)
            result = self.finish(process)
            self.assertLess(time.monotonic() - start, bound_s(30), "the evaluation takes minutes")
            self.assertEqual(result.code, code, result.output)
            self.assertEqual(list(self.losses(run_dir)), [1], "it was not in the evaluation")
            self.assertEqual([r for r in self.records(run_dir) if r["kind"] == "eval"], [])
            self.assertTrue(glob.glob(f"{run_dir}/checkpoints/step-*1.e*/MANIFEST.json"))
            for folder in (name, f"{name}-straight"):
                result = self.run_program(self.launch_command(
                    2, f"{self.folder}/{folder}", [*SHORT_WINDOWS, "train_steps=3"], program=program))
                self.assertEqual(result.code, 0, result.output)
            self.assertEqual(self.losses(run_dir), self.losses(f"{run_dir}-straight"))

    def test_a_signal_in_a_step_of_minutes_saves_the_step_before(self):
        run_dir = self.train(2, "long-step", [*SHORT_WINDOWS, "train_steps=1"])
        command = self.launch_command(2, run_dir, [
            *SHORT_WINDOWS, "train_batch_size=400000", "train_steps=2"])
        process = self.start([*command, "--accept-change", "train_batch_size"])
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while sum(r.get("name") == "first_forward" for r in self.records(run_dir)) < 2:
            self.assertLess(time.monotonic(), end, "no step begins")
            time.sleep(0.05)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertLess(time.monotonic() - start, bound_s(30), "the step takes minutes")
        self.assertEqual(result.code, 143, result.output)
        self.assertIn("after step 1, which is saved", result.output)
        self.check_time_of_stop(result.output, step=1)
        self.assertEqual(list(self.losses(run_dir)), [1])
        command = self.launch_command(2, run_dir, [*SHORT_WINDOWS, "train_steps=3"])
        result = self.run_program([*command, "--accept-change", "train_batch_size"])
        self.assertEqual(result.code, 0, result.output)
        straight = self.train(2, "long-step-straight", [*SHORT_WINDOWS, "train_steps=3"])
        self.assertEqual(self.losses(run_dir), self.losses(straight))

    def check_time_of_stop(self, output, step):
        """The launcher names each stage of a stop once, and what is left of the node's one time for it."""
        before = 0
        for stage, what in ((f"step {step} is finished", "are left to save it"),
                            (f"step {step} is saved", "are left to close connections and to end"),
                            ("the ranks of this node have stopped", "were left")):
            found = re.findall(rf"^dtrain: {stage}, (\S+) after the signal; (\S+) of 5m {what}$", output,
                               re.MULTILINE)
            self.assertEqual(len(found), 1, output)
            taken, left = map(seconds_of, found[0])
            self.assertGreaterEqual(taken, before, output)
            self.assertAlmostEqual(taken + left, 300, places=3, msg=output)
            before = taken

    def test_a_second_ctrl_c_stops_at_once(self):
        # interop_train_command_test and terminal_test cover the first signal.
        _, process = self.start_long_run("interrupted-twice")
        pids = ranks_of(process.pid)
        for pid in pids.values():
            os.kill(pid, signal.SIGSTOP)  # A stopped rank cannot save, so only SIGKILL ends it.
        process.send_signal(signal.SIGINT)
        self.await_delivery(process, signal.SIGINT)
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, result.output)
        self.assertFalse([p for p in pids.values() if os.path.exists(f"/proc/{p}")])

    def test_a_rank_that_waits_for_others_ends_at_once_on_sigterm(self):
        token = f"{self.folder}/waiting.key"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("5a" * 32)
        port = free_port()
        process = self.start(
            [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/waiting"],
            env={"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DTRAIN_TOKEN_FILE": token})
        self.await_port(port, process)
        process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        result = self.finish(process)
        self.assertEqual(result.code, 75, result.output)
        self.assertIn("nothing to save", result.output)
        self.assertLess(time.monotonic() - start, LONG_BEFORE_S)

    def test_a_corrupted_checkpoint_is_named_and_the_one_before_is_used(self):
        run_dir = self.train(2, "corrupt", ["train_steps=6", "checkpoint.interval=3"])
        straight = self.losses(run_dir)
        newest = max(glob.glob(f"{run_dir}/checkpoints/step-*"))
        victim = glob.glob(f"{newest}/state/rank-1-*")[0]
        with open(victim, "r+b") as file:
            file.seek(os.path.getsize(victim) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 0x10]))
        result = self.run_program(self.launch_command(2, run_dir, ["train_steps=7"]))
        self.assertEqual(result.code, 0, result.output)
        logs = ""
        for path in glob.glob(f"{run_dir}/logs/*/rank-0.*"):
            with open(path, encoding="utf-8") as file:
                logs += file.read()
        self.assertIn(os.path.basename(victim), logs + result.output)
        self.assertIn("resumed from step 3", logs + result.output)
        steps = [r["step"] for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6, 4, 5, 6, 7])
        resumed = self.losses(run_dir)
        del resumed[7]
        self.assertEqual(resumed, straight)  # The last record of each step counts.

    def test_a_disk_that_fills_during_a_save_does_not_stop_training(self):
        mount = f"{self.folder}/small-disk"
        os.makedirs(mount)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1600k", "tmpfs", mount],
                                 capture_output=True, text=True, check=False)
        if mounted.returncode != 0:
            self.skipTest(f"LOUD SKIP: cannot mount a tmpfs here: {mounted.stderr.strip()}")
        try:
            run_dir = f"{self.folder}/full"
            sets = ["train_steps=9", "checkpoint.interval=3", f"checkpoint.dir={mount}/checkpoints"]
            self.train(2, "full", ["train_steps=3", *sets[1:]])
            first = glob.glob(f"{mount}/checkpoints/step-*/MANIFEST.json")
            self.assertEqual(len(first), 1)
            stat = os.statvfs(mount)
            free = stat.f_bavail * stat.f_frsize
            with open(f"{mount}/filler", "wb") as file:
                file.write(b"x" * max(0, free - 150_000))
            result = self.run_program(self.launch_command(2, run_dir, sets))
            self.assertEqual(max(self.losses(run_dir)), 9, "training went on")
            self.assertRegex(result.output, r"a checkpoint takes about 4\d\d kB, but \S+ has room for 1\d\d kB")
            errors = [r["error"] for r in self.records(run_dir) if r["kind"] == "ckpt" and "error" in r]
            self.assertTrue(errors)
            self.assertIn("No space left", errors[0])
            self.assertEqual(glob.glob(f"{mount}/checkpoints/step-*/MANIFEST.json"), first)
            self.assertEqual(result.code, 75, "the last step is not saved: " + result.output)
            os.remove(f"{mount}/filler")
            result = self.run_program(self.launch_command(2, run_dir, sets))
            self.assertEqual(result.code, 0, result.output)
        finally:
            subprocess.run(["umount", mount], check=False)


class Records(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.run_dir = None

    def recorded(self):
        """The run directory of a run that both tests of its records read."""
        if Records.run_dir is None:
            Records.run_dir = self.train(2, "records", ["train_steps=4", "eval_interval=2",
                                                    "checkpoint.interval=2", "checkpoint.async=false"])
        return Records.run_dir

    def test_the_run_directory_is_as_the_contract_says(self):
        run_dir = self.recorded()
        for path in ("config.json", "run.json", "metrics/rank-0.jsonl", "metrics/rank-1.jsonl",
                     "events.jsonl", "logs/attempt-0/rank-0.out", "logs/attempt-0/rank-1.err",
                     "checkpoints"):
            self.assertTrue(os.path.exists(f"{run_dir}/{path}"), path)
        with open(f"{run_dir}/run.json", encoding="utf-8") as file:
            run = json.load(file)
        for record in self.records(run_dir):
            self.assertEqual(record["v"], 1)
            self.assertEqual(record["run"], run["id"])
        steps = [r for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual([r["step"] for r in steps], [1, 2, 3, 4])
        for name in ("train/loss", "train/grad_norm", "train/lr", "perf/tokens_per_s",
                     "comm/exposed_ratio"):
            self.assertIn(name, steps[-1]["m"])
        tokens = SMALL["train_batch_size"] * SMALL["data"]["sequence_length"]  # Of both ranks together.
        for record in steps:
            numbers = record["m"]
            self.assertAlmostEqual(numbers["perf/tokens_per_s"] * numbers["time/step_s"] / tokens, 1, delta=1e-6)
            self.assertAlmostEqual(numbers["comm/exposed_ratio"] * numbers["time/step_s"],
                                   numbers["time/exposed_comm_s"], delta=1e-6)
            # The value is missing if a busy machine disturbed its divisor.
            self.assertLessEqual(numbers.get("perf/gemm_fraction", 0), 1)
        self.assertEqual([r["step"] for r in self.records(run_dir) if r["kind"] == "eval"], [2, 4])
        others = [r for r in self.records(run_dir, 1) if r["kind"] == "step"]
        self.assertNotIn("train/loss", others[-1]["m"])

    def test_every_step_says_where_its_time_went_and_a_save_how_long_it_took(self):
        phases = [f"time/{phase}_s"
                  for phase in ("data", "forward", "backward", "exposed_comm", "update")]
        run_dir = self.recorded()
        for rank in (0, 1):
            steps = [r for r in self.records(run_dir, rank) if r["kind"] == "step"]
            self.assertEqual([r["step"] for r in steps], [1, 2, 3, 4])
            for record in steps:
                numbers = record["m"]
                for phase in phases:
                    # Forward and backward are the time that is left without waiting.
                    self.assertGreaterEqual(numbers[phase], 0, phase)
                for phase in ("time/forward_s", "time/backward_s", "time/update_s"):
                    self.assertGreater(numbers[phase], 0, phase)
                # No time is counted twice, up to the rounding of sums of doubles.
                self.assertLessEqual(sum(numbers[phase] for phase in phases),
                                     numbers["time/step_s"] + 1e-6)
        saves = [r for r in self.records(run_dir) if r["kind"] == "ckpt"]
        self.assertEqual([r["step"] for r in saves], [2, 4])
        for record in saves:
            self.assertGreater(record["m"]["time/checkpoint_s"], 0)

    def test_a_finished_run_says_so_when_started_again(self):
        run_dir = self.train(1, "finished", ["train_steps=2"])
        before = self.losses(run_dir)
        self.train(1, "finished", ["train_steps=2"])
        self.assertEqual(self.losses(run_dir), before)


if __name__ == "__main__":
    end_to_end.main()
