"""Common parts of the end-to-end tests: a small corpus, a small model, and programs run to their end.

Every test here starts the real programs; results are read from the run directory, as a user would.
"""
import contextlib
import glob
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from processes import cpu_ticks, is_asleep, listening, marked_processes, pending_signals, segments_of
from time_bounds import bound_s

BIN = os.environ["DTRAIN_BIN"]
SOURCE = os.environ["DTRAIN_SOURCE"]
TIME_BOUND_S = bound_s(240)  # Generous: the machine may be busy.
END_BOUND_S = bound_s(20)  # For processes that end because their launcher was killed.
MARK = "TEST_OF_DTRAIN"  # In the environment of all that a test starts, and of what that starts.

SMALL = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 10,
    "seed": 3,
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW",
                  "params": {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosineLR",
                  "params": {"warmup_num_steps": 5, "total_num_steps": 60, "warmup_type": "linear",
                             "warmup_min_ratio": 0.1, "cos_min_ratio": 0.1}},
    "zero_optimization": {"reduce_bucket_size": 20000},
    "data": {"sequence_length": 32},
    "eval_interval": 0,
    "eval_batches": 2,
    "checkpoint": {"interval": 0, "keep": 3},
    "comm": {"timeout_s": 60},
    "model": {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
              "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32},
    "sample": {"bytes": 0},
}


# SMALL's model is so small that stage 3 would keep all of its parameters whole.
ALL_SHARED = "zero_optimization.stage3_param_persistence_threshold=0"


def fp32_tolerance(terms):
    """The largest difference of two trainings whose fp32 sums, of at most `terms` numbers, have another
    order: a share of the loss. Roundings have either sign, so a sum is off by more than
    6 sqrt(terms) 2^-24 of its magnitudes with a probability of 2 exp(-6^2 / 2) = 3e-8 at most
    (Higham and Mary 2019, theorem 2.4), and two sums differ by twice that. Steps do not multiply it:
    an update that is off by a share moves the loss by that share of what it is worth, and all
    updates together are worth less than the loss."""
    return 2 * 6 * math.sqrt(terms) * 2.0 ** -24


class Result:
    def __init__(self, code, output, seconds):
        self.code, self.output, self.seconds = code, output, seconds


