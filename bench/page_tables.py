"""The tables of docs/PERFORMANCE.md. Each is a function of {name of a file: its results}."""
import statistics

import comm
import comm_tcp
import launch
import page_text
import step
import zero
from page_text import amount, bytes_of, cell_of, goal_named, minutes_text, only, percent, table, verdict_of
from rounds import ends_of


def build(files):
    rows = []
    for row in only(files)["rows"]:
        goal = minutes_text(row["goal_s"]) if "goal_s" in row else ""
        verdict = verdict_of(row["seconds"] <= row["goal_s"]) if goal else ""
        rows.append((row["what"], goal, minutes_text(row["seconds"]), verdict))
    return table(("what", "goal", "measured", ""), rows, "lrrl")


def train(files):
    found = only(files)
    loss, kill = goal_named(found, "train.validation_loss"), goal_named(found, "train.slowest_kill")
    last = max(step for seconds, step, _ in found["losses"] if seconds <= 180)
    rows = [(f"validation loss after {step} steps", f"{value:.3f} nats a byte, after {seconds:.0f} s",
             *(("below 2.4 within 180 s", cell_of(loss)) if step == last else ("", "")))
            for seconds, step, value in found["losses"]]
    kills = [1e3 * seconds for seconds in found["kills_s"]]
    rows.append((f"SIGKILL of a rank to the end of `dtrain launch`, {len(kills)} times",
                 f"{min(kills):.0f} to {max(kills):.0f} ms", "1,000 ms", cell_of(kill)))
    return table(("measured", "value", "goal", ""), rows)


def mfu(files):
    found = only(files)
    kinds = ("GEMM", "attention", "memory-bound", "communication exposed", "idle")
    shares = " / ".join(f"{100 * found['breakdown'][kind]['share']:.1f}" for kind in kinds)
    return table(("measured", "value"), [
        ("tokens/s", amount(found["tokens_per_s"])),
        ("arithmetic of the training, GFLOP/s",
         f"{found['mfu_strict'] * found['peak_flops_per_s'] * 1e-9:.1f}"),
        ("the fastest product of the same run, GFLOP/s", f"{found['gemm_flops_per_s'] * 1e-9:.1f}"),
        ("strict share", percent(found["mfu_strict"], 1)),
        ("PaLM style", percent(found["mfu_palm"], 1)),
        (f"of a step, %: {' / '.join(kinds)}", shares)])


def range_of(spread):
    """The ends of a spread, as "(low–high)"."""
    low, high = ends_of(spread)
    return f"({low:.2f}–{high:.2f})"


def step_speed(files):
    found = only(files)
    rows = []
    for row in found["speed"]:
        name = f"step.{row['model']}.{row['ranks']}"
        eager, compiled, outside = (goal_named(found, f"{name}.{of}") for of in (
            "vs_eager", "vs_compile", "outside"))
        speeds = [amount(statistics.median(r[way] for r in row["rounds"])) for way in step.WAYS]
        wait = row["trace"]["wait"]
        rows.append((
            f"{row['model']}, {row['ranks']} rank{'s' if row['ranks'] > 1 else ''}", *speeds,
            f"{row['f']:.3f}",
            f"{eager['measured']:.3f} {range_of(row['over_eager'])}", f"{eager['target']:.3f}",
            cell_of(eager),
            f"{compiled['measured']:.3f} {range_of(row['over_compile'])}: {cell_of(compiled)}",
            percent(outside["measured"], 1) + (f", of it {100 * wait:.1f} waiting" if wait > 0.001 else "")
            + f": {cell_of(outside)}"))
    few = "the range of the rounds" if "least" in found["speed"][0]["over_eager"] else \
        "the 10th and 90th percentile"
    return table(("", *step.WAYS, "f", f"x eager ({few})", "goal", "", "x compile (goal 1)",
                  "outside (goal 10 %)"), rows)


START = (("first_forward_s", "command to the first forward", "s", 2, "first_forward"),
         ("memory_before", "private memory before the first batch", "MB", 0, "memory_before"),
         ("memory_peak", "private memory at the steps' peak", "MB", 0, "memory_peak"))


