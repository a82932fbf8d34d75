"""The short run of a GPU as Markdown: what agreed and what did not, time and memory beside the
plan, and what the programs warned of."""
from tables import table


def gigabytes(number):
    return "-" if number is None else f"{number / 1e9:.2f}"


def run_row(row, plan_bytes):
    on_cpu = row["name"] == "cpu"
    losses = row["losses"]
    return (row["name"], row.get("error") or str(len(losses)),
            f"{losses[0]:.4f}" if losses else "-", f"{losses[-1]:.4f}" if losses else "-",
            f"{1000 * row['step_s']:.2f}" if row["step_s"] else "-", str(row["graphs"]),
            gigabytes(row["card_rise_bytes"]), gigabytes(row["engine_bytes"]),
            "-" if on_cpu else gigabytes(plan_bytes))


def warning_lines(runs):
    said = {}
    for row in runs:
        for warning in row["warnings"]:
            said.setdefault(warning, []).append(row["name"])
    if not said:
        return ["The programs of the short run warned of nothing."]
    return ["Warnings of the short run:", "",
            *(f"- {', '.join(names)}: {warning}" for warning, names in said.items())]


def short_run_lines(result):
    """`result`: what short_run.ShortRun gives."""
    problems = [f"- **wrong**: {problem}" for problem in result["problems"]]
    sentences = [f"- {sentence}" for sentence in result["compared"]]
    return ["Short run of a small GPT: times are medians of steps in which graphs are launched. The "
            "card's memory is by nvidia-smi, with CUDA's context and LibTorch's cache; the engine's is "
            "what it counts itself; the plan is `dtrain plan`'s.", "", *problems, *sentences, "",
            *table(("run", "steps", "first loss", "last loss", "ms a step", "graphs", "card's memory GB",
                    "engine's GB", "plan GB"), [run_row(row, result["plan_bytes"])
                                                for row in result["runs"]]),
            "", *warning_lines(result["runs"])]
