"""./dev bench checkpoint: saves and restores of dtrain beside torch.save, torch.distributed.checkpoint
(DCP), torch-checkpointing and safetensors, and beside a plain O_DIRECT write and read.

A turn trains once in each way, on 2 ranks and in an order that turns with the turn: without saves, with
one every 10 steps, and with the step journal alone (checkpoint.journal), which keeps every step; its cost
is judged while its bytes fit 80 % of the disk's rate. Of each save it takes how long the training thread
stood still (dtrain's metric time/checkpoint_s; the peers' call, with what an update then waited) and how
long until it was whole; of the steps, 10 of them with a save beside 10 without, by the clock. Write rates
are of the saves for which training stands still (dtrain-sync); a peer's is of a last save with nothing
beside it, until the disk has it. Then each way's checkpoint is restored out of a cold cache, and a
checkpoint of 4 ranks and one of 3 are restored on 3. dtrain's restores take turns several times within a
turn, each between two O_DIRECT reads of the same files, because a disk's rate changes from one second to
the next. Ratios are of one turn, tables and goals show medians.

TMPDIR says on which disk. A run replaces the models that it takes in the results file.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time

import numpy

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(1, f"{HERE}/checkpoints")

import checkpoint_disk  # noqa: E402
import checkpoint_ours as ours  # noqa: E402
from checkpoint_memory import back_free_memory  # noqa: E402
from jobs import GPT_100M  # noqa: E402
from peers import read_facts, steps_of, torchrun, twin_environment  # noqa: E402
from report import NO_BOUND, begin, how_taken, judged, measured_before, merged, of_probe  # noqa: E402
from report import print_goals, write_results  # noqa: E402
from rounds import rotated, spread, spread_text  # noqa: E402
from runner import run  # noqa: E402

MODELS = {"5M": (), "100M": (*GPT_100M, "data.sequence_length=128")}
PEERS = ("ddp", "torch.save", "dcp", "dcp-async", "torch-checkpointing", "safetensors")
MB, GB = 1e6, 1e9
BLOCKED_MS_PER_GB, BLOCKED_OF_DCP, OF_DIRECT, PEAK_OVER_STATE_MB, RESHARD = 2.0, 1 / 20, 0.95, 64.0, 1.2
JOURNAL_BYTES, JOURNAL_OF_DISK = 2.1, 0.8
# 12 samples are whole micro-batches on 4 ranks and on 3; the states are sharded.
SHARDED = ("zero_optimization.stage=1", "train_batch_size=12", "data.sequence_length=32", "train_steps=2")


def sharded_sets(model_sets, ranks):
    return [*model_sets, *SHARDED, f"train_micro_batch_size_per_gpu={12 // ranks}"]


def train_peer(args, model_sets, peer):
    """One training of a peer, and a restore of its last save."""
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        saved = f"{folder}/saved"
        os.makedirs(saved)
        script = os.path.join(HERE, "checkpoints", "checkpoint_peers.py")
        words = ["--peer", peer, "--every", str(ours.EVERY), "--folder", saved]
        sets = [*ours.QUIET, *model_sets, f"train_steps={ours.EVERY * (args.periods + 1)}"]

        def facts_of(name, *more):
            facts = f"{folder}/{name}.jsonl"
            run(torchrun(script, args.config, facts, sets, [*words, *more], ours.RANKS),
                twin_environment(ours.RANKS), ours.JOB_TIMEOUT_S)
            return read_facts(facts)

        lines = facts_of("train")
        ends = {line["step"]: line["ts"] for line in lines if line["kind"] == "step"}
        found = {"step_s": ours.step_s(ends), "loss": steps_of(lines, "loss")[-1]}
        if peer == "ddp":
            return found
        checkpoint_disk.drop_cache(saved)
        back_free_memory(ours.STATES * checkpoint_disk.bytes_of(saved))
        last = next(line for line in lines if line["kind"] == "last")
        restored = next(line for line in facts_of("restore", "--restore") if line["kind"] == "restore")
    held = [line["seconds"] for line in lines if line["kind"] == "held"]
    saves = [{"step": line["save"], "done_s": line["done_s"],
              # Until the next save, an update may have had to wait for the copy.
              "blocked_s": line["blocked_s"] + sum(held[line["save"]:line["save"] + ours.EVERY])}
             for line in lines if line["kind"] == "save"]
    return {**found, "saves": saves, "bytes": last["bytes"], "durable_s": last["durable_s"],
            **{key: restored[key] for key in ("restore_s", "growth_bytes")}}


def measure_restores(args, model_sets):
    """dtrain's checkpoints of 2, 3 and 4 ranks, and restores of them: on as many ranks, and on 3."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        whole = [*model_sets, "train_steps=2"]
        found["bytes"] = ours.save_once(args, whole, f"{folder}/2", ours.RANKS)
        for ranks in (3, 4):
            ours.save_once(args, sharded_sets(model_sets, ranks), f"{folder}/{ranks}", ranks)
        sharded = sharded_sets(model_sets, 3)
        found.update(ours.restore_rounds(args, {
            "restore": (whole, f"{folder}/2", ours.RANKS), "plain": (sharded, f"{folder}/3", 3),
            "reshard": (sharded, f"{folder}/4", 3)}))
    return found


