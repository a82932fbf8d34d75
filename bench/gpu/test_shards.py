"""Runs a test program in several processes beside each other, by GoogleTest's shards.

Each test of the engine starts CUDA in a process of its own, which takes seconds of a GPU that is
lent for minutes. The shards share the GPU: these tests need little of it.
"""
import os
from concurrent.futures import ThreadPoolExecutor

SHARDS_MAX = 8
CORES_A_SHARD = 2
SKIPPED_CODE, SKIPPED_WORDS = 77, "SKIPPED: NOT TESTED ON"  # The project's way to say it.
KEPT, KEPT_OF_A_FAULT = 4000, 40_000
WORST_FIRST = ("failed", "cut off", "passed", "skipped")


def shards_here():
    return max(1, min(SHARDS_MAX, len(os.sched_getaffinity(0)) // CORES_A_SHARD))


def state_of(done):
    """The state of one process; `done` is run_command's answer."""
    if "[  FAILED  ]" in done["output"]:
        return "failed"
    if done["code"] is None:
        return "cut off"
    if done["code"] == SKIPPED_CODE or SKIPPED_WORDS in done["output"]:
        return "skipped"
    return "passed" if done["code"] == 0 else "failed"


def ran_nothing(done):
    """A program with fewer tests than shards leaves some without a test."""
    return done["code"] == 0 and "Running 0 tests" in done["output"]


def joined(parts):
    """{"state", "code", "s", "output"} of all processes: the worst state and its code, the longest time."""
    parts = [done for done in parts if not ran_nothing(done)] or parts
    rows = sorted(((WORST_FIRST.index(state_of(done)), i, done) for i, done in enumerate(parts)),
                  key=lambda row: row[:2])
    worst = rows[0][2]
    kept = [done["output"][-(KEPT if state_of(done) in ("passed", "skipped") else KEPT_OF_A_FAULT):]
            for _, _, done in rows]
    faults = sum(state_of(done) in ("failed", "cut off") for done in parts)
    return {"state": state_of(worst), "code": worst["code"], "s": max(done["s"] for done in parts),
            "output": "\n".join(kept[:max(1, faults)])}


def run(command, shards):
    """`command(variables)` runs the program with these variables added, and gives run_command's answer."""
    variables = [{"GTEST_TOTAL_SHARDS": str(shards), "GTEST_SHARD_INDEX": str(i)} for i in range(shards)]
    with ThreadPoolExecutor(shards) as threads:
        return joined(list(threads.map(command, variables)))