def step_start(files):
    found = only(files)
    of_name = {row["name"]: row for row in found["start"]}
    rows = []
    for key, what, unit, digits, goal in START:
        row, judged = of_name[key], goal_named(found, f"step.{goal}")
        without = (f"{row['ddp_cpu']:,.{digits}f} {unit}", f"{row['ratio_cpu']:.3f}") \
            if "ddp_cpu" in row else ("not measured", "")
        rows.append((what, f"{row['dtrain']:,.{digits}f} {unit}", f"{row['ddp']:,.{digits}f} {unit}",
                     f"{row['ratio']:.3f}", *without, f"{judged['target']:.3g}", cell_of(judged)))
    for row in found["bookkeeping"]:
        judged = goal_named(found, f"step.bookkeeping_us_per_tensor_{row['tensors']}", whole=True)
        rows.append((f"bookkeeping, {row['tensors']:,} tensors", f"{row['us_per_tensor']:.2f} us a tensor",
                     "", "", "", "", f"{judged['target']:.1f} us", cell_of(judged)))
    return table(("", "dtrain", "torchrun + DDP, which maps CUDA's libraries", "ratio",
                  "torchrun + DDP without them", "ratio", "goal", ""), rows)


def comm_shm(files):
    found = only(files)
    rounds, rows = found["rounds"], []
    for size in sorted(rounds[0]["registered"]):
        micros = [amount(statistics.median(r[way][size] for r in rounds))
                  for way in ("registered", "plain", *comm.PEERS)]
        bound = goal_named(found, f"comm.shm_{comm.label_of(size)}_of_zero_copy_bound")
        rows.append((bytes_of(size), *micros,
                     *(amount(comm.median_against_best(rounds, size, comm.PEERS, ours))
                       for ours in ("plain", "registered")),
                     *(amount(comm.median_ratio(rounds, size, peer)) for peer in comm.PEERS),
                     f"{percent(bound['measured'])}: {cell_of(bound)}"))
    return table(("bytes", "registered", "plain", "Gloo", "OpenMPI", "DeepSpeed shm",
                  "plain x the best peer", "registered x the best peer", "registered x Gloo", "x OpenMPI",
                  "x DeepSpeed", "registered, of probe (goal 85 %)"), rows)


def micros_text(us):
    return f"{us / 1e3:.1f} ms" if us >= 2000 else f"{us:,.0f} us"


def tcp(files):
    found = only(files)
    goal, rows = goal_named(found, "comm.tcp_veth"), []
    rounds = found["rounds"]["veth"]
    for size in sorted(rounds[0]["dtrain"]):
        ratio = comm_tcp.ratio(rounds, size)
        rows.append((bytes_of(size), *(micros_text(statistics.median(r[way][size] for r in rounds))
                                       for way in ("dtrain", "gloo")), amount(ratio),
                     verdict_of(ratio >= goal["target"]) if size >= 64 << 10 else ""))
    return table(("bytes", "dtrain", "Gloo", "x Gloo", ""), rows)


def tcp_shaped(files):
    found = only(files)
    rounds, goal = found["rounds"]["gigabit"], goal_named(found, "comm.tcp_1Gbit")
    sizes = sorted(rounds[0]["dtrain"])
    return table(("bytes", "dtrain", "x Gloo", "of a plain stream (goal 97 % at 64 MiB)"), [
        (bytes_of(size), micros_text(statistics.median(r["dtrain"][size] for r in rounds)),
         f"{comm_tcp.ratio(rounds, size):.2f}", percent(comm_tcp.goodput(rounds, size), 1)
         + (f": {cell_of(goal)}" if size == sizes[-1] else "")) for size in sizes])


def roce(files):
    found = only(files)
    setups = found["setups"]
    where = {"alone": "one guest, shared device", "pair": "two guests as two hosts"}
    rows = []
    for i, line in enumerate(setups["alone"]["summary"]):
        name = f"{line['what']}, {bytes_of(line['bytes'])}"
        cells, targets = [], []
        for setup in where:
            row = setups[setup]["summary"][i]
            size = comm.label_of(row["bytes"])
            goal = goal_named(found, f"comm.roce_{setup}_{row['what']}_{size}_", missing=True)
            spread = f"({percent(row['share_least'])}–{percent(row['share_most'])})"
            cells += [f"{percent(row['share'])} {spread} of {row['ib_write_bw_mb_s']:.1f} MB/s", cell_of(goal)]
            targets.append(percent(goal["target"]) if goal else "")
        rows.append((name, *cells, targets[0]))
    return table(("of ib_write_bw", *(word for text in where.values() for word in (text, "")), "goal"), rows)


