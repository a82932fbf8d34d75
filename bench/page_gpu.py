"""The tables of docs/PERFORMANCE.md that come from results of `./dev gpu run`."""
import os
import sys

from page_text import table

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpu"))

import goals  # noqa: E402


def parts_of(files):
    """{part: results} of files of one GPU, such as {"nvidia-h100/mfu.json": {"part", "results", ...}}."""
    return {facts["part"]: facts["results"] for facts in files.values()}


def gpu_goals(files):
    results = parts_of(files)
    rows = [(found["what"], found["wanted"], found["measured"], found["verdict"], found["how"])
            for goal in goals.GOALS if (found := shown(goal, results))]
    return table(("goal", "target", "measured", "verdict", "by"), rows)


def shown(goal, results):
    """The goal's cells; None where it was not measured."""
    found = goal.judged(results)
    return found and {"what": goal.what, "wanted": goal.wanted, "measured": f"{found['measured']:.4g}",
                      "verdict": found["verdict"], "how": found["how"]}


def gpu_trainings(files):
    """Tokens/s, MFU and where the time of a profiled step went."""
    kinds = ("GEMM", "attention", "memory-bound")
    rows = []
    for run in parts_of(files)["mfu"]:
        shares = {kind: part["s"] for kind, part in run["breakdown"].items()}
        busy = sum(shares[kind] for kind in kinds)
        rows.append((run["name"], run["attention"], f"{run['tokens_per_s']:,.0f}",
                     f"{100 * run['mfu_strict']:.1f}", *(f"{100 * shares[kind] / busy:.0f}" for kind in kinds)))
    return table(("training", "attention", "tokens/s", "strict MFU %", *(f"{kind} %" for kind in kinds)), rows)


TABLES = {"gpu-goals": gpu_goals, "gpu-trainings": gpu_trainings}