class EndToEnd(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-e2e-")
        cls.folder = cls.folder_object.name
        subprocess.run([f"{BIN}/dtrain", "data", "prepare", "--out", f"{cls.folder}/data",
                        f"{SOURCE}/base", f"{SOURCE}/comm"], check=True, capture_output=True)
        cls.config = cls.write_config()

    @classmethod
    def tearDownClass(cls):
        cls.folder_object.cleanup()

    @property
    def mark(self):
        return f"{MARK}={self.id()}.{os.getpid()}"

    def environment(self, env):
        name, value = self.mark.split("=", 1)
        return {**os.environ, **(env or {}), name: value}

    def left_behind(self):
        """Remains of this test's programs: "pid command: segments, ports at which it listens"."""
        return [f"{pid} {command}: holds {segments_of(pid)}, listens at {listening(pid)}"
                for pid, command in marked_processes(self.mark)]

    def tearDown(self):
        """Checks that no process of the test is left, and so no segment and no listener."""
        end = time.monotonic() + END_BOUND_S
        while (left := self.left_behind()) and time.monotonic() < end:
            time.sleep(0.05)
        for pid, _ in marked_processes(self.mark):  # They must not disturb later tests.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.assertEqual(left, [], "left behind")

    def token(self):
        """A file with a job's key, for nodes that are started apart."""
        path = f"{self.folder}/token"
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write("5a" * 32)
        return path

    @classmethod
    def write_config(cls, name="config.json", **changes):
        config = json.loads(json.dumps(SMALL))
        config["data"]["train"] = [f"{cls.folder}/data/train.bin"]
        config["data"]["validation"] = [f"{cls.folder}/data/val.bin"]
        config.update(changes)
        path = f"{cls.folder}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)
        return path

    def run_program(self, command, env=None, timeout=TIME_BOUND_S):
        start = time.monotonic()
        process = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True, timeout=timeout,
                                 env=self.environment(env), check=False)
        return Result(process.returncode, process.stdout, time.monotonic() - start)

    def launch_command(self, ranks, run_dir, sets=(), config=None, program="dtrain-gpt", extra=()):
        words = [f"{BIN}/dtrain", "launch", "--nproc-per-node", str(ranks), "--run-dir", run_dir,
                 *extra, "--", f"{BIN}/{program}", config or self.config]
        for value in sets:
            words += ["--set", value]
        return words

    def train(self, ranks, name, sets=(), config=None, expect=0):
        """A run of `ranks` ranks in its own run directory; fails the test on another exit code."""
        run_dir = f"{self.folder}/{name}"
        result = self.run_program(self.launch_command(ranks, run_dir, sets, config))
        self.assertEqual(result.code, expect, result.output)
        return run_dir

    def start(self, command, env=None):
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, start_new_session=True,
                                env=self.environment(env))

    def wait_until(self, condition, what, process=None, bound=TIME_BOUND_S):
        """Waits until the condition holds. Fails the test with `what` if it does not within the bound, or
        if `process`, which is to bring it about, has ended before."""
        end = time.monotonic() + bound
        while not condition():
            if process is not None and process.poll() is not None and not condition():
                self.fail(f"ended with {process.returncode} before: {what}\n{process.stdout.read()}")
            self.assertLess(time.monotonic(), end, f"not within {bound} s: {what}")
            time.sleep(0.02)

    def await_port(self, port, process):
        """Waits until something on this host listens at `port`."""
        end = time.monotonic() + TIME_BOUND_S
        while time.monotonic() < end and process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        process.kill()
        self.fail(f"nothing listens at port {port}:\n{process.communicate()[0]}")

    def await_rest(self, process):
        """Waits until a program uses no CPU time and wants none, so that it only waits."""
        end, seen, same = time.monotonic() + TIME_BOUND_S, None, 0
        while same < 10 and time.monotonic() < end and process.poll() is None:
            ticks = cpu_ticks(process.pid)
            seen, same = ticks, same + 1 if ticks == seen and is_asleep(process.pid) else 0
            time.sleep(0.02)
        self.assertEqual(same, 10, "it is never at rest")

    def await_delivery(self, process, number):
        """Waits until a sent signal has reached its handler, because a second one that is sent before
        would be merged with it."""
        end = time.monotonic() + TIME_BOUND_S
        while number in pending_signals(process.pid) and time.monotonic() < end:
            time.sleep(0.005)

    @staticmethod
    def records(run_dir, rank=0):
        path = f"{run_dir}/metrics/rank-{rank}.jsonl"
        if not os.path.exists(path):
            return []
        with open(path, encoding="utf-8") as file:
            # All at once: a line that is read line by line may get its end while its beginning is left out.
            return [json.loads(line) for line in file.read().split("\n")[:-1]]

    def losses(self, run_dir):
        return {r["step"]: r["m"]["train/loss"] for r in self.records(run_dir)
                if r["kind"] == "step" and "train/loss" in r["m"]}

    def norms(self, run_dir):
        return [r["m"]["train/grad_norm"] for r in self.records(run_dir)
                if r["kind"] == "step" and "train/grad_norm" in r["m"]]

    def check_resume(self, name, sets):
        """Checks that four steps from the checkpoint of step 4 have the same bits as those of the run
        that was not interrupted."""
        sets = [*sets, "train_steps=8", "checkpoint.interval=4"]
        run_dir = self.train(2, name, sets)
        losses, weights = self.losses(run_dir), self.model_files(run_dir)
        self.assertEqual(len(losses), 8)
        [last] = glob.glob(f"{run_dir}/checkpoints/step-*8.*")
        shutil.rmtree(last)
        self.assertEqual(self.train(2, name, sets), run_dir)
        steps = [r["step"] for r in self.records(run_dir) if r["kind"] == "step"]
        self.assertEqual(steps, [1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8], name)
        self.assertEqual(self.losses(run_dir), losses, name)
        self.assertEqual(self.model_files(run_dir), weights, name)

    def await_step(self, run_dir, step, process):
        """Waits until rank 0 has logged `step`."""
        end = time.monotonic() + TIME_BOUND_S
        while time.monotonic() < end:
            if any(s >= step for s in self.losses(run_dir)):
                return
            if process.poll() is not None:
                self.fail(f"ended with {process.returncode} before step {step}:\n"
                          f"{process.stdout.read()}")
            time.sleep(0.02)
        process.kill()
        self.fail(f"step {step} was not reached in {TIME_BOUND_S} s")

    def finish(self, process):
        try:
            output, _ = process.communicate(timeout=TIME_BOUND_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.fail("did not end in time")
        return Result(process.returncode, output, 0)

    @staticmethod
    def model_files(run_dir):
        """The newest checkpoint's weights and shape: name -> bytes."""
        checkpoints = f"{run_dir}/checkpoints"
        newest = max(n for n in os.listdir(checkpoints) if n.startswith("step-"))
        model = f"{checkpoints}/{newest}/model"
        files = {}
        for path in sorted(glob.glob(f"{model}/config.json") + glob.glob(f"{model}/*.safetensors")):
            with open(path, "rb") as file:
                files[os.path.basename(path)] = file.read()
        return files

    def assert_one_line(self, output, *texts):
        """Checks that one line holds all the texts."""
        self.assertTrue(any(all(text in line for text in texts) for line in output.splitlines()),
                        f"no line has {texts}:\n{output}")

    def assert_close(self, ours, theirs, relative):
        self.assertEqual(sorted(ours), sorted(theirs))
        for step, value in ours.items():
            self.assertLessEqual(abs(value - theirs[step]), relative * abs(theirs[step]),
                                 f"step {step}: {value} against {theirs[step]}")


SKIPPED = 77  # ctest's SKIP_RETURN_CODE.


def main():
    """Exits with 77 if all tests that ran passed and some did not run: ctest shows that as skipped. A
    pattern for skips in the output would hide failures beside them."""
    program = unittest.main(exit=False, verbosity=2)
    if not program.result.wasSuccessful():
        sys.exit(1)
    if program.result.skipped:
        sys.exit(SKIPPED)
    if not program.result.testsRun:
        sys.exit("no test was run")
    sys.exit(0)