def overlap(files):
    found = only(files)
    rows = []
    for name, point in found["points"].items():
        s, goal = point["summary"], goal_named(found, f"overlap.{name}.")
        measured = f"{goal['measured']:.3f} of possible" if not s["hideable"] else \
            f"{percent(goal['measured'], 1)} exposed"
        rows.append((name, str(point["samples"]), f"{s['communication_s'] / s['backward_s']:.2f}",
                     f"{s['step_s'] * 1e3:,.0f} ms", f"{s['waited_of_last_s'] * 1e3:.0f} ms", measured,
                     f"{goal['target']:g}", cell_of(goal), f"{s['over_ddp']:.2f}"))
    return table(("point", "samples a step", "communication of backward", "step", "the last rank waits",
                  "measured", "goal", "", "DDP's step over it"), rows)


WAYS = {"ddp": "DDP", "deepspeed": "DeepSpeed", "fsdp2": "FSDP2, as stage", "dtrain": "dtrain, stage"}


def way_name(way):
    program, _, stage = way.partition("-")
    stage, tight, _ = stage.partition("-tight")
    return WAYS[program] + (f" {stage}" if stage else "") + (", one layer live" if tight else "")


def zero_speed(files):
    models = [row for row in only(files)["models"] if "tokens_per_s" in row]
    rows = []
    for way in models[0]["tokens_per_s"][0]:
        cells = []
        for row in models:
            rounds = row["tokens_per_s"]
            cells += [amount(statistics.median(r[way] for r in rounds)),
                      *(f"{zero.ratio(rounds, way, of):.2f}" for of in ("ddp", "dtrain-0"))]
        rows.append((way_name(way), *cells))
    head = [f"{row['model']}, {len(row['tokens_per_s'])} rounds" for row in models]
    return table(("", *(word for name in head for word in (name, "x DDP", "x stage 0"))), rows)


def compression(files):
    return table(("gradients as", "bytes a step and rank", "of fp32", "loss", "against fp32"), [
        (row["policy"], f"{row['bytes_a_step']:,.0f}", f"{row['bytes_ratio']:.3f}", f"{row['loss']:.4f}",
         f"{row['loss_difference']:+.4f}") for row in only(files)["rows"]])


ZERO_GOALS = {"stage0_vs_ddp": "stage 0 at least 1.0 x DDP",
              **{f"stage{n}_vs_best_peer": f"stage {n} at least 1.2 x the better peer" for n in (1, 2, 3)},
              "stage3_step_of_stage0": "a step of stage 3 at most 1.15 x stage 0's"}


def zero_goals(files):
    found = only(files)
    models = [row["model"] for row in found["models"] if "tokens_per_s" in row]
    rows = []
    for name, what in ZERO_GOALS.items():
        goals = [goal_named(found, f"zero.{model}.{name}") for model in models]
        rows.append((what, *(f"{goal['measured']:.3f}: {cell_of(goal)}" for goal in goals)))
    return table(("goal", *models), rows)


def zero_states(files):
    rows, models = [], [model for model in only(files)["models"] if "states" in model]
    for model in models:
        rows.append((model["model"], *(f"{row['measured'] * 1e-6:.1f} ({row['planned'] * 1e-6:.1f})"
                                       for row in model["states"])))
        rows.append(("ratio", *(f"{row['ratio']:.3f}: {verdict_of(abs(row['ratio'] - 1) <= 0.02)}"
                                for row in model["states"])))
    return table(("", *(f"stage {row['stage']}" for row in models[0]["states"])), rows)


OPTIMIZER = {"adamw.flat": "AdamW fp32, one flat tensor", "adamw.model": "AdamW fp32, {} tensors of a GPT",
             "mixed.flat": "mixed-precision update, flat", "mixed.model": "mixed-precision update, {} tensors"}


