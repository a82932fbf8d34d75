"""The results of ./dev gpu run as Markdown: a page for each GPU, and bench/results/GPU.md over all.

Every figure stands in the JSON files beside the page; what was not measured is said, never left
out. As a program: `summary.py RESULTS` writes GPU.md from the folders in RESULTS.
"""
import json
import os
import sys

NOT_YET = "not yet measured on a GPU"
PARTS = ("tests", "kernels", "comm", "kernel_peers", "mfu", "mfu_peers", "goals")


def read(folder, part):
    """The part's file; None when there is none, or one of a CPU's benchmark."""
    try:
        with open(f"{folder}/{part}.json", encoding="utf-8") as file:
            facts = json.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return facts if "gpu" in facts else None


def table(head, rows):
    """Lines of a Markdown table; cells are texts."""
    return [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}",
            *(f"| {' | '.join(row)} |" for row in rows)]


def tests_lines(tests):
    states = [test["state"] for test in tests]
    count = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return [f"Tests: {count}.", "", *table(("test", "state", "s"), [
        (test["name"], test["state"], f"{test['s']:.1f}") for test in tests])]


def kernel_lines(kernels, peers):
    if "results" not in kernels:
        return [f"Kernels: {kernels.get('error', 'no result')}."]
    peer_us = {(row["name"], row["way"]): row.get("us") for row in (peers or {}).get("results", [])}
    ways = [way for way in ("eager", "compile", "liger") if any(key[1] == way for key in peer_us)]

    def ratio(name, us, way):
        other = peer_us.get((name, way))
        return f"{other / us:.2f}" if other else "-"

    rows = [(row["name"], f"{row['us']:.1f}", f"{row['gb_per_s']:.0f}",
             f"{100 * row['copy_fraction']:.1f}", "ok" if row["ok"] else "short",
             *(ratio(row["name"], row["us"], way) for way in ways)) for row in kernels["results"]]
    versions = ", ".join(f"{name} {version}" for name, version in (peers or {}).get("peers", {}).items())
    return [f"Kernels, {kernels['elements']} elements a stream; peers: {versions or 'none there'}; "
            "the last columns are how many times as long they take.", "",
            *table(("kernel", "us", "GB/s", "% of copy", "goal", *ways), rows)]


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


def mfu_lines(runs, peers):
    rows = []
    for run in runs:
        name = ", ".join([run["model"], *(run[key] for key, usual in (("dtype", "bf16"), (
            "attention", "flash")) if run.get(key, usual) != usual)])
        if "mfu_strict" not in run:
            why = run.get("skipped") or run.get("error", "no result")
            rows.append((name, why, "-", "-", "-", "-", "-"))
            continue
        speeds = {peer["way"]: peer.get("tokens_per_s") for peer in peers or []
                  if peer["model"] == run["model"]}
        rows.append((name, f"{run['tokens_per_s']:.0f}", f"{100 * run['mfu_strict']:.1f}",
                     f"{100 * run['mfu_palm']:.1f}", f"{100 * run['gemm_fraction']:.1f}",
                     *(f"{run['tokens_per_s'] / speeds[way]:.2f}" if speeds.get(way) else "-"
                       for way in ("eager", "compile"))))
    with_fp8 = {run["model"] for run in runs if run.get("dtype") == "fp8"}
    both = [run for run in runs if "mfu_strict" in run and run["model"] in with_fp8]
    speeds = {run.get("dtype", "bf16"): run["tokens_per_s"]
              for run in sorted(both, key=lambda run: run.get("tokens_per_s", 0))}
    over = [f"FP8 over bf16, tokens/s: {speeds['fp8'] / speeds['bf16']:.2f} (goal 1.35)", ""] \
        if {"fp8", "bf16"} <= speeds.keys() else []
    return ["Training, 524,288 tokens a step, bf16 with fp32 masters (torch: one micro-batch a step, bf16 weights and states); the last columns are "
            "tokens/s over torch's. MFU of FP8 is of its own peak.", "", *over,
            *table(("model", "tokens/s", "strict MFU %", "PaLM MFU %", "% of GEMM rate", "x eager",
                    "x compile"), rows)]


def goal_lines(goals):
    return ["Goals:", "", *table(("goal", "measured", "target", "verdict"), [
        (goal["name"], f"{goal['measured']:.4g}", f"{goal['op']} {goal['target']:.4g}", goal["verdict"])
        for goal in goals])]


def page(folder):
    parts = {part: read(folder, part) for part in PARTS}
    known = next((facts for facts in parts.values() if facts), None)
    if known is None:
        return None
    results = {part: facts["results"] if facts else None for part, facts in parts.items()}
    lines = [f"# {known['gpu']}", "", f"Driver {known['driver']}, {known['memory']}. "
             "`./dev gpu pack`, then `run` on that machine.", ""]
    for part, write in (("tests", lambda: tests_lines(results["tests"])),
                        ("kernels", lambda: kernel_lines(results["kernels"], results["kernel_peers"])),
                        ("comm", lambda: comm_lines(results["comm"])),
                        ("mfu", lambda: mfu_lines(results["mfu"], results["mfu_peers"])),
                        ("goals", lambda: goal_lines(results["goals"]))):
        lines += write() if results[part] else [f"{part}: {NOT_YET}."]
        lines.append("")
    return "\n".join(lines)


def write_summary(folder):
    """Writes the folder's page and the overview beside it; gives the page."""
    text = page(folder)
    with open(f"{folder}/SUMMARY.md", "w", encoding="utf-8") as file:
        file.write(text)
    write_overview(os.path.dirname(os.path.abspath(folder)))
    return text


def overview(results):
    """GPU.md: which GPUs have a page."""
    pages = sorted(name for name in os.listdir(results) if page(f"{results}/{name}"))
    lines = ["# GPU figures", "", "Made by `./dev gpu run`; `./dev gpu pack` makes what a machine with a "
             "GPU needs for it.", ""]
    if not pages:
        lines += table(("what", "figure"), [(what, NOT_YET) for what in (
            "CUDA tests", "kernels, share of the copy rate", "collectives, share of a link", "strict MFU, bf16", "FP8 over bf16")])
    lines += [f"- [{name}]({name}/SUMMARY.md)" for name in pages]
    return "\n".join([*lines, ""])


def write_overview(results):
    with open(f"{results}/GPU.md", "w", encoding="utf-8") as file:
        file.write(overview(results))


if __name__ == "__main__":
    write_overview(sys.argv[1])
