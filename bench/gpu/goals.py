"""The goals of a GPU, and the verdict of results on each. `results`: {part: what its file holds}, absent
or None where a part was not measured.
"""
import dataclasses
import os
import sys
from typing import Callable, Optional

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import report  # noqa: E402

NOT_YET = "not yet measured on a GPU"


@dataclasses.dataclass(frozen=True)
class Goal:
    name: str
    what: str  # The goal's name for people.
    target: Optional[float]  # The least that meets it; None: the measured value is only shown.
    measure: Callable  # results -> (measured, how), or None.

    @property
    def wanted(self):
        return "none set" if self.target is None else f">= {self.target:g}"

    def judged(self, results):
        """{"name", "measured", "op", "target", "ok", "verdict", "how"}, or None: not measured."""
        found = self.measure(results)
        if found is None:
            return None
        measured, how = found
        if self.target is None:
            return {"name": self.name, "measured": measured, "op": None, "target": None, "ok": None,
                    "verdict": "-", "how": how}
        return {**report.judged([(self.name, measured, ">=", self.target)])[0], "how": how}


def tests_passed(results):
    """The share of passed tests among those that ran. A test that needs two GPUs is skipped on one."""
    states = [test["state"] for test in results.get("tests") or []]
    ran = [state for state in states if state != "skipped"]
    if not ran:
        return None
    skipped = len(states) - len(ran)
    return (100 * ran.count("passed") / len(ran),
            f"{ran.count('passed')} of {len(ran)}" + (f", {skipped} skipped" if skipped else ""))


def slowest_kernel(backward):
    def measure(results):
        rows = [row for row in (results.get("kernels") or {}).get("results", [])
                if ("backward" in row["name"]) == backward]
        if not rows:
            return None
        least = min(rows, key=lambda row: row["copy_fraction"])
        verdicts = [row["verdict"] for row in rows]
        unbound = verdicts.count(report.NO_BOUND)
        return (100 * least["copy_fraction"],
                f"the slowest, {least['name']}; {verdicts.count('ok')} of {len(rows)} meet it"
                + (f", {unbound} were faster than the copy: no bound" if unbound else ""))
    return measure


def collective(results):
    """The largest all-reduce between GPUs."""
    rows = [(row, run["ranks"]) for run in results.get("comm") or []
            if run["backend"] == "nccl" and run["ranks"] > 1
            for row in run.get("rows", []) if row["collective"] == "all_reduce"]
    if not rows:
        return None
    row, ranks = max(rows, key=lambda item: item[0]["size"])
    time = row["in_place"] or row["out_of_place"]
    return 100 * time["of_limit"], f"{row['size']} bytes, {ranks} GPUs, of {row['limit']}"


def fastest(results, model, dtype):
    """The fastest run, whatever its attention kernel and the place of its states."""
    runs = [run for run in results.get("mfu") or []
            if "mfu_strict" in run and (run["model"], run["dtype"]) == (model, dtype)]
    return max(runs, key=lambda run: run["tokens_per_s"], default=None)


def strict_mfu(model):
    def measure(results):
        run = fastest(results, model, "bf16")
        return run and (100 * run["mfu_strict"], run["name"])
    return measure


def fp8_over_bf16(model):
    def measure(results):
        fp8, bf16 = fastest(results, model, "fp8"), fastest(results, model, "bf16")
        return fp8 and bf16 and (fp8["tokens_per_s"] / bf16["tokens_per_s"],
                                 f"{fp8['name']} over {bf16['name']}")
    return measure


GOALS = (
    Goal("mfu.qwen2.5-7b", "strict MFU, Qwen2.5 7B, bf16, %", 60, strict_mfu("qwen2.5-7b")),
    Goal("mfu.qwen2.5-3b", "strict MFU, Qwen2.5 3B, bf16, %", 60, strict_mfu("qwen2.5-3b")),
    Goal("mfu.qwen2.5-1.5b", "strict MFU, Qwen2.5 1.5B, bf16, %", 55, strict_mfu("qwen2.5-1.5b")),
    Goal("fp8.qwen2.5-3b.over_bf16", "FP8 over bf16, tokens/s, Qwen2.5 3B", 1.35,
         fp8_over_bf16("qwen2.5-3b")),
    Goal("kernels.forward", "kernels forward, % of the copy rate", 95, slowest_kernel(False)),
    Goal("kernels.backward", "kernels backward, % of the copy rate", 90, slowest_kernel(True)),
    Goal("comm.all_reduce", "all-reduce between GPUs, bus rate, % of one link", None, collective),
    Goal("tests.cuda", "CUDA tests that pass, % of those that ran", 100, tests_passed))


def judged(results):
    """The verdicts on all goals that were measured."""
    return [found for goal in GOALS if (found := goal.judged(results))]


def print_measured(found):
    """Prints a line for each goal that has a target. `found`: the result of judged()."""
    report.print_goals([(goal["name"], goal["measured"], goal["op"], goal["target"])
                        for goal in found if goal["target"] is not None])