def optimizer(files):
    found = only(files)
    rows = []
    for key, what in OPTIMIZER.items():
        part = found["results"][key]
        rounds = part["rounds"]

        def cells(name):
            return (f"{1e3 * statistics.median(r[name] for r in rounds):.1f} ms",
                    f"{statistics.median(r['probe'] / r[name] for r in rounds):.2f}")

        own = goal_named(found, f"optimizer.{key}_time_of_probe", missing=True)
        rows.append((f"{what.format(part['tensors'])}: dtrain; {part['rounds_counted']} rounds count",
                     *cells("dtrain"), f"{own['measured']:.2f} of the probe's time" if own else "",
                     f"{own['target']}" if own else "", cell_of(own)))
        peers = {"torch-fused": "vs_torch_fused", "DeepSpeedCPUAdam": "vs_deepspeed"} \
            if key.startswith("adamw") else \
            {min(("torch-calls", "torch-scaled"), key=lambda name: statistics.median(
                r[name] for r in rounds)): "vs_best_torch_sequence"}
        for peer, of in peers.items():
            goal, spread = goal_named(found, f"optimizer.{key}_{of}"), part["faster_than"][peer]
            rows.append((peer, *cells(peer), f"{goal['measured']:.2f} {range_of(spread)} x as fast",
                         f"{goal['target']:g}", cell_of(goal)))
    return table(("", "time", "of the probe's rate", "dtrain is", "goal", ""), rows)


def kernel_goals(files):
    what = {"vs_compile": "at least 0.97 x torch.compile",
            "vs_eager": "at least min(2, 0.9 / eager's own share of the probe) x eager, and never below 1",
            "probe_fraction": "at least 90 % of the probe"}
    rows = []
    for kind, text in what.items():
        cells = []
        for found in files.values():
            verdicts = [goal["verdict"] for goal in found["goals"] if goal["name"].endswith(f".{kind}")]
            cells.append(page_text.counted(verdicts))
        rows.append((text, *cells))
    return table(("goal", *(f"{name} ({found['variant'].upper()})" for name, found in files.items())), rows)


def kernel_misses(files):
    """Missed goals beside torch; those of the probe are in the large table."""
    rows = []
    for name, found in files.items():
        for goal in found["goals"]:
            if goal["verdict"] == "short" and not goal["name"].endswith("probe_fraction"):
                _, case, kind = goal["name"].split(".")
                rows.append((case, name, kind.replace("vs_", ""), f"{goal['measured']:.2f}",
                             f"{goal['target']:.2f}"))
    return table(("case", "file", "beside", "measured", "goal"), rows)


def kernel_cell(row):
    if row is None:
        return "–"
    share = row.get("probe_fraction")
    busy = "busy" if "probe_gb_per_s" in row else "–"
    probe = busy if share is None else f"{100 * share:.0f}" + (" no bound" if share > 1 else "")
    eager = row.get("eager")
    over = "–" if eager is None or "not_fastest" in eager else f"{eager['ratio']:.1f}"
    compiled = f"{row['compile']['ratio']:.2f}" if "compile" in row else "–"
    return f"{probe} · {over} · {compiled}"


def kernel_cells(files):
    of_name = [{row["name"]: row for row in found["rows"]} for found in files.values()]
    names = list(dict.fromkeys(name for rows in of_name for name in rows))
    lines = {}
    for name in names:
        base, _, kind = name.rpartition("_")
        both = kind in ("f32", "bf16") and {f"{base}_f32", f"{base}_bf16"} <= set(names)
        line = lines.setdefault(base if both else name, {})
        line["bf16" if both and kind == "bf16" else "f32"] = name
    rows = [(case, *(kernel_cell(found.get(line.get(kind))) for kind in ("f32", "bf16")
                     for found in of_name)) for case, line in lines.items()]
    return table(("case", *(f"{kind}: {name.split('/')[0]}" for kind in ("fp32", "bf16") for name in files)),
                 rows)


