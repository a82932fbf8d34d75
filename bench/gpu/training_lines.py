"""The trainings of a GPU as Markdown: what they reached, how each was taken, where a step's time
went, and torch's beside them with what was equal and what was not."""
from tables import table

# Facts in which two trainings may differ; a ratio is shown only if the first fact is equal.
COMPARED = ("tokens a step", "micro_batch", "sequence", "dtype", "gradient_clipping", "recompute",
            "optimizer_states", "rounding", "masters", "gradients", "loss", "attention", "call")


def is_measured(run):
    return "tokens_per_s" in run


def why_not(run):
    return run.get("skipped") or run.get("error", "no result")


def percent(share):
    return "-" if share is None else f"{100 * share:.1f}"


def gigabytes(run):
    """GB at the peak; "-" where a result has none."""
    peak = run.get("memory_peak_bytes")
    return "-" if peak is None else f"{peak / 1e9:.1f}"


def reached(run):
    """The row of a training's results."""
    if not is_measured(run):
        return (run["name"], why_not(run), *["-"] * 6)
    sol = run.get("speed_of_light_fraction", 0)
    return (run["name"], f"{run['tokens_per_s']:.0f}", percent(run["mfu_strict"]),
            percent(sol) if sol else "-", percent(run["mfu_palm"]), percent(run["hfu"]),
            percent(run["gemm_fraction"]), gigabytes(run))


def tokens_a_step(run):
    return int(run["micro_batch"] * run["accumulation"] * run["sequence"])


def batch(run):
    return (f"{tokens_a_step(run)} = {run['micro_batch']} x {run['sequence']:g} x "
            f"{run['accumulation']}")


def taken(run):
    """The row of a training's settings."""
    return (run["name"], batch(run), str(len(run["step_seconds"])),
            f"{run['optimizer_states']}, {run['rounding']} rounding", run["masters"],
            str(run["zero_stage"]), run["recompute"], f"{run['gradient_clipping']:g}",
            run["attention"], f"{run['peak_flops_per_s'] / 1e12:.1f} TFLOP/s, {run['peak_source']}",
            f"{run['versions']}; {run['call']}")


def parts_of_step(runs):
    """A table of the shares of a profiled step."""
    kinds = list(dict.fromkeys(kind for run in runs for kind in run["breakdown"]))
    return table(("training", *kinds), [
        (run["name"], *(percent(run["breakdown"][kind]["share"]) if kind in run["breakdown"] else "-"
                        for kind in kinds)) for run in runs])


def fact(run, key):
    return tokens_a_step(run) if key == "tokens a step" else run.get(key)


def compared(run, peer):
    """(texts of what is equal, texts of what is not: dtrain's, then torch's)."""
    equal, differing = [], []
    for key in COMPARED:
        ours, theirs = fact(run, key), fact(peer, key)
        name = key.replace("_", " ")
        if ours == theirs:
            equal.append(f"{name} {ours:g}" if isinstance(ours, (int, float)) else f"{name} {ours}")
        else:
            differing.append(f"{name} {ours}, {theirs}")
    return equal, differing


def beside(runs, peer):
    """dtrain's run that a peer is compared with: of the same model in bf16, nothing offloaded."""
    same = [run for run in runs if is_measured(run) and run["model"] == peer["model"]
            and run["dtype"] == "bf16" and run["masters"] == "fp32"]
    return max(same, key=lambda run: run["tokens_per_s"], default=None)


def peer_lines(runs, peers):
    rows, notes = [], []
    for peer in peers:
        run = beside(runs, peer) if is_measured(peer) else None
        if not is_measured(peer):
            rows.append((peer["name"], why_not(peer), "-", "-", "-"))
            continue
        figures = (peer["name"], f"{peer['tokens_per_s']:.0f}",
                   gigabytes(peer))
        if run is None:
            rows.append((*figures, "-", "dtrain's is not measured"))
        elif tokens_a_step(run) != tokens_a_step(peer):
            rows.append((*figures, "-", f"not compared: steps of {tokens_a_step(run)} and of "
                                        f"{tokens_a_step(peer)} tokens"))
        else:
            rows.append((*figures, f"{run['tokens_per_s'] / peer['tokens_per_s']:.2f}", run["name"]))
            equal, differing = compared(run, peer)
            notes.append(f"- {run['name']} and {peer['name']} ({peer['torch']}, transformers "
                         f"{peer['transformers']}): equal: {'; '.join(equal)}. "
                         f"Not equal (dtrain, torch): {'; '.join(differing) or 'nothing'}.")
    return ["torch's trainings; the ratio is dtrain's tokens/s over torch's.", "", *table(
        ("training", "tokens/s", "memory peak GB", "ratio", "of"), rows), "", *notes]


def mfu_lines(runs, peers):
    measured = [run for run in runs if is_measured(run)]
    lines = ["Training. MFU is strict and of the peak of the operands' type; SOL is the share of the "
             "time that each type's products would take at its own peak.", "", *table(
                 ("training", "tokens/s", "MFU %", "SOL %", "PaLM-style MFU %", "HFU %",
                  "% of the GEMM rate", "memory peak GB"), [reached(run) for run in runs])]
    if measured:
        lines += ["", "How they were taken; a step's tokens are micro-batch x sequence x "
                  "accumulation, steps are whole measured ones.", "", *table(
                      ("training", "tokens a step", "steps", "AdamW's states", "masters", "ZeRO",
                       "recompute", "clip", "attention", "peak and its source", "versions; call"),
                      [taken(run) for run in measured]),
                  "", "Of a profiled step of a few micro-batches, %:", "", *parts_of_step(measured)]
    return lines + (["", *peer_lines(runs, peers)] if peers else [])
