"""The results of ./dev gpu run as Markdown: a page for each GPU, and bench/results/GPU.md over all.

Every figure stands in the JSON files beside the page, and the page says what was not measured.
`summary.py RESULTS` writes the pages of the folders in RESULTS and GPU.md anew.
"""
import json
import os
import sys

from goals import GOALS, NOT_YET
from report import write_text
from short_run_lines import short_run_lines
from tables import table
from training_lines import mfu_lines

PARTS = ("tests", "short_run", "kernels", "comm", "kernel_peers", "mfu", "mfu_peers")


def read(folder, part):
    """The part's file; None when there is none, or one of a CPU's benchmark."""
    try:
        with open(f"{folder}/{part}.json", encoding="utf-8") as file:
            facts = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return facts if "gpu" in facts else None


def results_of(folder):
    """{part: its results}, of those that have a file."""
    return {part: facts["results"] for part in PARTS if (facts := read(folder, part))}


def tests_lines(tests):
    states = [test["state"] for test in tests]
    count = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return [f"Tests: {count}.", "", *table(("test", "state", "s"), [
        (test["name"], test["state"], f"{test['s']:.1f}") for test in tests])]


def peer_ratios(peers):
    """(ways that were measured, a function of a kernel's name and us that gives a cell for each)."""
    peer_us = {(row["name"], row["way"]): row.get("us") for row in (peers or {}).get("results", [])}
    ways = [way for way in ("eager", "compile", "liger") if any(key[1] == way for key in peer_us)]

    def ratios(name, us):
        others = [peer_us.get((name, way)) for way in ways]
        return [f"{other / us:.2f}" if other else "-" for other in others]
    return ways, ratios


def product_lines(products, ways, ratios):
    if "results" not in products:
        return [f"Products: {products.get('error', 'no result')}."]
    return [f"Products of cublasLt, {products['tokens']} tokens, beside its best plain one, "
            f"{products['best']}.", "", *table(("product", "us", "TFLOP/s", "% of the best", *ways), [
                (row["name"], f"{row['us']:.1f}", f"{row['tflops']:.1f}",
                 f"{100 * row['best_fraction']:.1f}", *ratios(row["name"], row["us"]))
                for row in products["results"]])]


def kernel_lines(kernels, peers):
    if "results" not in kernels:
        return [f"Kernels: {kernels.get('error', 'no result')}."]
    ways, ratios = peer_ratios(peers)
    rows = [(row["name"], f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}",
             f"{100 * row['copy_fraction']:.1f}", row["verdict"],
             *ratios(row["name"], row["us"])) for row in kernels["results"]]
    versions = ", ".join(f"{name} {version}" for name, version in (peers or {}).get("peers", {}).items())
    lines = [f"Kernels, {kernels['elements']} elements a stream; peers: {versions or 'none there'}; "
             "the last columns are how many times as long they take.", "",
             *table(("kernel", "us", "GB/s", "% of copy", "goal", *ways), rows)]
    if "products" in kernels:
        lines += ["", *product_lines(kernels["products"], ways, ratios)]
    return lines


def comm_lines(runs):
    rows = []
    for run in runs:
        name = f"{run['backend']}, {run['ranks']} ranks"
        largest = {row["collective"]: row for row in run.get("rows", [])}  # Sizes grow.
        rows += [(f"{row['collective']}, {name}", str(row["size"]), f"{time['time_us']:.0f}",
                  f"{time['algbw_gb_s']:.1f}", f"{time['busbw_gb_s']:.1f}",
                  f"{100 * time['of_limit']:.0f} of {row['limit']}")
                 for row in largest.values() if row["collective"] != "barrier"
                 for time in [row["in_place"] or row["out_of_place"]]]
        if not largest:
            rows.append((name, run.get("error", "no result"), "-", "-", "-", "-"))
    return ["Collectives of the largest size, in place where they can be; one rank alone has no bus.",
            "", *table(("collective", "B", "us", "algbw GB/s", "busbw GB/s", "% of limit"), rows)]


def goal_lines(results):
    def row(goal):
        found = goal.judged(results)
        if found is None:
            return (goal.what, goal.wanted, NOT_YET, "-", "-")
        return (goal.what, goal.wanted, f"{found['measured']:.4g}", found["verdict"], found["how"])

    return ["Goals:", "", *table(("goal", "target", "measured", "verdict", "by"),
                                 [row(goal) for goal in GOALS])]


def stopped_lines(folder):
    """A line for each part that was not started."""
    stopped = (read(folder, "stopped") or {"results": []})["results"]
    lines = [f"- {row['part']} not started: {row['why']}" for row in stopped]
    return ["**Stopped early**; `run --keep-going` takes these parts all the same:", "", *lines,
            ""] if lines else []


def page(folder):
    """None: the folder has no GPU's results."""
    known = next((facts for part in PARTS if (facts := read(folder, part))), None)
    if known is None:
        return None
    results = results_of(folder)
    marks = known.get("marks", [])
    lines = [f"# {known['gpu']}", "", f"Driver {known['driver']}, {known['memory']}; "
             f"{known.get('date') or 'no date'}, commit {known.get('commit') or 'not known'}. "
             "`./dev gpu pack`, then `run` on that machine."
             + (f" **Marked:** {'; '.join(marks)}." if marks else ""), "", *stopped_lines(folder),
             *goal_lines(results), ""]
    for part, write in (("tests", lambda: tests_lines(results["tests"])),
                        ("short_run", lambda: short_run_lines(results["short_run"])),
                        ("kernels", lambda: kernel_lines(results["kernels"],
                                                         results.get("kernel_peers"))),
                        ("comm", lambda: comm_lines(results["comm"])),
                        ("mfu", lambda: mfu_lines(results["mfu"], results.get("mfu_peers")))):
        lines += write() if results.get(part) else [f"{part}: {NOT_YET}."]
        lines.append("")
    return "\n".join(lines)


def write_summary(folder):
    """Writes the folder's page and the overview beside it; gives the page."""
    text = page(folder)
    if text is None:
        return "nothing was measured"
    write_text(f"{folder}/SUMMARY.md", text)
    write_overview(os.path.dirname(os.path.abspath(folder)))
    return text


def overview(results):
    """GPU.md: the goals, and what each GPU that has a page made of them."""
    names = sorted(name for name in os.listdir(results) if page(f"{results}/{name}"))

    def cell(goal, name):
        found = goal.judged(results_of(f"{results}/{name}"))
        return f"{found['measured']:.4g} ({found['verdict']})" if found else NOT_YET

    lines = ["# GPU figures", "", "Made by `./dev gpu run`; `./dev gpu pack` makes what a machine with a "
             "GPU needs for it.", "", *table(("goal", "target", *(names or ["measured"])), [
                 (goal.what, goal.wanted, *([cell(goal, name) for name in names] or [NOT_YET]))
                 for goal in GOALS])]
    if names:
        lines += ["", *(f"- [{name}]({name}/SUMMARY.md)" for name in names)]
    return "\n".join([*lines, ""])


def write_overview(results):
    write_text(f"{results}/GPU.md", overview(results))


def main(results):
    for name in sorted(os.listdir(results)):
        if page(f"{results}/{name}"):
            write_summary(f"{results}/{name}")
    write_overview(results)


if __name__ == "__main__":
    main(sys.argv[1])