def classifier(files):
    found = only(files)
    rows = []
    for row in found["results"]:
        name = f"classifier.{row['vocabulary']}"
        over, peak = goal_named(found, f"{name}.vs_eager"), goal_named(found, f"{name}.peak_mib")
        rows.append((f"{row['vocabulary']:,}", f"{over['measured']:.2f}", cell_of(over),
                     f"{peak['measured']:.0f} MiB", cell_of(peak), f"{row['eager_peak_mib']:,.0f} MiB"))
    return table(("vocabulary", "x LibTorch (goal 1.0)", "", "peak (goal 65 MiB)", "", "LibTorch's peak"), rows)


def checkpoint(files):
    rows = []
    for model in only(files)["models"]:
        for row in model["summary"]["ways"]:
            def cell(key, digits=0, of=row):
                return f"{of[key]:,.{digits}f}" if key in of else ""

            step = row.get("step_of_none")
            rows.append((f"{model['model']}: {row['way']}", cell("blocked_ms", 2), cell("durable_ms"),
                         f"{step['median']:.3f} {range_of(step)}" if step else "", cell("restore_ms")))
    return table(("", "stands still, ms", "durable after, ms", "step of one without saves", "restore, ms"), rows,
                 "lrrrr")


CHECKPOINT_GOALS = {  # By the ends of their names.
    "async_blocked_ms_per_gb": "an asynchronous save: ms for each GB",
    "_of_dcp_async": "of DCP's asynchronous save",
    "_step_of_none": "of a step without saves",
    "journal_bytes_per_parameter": "a step's journal: bytes for each parameter",
    "write_of_direct": "write, of the plain one's rate",
    "restore_of_direct": "restore, of the plain read's rate",
    "peak_over_state_mb": "memory of a restore beyond the state, MB",
    "reshard_of_restore": "of a plain restore"}


def checkpoint_goals(files):
    rows = []
    for goal in only(files)["goals"]:
        name = goal["name"].removeprefix("checkpoint.")
        what = next(text for end, text in CHECKPOINT_GOALS.items() if name.endswith(end))
        rows.append((name, what, f"{goal['measured']:.3g}", f"{goal['op']} {goal['target']:g}", cell_of(goal)))
    return table(("goal", "what", "measured", "", ""), rows, "llrrl")


def launch_cell(row, way, key):
    """The median in ms; where it did not come in time in some rounds, how many these are; "" where none has it."""
    if key is None:
        value = launch.median(row, way)
        return "" if value is None else f"{value * 1e3:,.0f}"
    taken = [one[way] for one in row["rounds"] if way in one]
    known = [one[key] for one in taken if key in one]
    # New steps were measured of dtrain alone.
    late = [one["not_within_s"] for one in taken if key not in ("new_step_s", *one) and "not_within_s" in one]
    over = f"over {max(late) * 1e3:,.0f}" if late else ""
    if not known:
        return over
    value = f"{statistics.median(known) * 1e3:,.0f}"
    return f"{value}; {over} in {len(late)} of {len(taken)}" if late else value


def peers_of_faults(rows):
    """How the peers get over the faults, and with which limits, for the rows that say so."""
    limits = dict.fromkeys(f"- {launch.WAYS[way]}: {text}." for row in rows for way, text in
                           row.get("limits", {}).items())  # The same for all faults, if they are of one run.
    ways = ["- {}: {}.".format(row["name"], "; ".join(f"{launch.WAYS[way]} {text}" for way, text in
                                                      row["peers"].items())) for row in rows if row.get("peers")]
    return ["", "The limits of the peers, and how they get over the faults:", "", *limits, *ways] if ways else []


