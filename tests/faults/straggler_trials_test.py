"""A real rank that gets less of its time, so that its own work takes a fifth longer, is named within 30 steps in
99 of 100 trials, and nobody is named beside that.

Long only. DTRAIN_STRAGGLER_TRIALS sets how many trials, `--seed N` when each begins.
"""
import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time

import checkpoint_kill_test
import end_to_end
from end_to_end import EndToEnd
from faults_test import ranks_of
from time_bounds import bound_s

SEED = checkpoint_kill_test.SEED
TRIALS = int(os.environ.get("DTRAIN_STRAGGLER_TRIALS", "100"))
NAMED_WITHIN_STEPS = 30
HEALTHY_STEPS = 150  # Between trials, which would be taken for the noise of the job if they were most of it.
FIRST_STEPS = 300
STANDS_S = 0.004  # At least; a sleep takes as long as the machine lets it.
BUSY_MAX = 0.1
RUNS_FOR_EACH = 5  # The rank has five of six parts of its time, so it is 20 % slower.


class Slowed(threading.Thread):
    """Use as a context: a process that stands still for a part of each moment."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over = pid, threading.Event()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.join()

    def run(self):
        with contextlib.suppress(ProcessLookupError):
            try:
                stood = STANDS_S
                while not self.over.wait(RUNS_FOR_EACH * stood):
                    begin = time.monotonic()
                    os.kill(self.pid, signal.SIGSTOP)
                    self.over.wait(STANDS_S)
                    os.kill(self.pid, signal.SIGCONT)
                    stood = time.monotonic() - begin
            finally:
                os.kill(self.pid, signal.SIGCONT)


def busy_share(seconds=1.0):
    """The share of the CPUs' time that programs take now."""
    def look():
        with open("/proc/stat", encoding="ascii") as file:
            times = [int(word) for word in file.readline().split()[1:9]]
        return sum(times) - times[3] - times[4], sum(times)

    busy, whole = look()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.1)
    busy_later, whole_later = look()
    return (busy_later - busy) / max(1, whole_later - whole)


class Lines:
    """The JSON lines that a file gets, each once."""

    def __init__(self, path):
        self.path, self.at = path, 0

    def new(self):
        with contextlib.suppress(FileNotFoundError), open(self.path, "rb") as file:
            file.seek(self.at)
            text = file.read()
            whole = text[:text.rfind(b"\n") + 1]
            self.at += len(whole)
            return [json.loads(line) for line in whole.splitlines()]
        return []


class Trials(EndToEnd):
    def setUp(self):
        super().setUp()
        # Where all ranks wait for CPUs nobody is named, and the test would be of the other programs.
        if (share := busy_share()) > BUSY_MAX:
            self.skipTest(f"LOUD SKIP: other programs take {share:.0%} of the CPUs; start it on a quiet machine")
        self.run_dir = f"{self.folder}/stragglers"
        # Steps of more than 40 ms, so that the rank stands still for a part of each.
        sets = ["train_steps=100000000", "train_batch_size=384", "metrics.tensorboard=false"]
        with open(f"{self.folder}/said", "w", encoding="utf-8") as said:
            self.job = subprocess.Popen(self.launch_command(2, self.run_dir, sets), stdin=subprocess.DEVNULL,
                                        stdout=said, stderr=subprocess.STDOUT, env=self.environment(None))
        self.addCleanup(self.job.wait)
        self.addCleanup(self.job.kill)
        self.steps, self.events = Lines(f"{self.run_dir}/metrics/rank-0.jsonl"), Lines(f"{self.run_dir}/events.jsonl")
        self.last = 0

    def tearDown(self):
        self.doCleanups()  # Before the look at what is left behind.
        super().tearDown()

    def step(self):
        self.last = max([self.last, *(line["step"] for line in self.steps.new() if line["kind"] == "step")])
        return self.last

    def await_step(self, step):
        """Lets the job take its steps up to this one; gives the stragglers that were named."""
        named, end = [], time.monotonic() + bound_s(300)
        while self.step() < step:
            self.assertIsNone(self.job.poll(), "the job has ended")
            self.assertLess(time.monotonic(), end, f"no step {step}")
            time.sleep(0.02)
            named += [event for event in self.events.new() if event["event"] == "straggler"]
        return named + [event for event in self.events.new() if event["event"] == "straggler"]

    def test_a_rank_that_is_a_fifth_slower_is_named_within_thirty_steps(self):
        draw = random.Random(SEED)
        wrong = self.await_step(FIRST_STEPS)
        ranks, missed, slow = ranks_of(self.job.pid), [], None
        for trial in range(TRIALS):
            named = self.await_step(self.last + HEALTHY_STEPS + draw.randrange(10))
            wrong += [event for event in named if event["rank"] != slow]  # The last one may be named late.
            slow, begin = draw.randrange(2), self.last
            with Slowed(ranks[slow]):
                # Its beats come a little later than its steps.
                named = self.await_step(begin + NAMED_WITHIN_STEPS + 10)
            right = [event for event in named if event["rank"] == slow
                     and event["last_step"] <= begin + NAMED_WITHIN_STEPS]
            missed += [] if right else [(trial, slow, begin, named)]
            wrong += [event for event in named if event["rank"] != slow]
        print(f"--seed {SEED}: {TRIALS - len(missed)} of {TRIALS} named within {NAMED_WITHIN_STEPS} steps, "
              f"{len(wrong)} named who were not slow", flush=True)
        print("figures", json.dumps({"trials": TRIALS, "named": TRIALS - len(missed), "named_wrongly": len(wrong)}),
              flush=True)
        self.assertLessEqual(len(missed), TRIALS / 100, missed)
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    end_to_end.main()
