"""The tables of docs/PERFORMANCE.md that come from results of `./dev gpu run`. Each is a function of
{name of a file of one GPU: {"part", "results", ...}}.
"""
import goals
from page_text import table


def parts_of(files):
    """{part: results}"""
    return {facts["part"]: facts["results"] for facts in files.values()}


def gpu_goals(files):
    judged = {found["name"]: found for found in goals.judged(parts_of(files))}
    return table(("goal", "target", "measured", "verdict", "by"), [
        (goal.what, goal.wanted, f"{found['measured']:.4g}", found["verdict"], found["how"])
        for goal in goals.GOALS if (found := judged.get(goal.name))])


def gpu_trainings(files):
    """Tokens/s, MFU and where the time of a profiled step went."""
    kinds = ("GEMM", "attention", "memory-bound")
    rows = []
    for run in parts_of(files)["mfu"]:
        seconds = [run["breakdown"][kind]["s"] for kind in kinds]
        rows.append((run["name"], run["attention"], f"{run['tokens_per_s']:,.0f}",
                     f"{100 * run['mfu_strict']:.1f}",
                     *(f"{100 * s / sum(seconds):.0f}" for s in seconds)))
    return table(("training", "attention", "tokens/s", "strict MFU %", *(f"{kind} %" for kind in kinds)), rows)


TABLES = {"gpu-goals": gpu_goals, "gpu-trainings": gpu_trainings}