def launch_times(files):
    found = only(files)
    goals = {goal["name"].removeprefix("launch."): goal for goal in found["goals"]}

    def goal_cells(*names):
        """Of the goals whose names begin so."""
        shown = [goal for name, goal in goals.items() if name.startswith(names)]
        least = {"<=": "at most", ">=": "at least"}
        return ("; ".join(f"{goal['measured']:.3g} ({least[goal['op']]} {goal['target']:.3g})" for goal in shown),
                "; ".join(cell_of(goal) for goal in shown))

    def row_of(what, row, key, names):
        return (what, *(launch_cell(row, way, key) for way in launch.WAYS), *goal_cells(*names))

    rows = [row_of(f"{row['name']}: to the first forward", row, None, (name,))
            for part, name in (("start", "first_forward"), ("hosts", "two_hosts")) for row in found.get(part, [])]
    rows += [row_of(f"`{row['name']}`", row, None, ("help",)) for row in found.get("help", [])]
    for row in found.get("killed", []):
        for key, what, names in (("seen_s", "its launcher says so", ("killed_rank_seen",)),
                                 ("next_step_s", "the next step has ended", ("killed_rank_next",)),
                                 ("new_step_s", "the first new step has ended", ("none",))):
            rows.append(row_of(f"{row['name']}, until {what}", row, key, names))
    for row in found.get("hang", []):
        for key, what, names in (("seen_s", "its launcher names it", ("hang_",)),
                                 ("next_step_s", "the next step has ended", ("none",))):
            rows.append(row_of(f"{row['name']}, until {what}", row, key, names))
    for row in found.get("node", []):
        way = "with_spare" if row["name"].endswith("with a spare") else "without_spare"
        for key, what in (("seen_s", "the job says so"), ("next_step_s", "the next step has ended")):
            rows.append(row_of(f"{row['name']}, until {what}", row, key, (f"lost_node_{key}.{way}",)))
    rows += [row_of(f"{row['name']} are ready", row, None, (f"simulated_{row['ranks']}_",))
             for row in found.get("simulated", [])]
    rows += [(f"{row['name']}: time in correct steps", percent(row["goodput"], 1), *[""] * (len(launch.WAYS) - 1),
              *goal_cells("random_")) for row in found.get("random", [])]
    return table(("ms", *launch.WAYS.values(), "goals", ""), rows, "l" + "r" * len(launch.WAYS) + "ll") + (
        peers_of_faults([row for part in ("killed", "hang", "node") for row in found.get(part, [])]))


def tokens(files):
    found = only(files)
    rows = []
    for row in found["tokens"]:
        rates = {way: statistics.median(r[way] for r in row["rounds"]) for way in row["rounds"][0]}
        for peer in [way for way in rates if way != "dtrain"]:
            goal = goal_named(found, f"data.{row['kind']}_vs_{peer}_{row['threads']}_threads", whole=True)
            rows.append((row["kind"], str(row["threads"]), f"{rates['dtrain']:.0f}", f"{peer}: {rates[peer]:.1f}",
                         f"{goal['measured']:.1f}", f"{goal['target']:g}", cell_of(goal)))
    return table(("kind", "threads", "dtrain, MB/s", "peer, MB/s", "dtrain is x as fast", "goal", ""), rows,
                 "lrrlrrl")


def generate(files):
    found = only(files)
    rows = []
    for row in found["speed"]:
        for what, name in (("prompt", "tokens of a prompt"), ("written", "tokens written")):
            ours, theirs = (statistics.median(r[way][what] for r in row["rounds"])
                            for way in ("dtrain", "transformers"))
            goal = goal_named(found, f"generate.{row['model']}_{what}_")
            rows.append((f"{row['model']}, {row['threads']} threads: {name}", amount(ours), amount(theirs),
                         f"{goal['measured']:.2f}", cell_of(goal)))
    return table(("tokens/s", "dtrain", "transformers", "dtrain is x as fast (goal 1)", ""), rows, "lrrrl")


TABLES = {"tokens": tokens, "generate": generate,
          "build": build, "train": train, "mfu": mfu, "step": step_speed, "start": step_start,
          "comm": comm_shm, "tcp": tcp, "tcp-shaped": tcp_shaped, "roce": roce, "overlap": overlap,
          "compression": compression,
          "zero-speed": zero_speed, "zero-goals": zero_goals, "zero-states": zero_states,
          "optimizer": optimizer, "kernel-goals": kernel_goals, "kernel-misses": kernel_misses,
          "kernels": kernel_cells, "classifier": classifier, "checkpoint": checkpoint,
          "checkpoint-goals": checkpoint_goals, "launch": launch_times}
# Tables whose files have a caption at another table of their section.
WITHOUT_CAPTION = {"all-goals", "machines", "tcp-shaped", "zero-goals", "zero-states", "start",
                   "kernel-misses", "kernels", "checkpoint-goals", "gpu-goals"}