def copy_s(size):
    """Seconds that this machine takes to copy `size` bytes of memory."""
    source, target = numpy.ones(size, dtype=numpy.uint8), numpy.zeros(size, dtype=numpy.uint8)
    start = time.perf_counter()
    numpy.copyto(target, source)
    return time.perf_counter() - start


def measure_turn(args, model, turn):
    model_sets = MODELS[model]
    ways = {way.name: lambda way=way: ours.train(args, model_sets, way) for way in ours.WAYS}
    ways.update({peer: lambda peer=peer: train_peer(args, model_sets, peer) for peer in args.peers})
    ways["restores"] = lambda: measure_restores(args, model_sets)
    taken = {}
    for name in rotated(ways, turn):
        taken[name] = ways[name]()
        print(f"{model}, turn {turn + 1}/{args.turns}: {name}; load {os.getloadavg()[0]:.1f}", flush=True)
    size = taken["restores"]["bytes"]
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        taken["direct"] = checkpoint_disk.direct_rates(f"{folder}/probe", size, ours.RANKS)
    taken["copy_s"] = copy_s(size // ours.RANKS)
    return taken


def blocked_s(found):
    return statistics.median(save["blocked_s"] for save in found["saves"])


def done_s(found):
    return statistics.median(save.get("durable_s", save.get("done_s")) for save in found["saves"])


def way_row(turns, name):
    """Medians of one way over the turns; of "dtrain" the restore of its checkpoint."""
    def over(value):
        return statistics.median(value(turn) for turn in turns)

    base = "ddp" if name in PEERS else ours.WAYS[0].name
    journal = turns[0][name].get("journal")
    row = {"way": name, "step_ms": over(lambda t: t[name]["step_s"]) * 1e3}
    if base in turns[0]:
        row["step_of_none"] = spread([t[name]["step_s"] / t[base]["step_s"] for t in turns])
    if journal:  # The journal has a record of each step.
        row["blocked_ms"] = over(lambda t: t[name]["journal"]["blocked_s"]) * 1e3
        row["done_ms"] = row["durable_ms"] = over(lambda t: t[name]["journal"]["write_s"]) * 1e3
        row["bytes"] = journal["bytes"]
    elif turns[0][name].get("saves"):
        row["blocked_ms"] = over(lambda t: blocked_s(t[name])) * 1e3
        row["done_ms"] = over(lambda t: done_s(t[name])) * 1e3
    if "durable_s" in turns[0][name]:  # A peer's last save and its restore.
        row["bytes"] = turns[0][name]["bytes"]
        row["durable_ms"] = over(lambda t: t[name]["durable_s"]) * 1e3
        row["restore_ms"] = over(lambda t: t[name]["restore_s"]) * 1e3
        row["growth_mb"] = over(lambda t: t[name]["growth_bytes"]) / MB
    elif "blocked_ms" in row and not journal:
        row["bytes"] = turns[0][name]["saves"][0]["bytes"]
        row["skipped"] = sum(t[name]["skipped"] for t in turns)
        row["durable_ms"] = row["done_ms"]
    if name == ours.WAYS[0].name:
        row["bytes"] = turns[0]["restores"]["bytes"]
        row["restore_ms"] = over(lambda t: t["restores"]["restore"]["restore_s"]) * 1e3
        row["growth_mb"] = over(lambda t: t["restores"]["restore"]["growth_bytes"]) / MB
    return row


def journal_ratios(turns, of_turns):
    """What a step's journal takes: bytes for each parameter, and of the disk's rate in a step without one."""
    if not all("journal" in turn.get("dtrain-journal", {}) for turn in turns):
        return {}
    return {
        "journal_bytes_per_parameter": of_turns(lambda t: t["dtrain-journal"]["journal"]["bytes_per_parameter"]),
        "journal_of_disk": of_turns(
            lambda t: t["dtrain-journal"]["journal"]["bytes"] / t["dtrain"]["step_s"]
            / t["direct"]["write_bytes_per_s"])}


def ratios_of(turns):
    """{goal: spread}; what the turns did not take is missing."""
    def of_turns(value):
        return spread([value(turn) for turn in turns])

    found = {
        "async_blocked_ms_per_gb": of_turns(
            lambda t: blocked_s(t["dtrain-async"]) * 1e3 / (t["restores"]["bytes"] / GB)),
        "write_of_direct": of_turns(
            lambda t: t["restores"]["bytes"] / done_s(t["dtrain-sync"]) / t["direct"]["write_bytes_per_s"]),
        "restore_of_direct": of_turns(lambda t: t["restores"]["restore"]["of_read"]),
        "restore_peak_over_state_mb": of_turns(
            lambda t: (t["restores"]["restore"]["growth_bytes"] - t["restores"]["bytes"]) / MB),
        "reshard_of_restore": of_turns(
            lambda t: t["restores"]["reshard"]["restore_s"] / t["restores"]["plain"]["restore_s"]),
        "copy_of_compute": of_turns(lambda t: t["copy_s"] / t["dtrain-async"]["compute_s"]),
    }
    found.update(journal_ratios(turns, of_turns))
    if "dcp-async" in turns[0]:
        found["async_blocked_of_dcp_async"] = of_turns(
            lambda t: blocked_s(t["dtrain-async"]) / blocked_s(t["dcp-async"]))
    return found


def summary(turns):
    names = [way.name for way in ours.WAYS if way.name in turns[0]] + [peer for peer in PEERS if peer in turns[0]]
    direct = {key: statistics.median(turn["direct"][key] for turn in turns) for key in turns[0]["direct"]}
    return {"ways": [way_row(turns, name) for name in names], "ratios": ratios_of(turns),
            "direct": {"with": checkpoint_disk.probe_name(), **direct}}


def goals_of(model, found):
    ratios = {name: value["median"] for name, value in found["ratios"].items()}
    # Where a copy takes longer than the compute beside it, the rest of it cannot be hidden.
    void = [NO_BOUND] if ratios["copy_of_compute"] > 1 else []
    goals = [("async_blocked_ms_per_gb", ratios["async_blocked_ms_per_gb"], "<=", BLOCKED_MS_PER_GB, *void)]
    if "async_blocked_of_dcp_async" in ratios:
        goals.append(("async_blocked_of_dcp_async", ratios["async_blocked_of_dcp_async"], "<=", BLOCKED_OF_DCP))
    most = {way.name: way.step_of_none for way in ours.WAYS if way.step_of_none}
    # A journal that the disk cannot take costs what the disk costs.
    too_slow = {"dtrain-journal": [NO_BOUND]} if ratios.get("journal_of_disk", 0) > JOURNAL_OF_DISK else {}
    goals += [(f"{row['way']}_step_of_none", row["step_of_none"]["median"], "<=", most[row["way"]],
               *too_slow.get(row["way"], [])) for row in found["ways"] if row["way"] in most]
    if "journal_bytes_per_parameter" in ratios:
        goals.append(("journal_bytes_per_parameter", ratios["journal_bytes_per_parameter"], "<=", JOURNAL_BYTES))
    goals += [of_probe(name, ratios[name], OF_DIRECT) for name in ("write_of_direct", "restore_of_direct")]
    goals += [("restore_peak_over_state_mb", ratios["restore_peak_over_state_mb"], "<=", PEAK_OVER_STATE_MB),
              ("reshard_of_restore", ratios["reshard_of_restore"], "<=", RESHARD)]
    return [(f"checkpoint.{model}.{name}", *rest) for name, *rest in goals]


def all_goals(results):
    """The goals of a results file."""
    return [goal for row in results["models"] for goal in goals_of(row["model"], row["summary"])]


def print_model(model, found):
    def cell(row, key, digits=1):
        return f"{row[key]:{13},.{digits}f}" if key in row else f"{'':13}"

    print(f"\n{model:20}{'blocked ms':>13}{'whole ms':>13}{'durable ms':>13}{'MB':>13}{'MB/s':>13}"
          f"{'step ms':>13}{'of none':>13}{'restore ms':>13}{'grows MB':>13}")
    for row in found["ways"]:
        rate = {}
        if "durable_ms" in row:
            rate = {"mb": row["bytes"] / MB, "rate": row["bytes"] / MB / row["durable_ms"] * 1e3}
        elif "bytes" in row:
            rate = {"mb": row["bytes"] / MB}
        of_none = {"of_none": row["step_of_none"]["median"]} if "step_of_none" in row else {}
        print(f"{row['way']:20}" + cell(row, "blocked_ms", 2) + cell(row, "done_ms") + cell(row, "durable_ms")
              + cell(rate, "mb") + cell(rate, "rate") + cell(row, "step_ms") + cell(of_none, "of_none", 3)
              + cell(row, "restore_ms") + cell(row, "growth_mb"))
    direct = found["direct"]
    print(f"O_DIRECT alone ({direct['with']}): write {direct['write_bytes_per_s'] / MB:,.0f} MB/s, read "
          f"{direct['read_bytes_per_s'] / MB:,.0f} MB/s")
    for name, value in found["ratios"].items():
        print(f"  {name} {spread_text(value)}")
    skipped = {row["way"]: row["skipped"] for row in found["ways"] if row.get("skipped")}
    if skipped:
        print(f"  saves that came due while one was under way: {skipped}")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--periods", type=int, default=4,
                        help=f"times {ours.EVERY} steps that are measured in a training")
    parser.add_argument("--restores", type=int, default=5,
                        help="times that each of dtrain's checkpoints is restored in a turn")
    parser.add_argument("--models", nargs="+", default=["5M"], choices=list(MODELS))
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if min(args.turns, args.periods, args.restores) < 1:
        parser.error(f"--turns {args.turns}, --periods {args.periods}, --restores {args.restores}: "
                     "allowed: 1 or more")
    return args


def main():
    args = parse()
    if "torch-checkpointing" in args.peers:
        try:
            import torch_checkpointing  # noqa: F401
        except ImportError as error:
            sys.exit(f"bench: {error}; ./dev bench checkpoint installs it")
    args.json = begin("checkpoint", args.json)
    models = measured_before(args.json).get("models", [])
    for model in args.models:
        turns = []
        for turn in range(args.turns):
            turns.append(measure_turn(args, model, turn))
            # Turns take minutes: if one fails, the earlier ones must not be lost.
            row = {"model": model, "periods": args.periods, "turns": turns, "summary": summary(turns), **how_taken()}
            models = merged(models, [row], ["model"])
            write_results(args.json, "checkpoint", models=models, goals=judged(all_goals({"models": models})))
        print_model(model, row["summary"])
    write_results(args.json, "checkpoint", models=models, goals=print_goals(all_goals({"models": models})))


if __name__ == "__main__":
    main()
