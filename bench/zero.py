"""./dev bench zero: dtrain's ZeRO stages beside DDP, DeepSpeed and FSDP2 on 2 ranks.

Two models, the default GPT and one of 100M parameters. Every round runs each program once, in an
order that turns with the round; ratios are those of one round, and table and goals show their
median over rounds. The memory of model states is measured apart, since watching a job slows it. A
run replaces what it takes again (a model's speed; its states, stage by stage) in the results file
and leaves the rest there; goals are of all that the file then holds.
"""
import argparse
import os
import statistics
import sys

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "zero_stages"))

from report import begin, how_taken, judged, measured_before, merged, print_goals, write_results  # noqa: E402
from rounds import rotated  # noqa: E402
from zero_memory import states  # noqa: E402
from zero_ways import MODELS, tokens_per_s, ways_of  # noqa: E402

OVER_PEER, STEP_OF_STAGE_0 = 1.2, 1.15


def measure_speed(args, model, keep):
    """[{way: tokens/s}], one a round; `keep` is called with those so far after each."""
    ways, rounds = ways_of(args.stages), []
    for i in range(args.rounds):
        speeds = {}
        for way in rotated(ways, i):
            speeds[way.name] = tokens_per_s(args, model, way)
            print(f"{model.name} round {i + 1}/{args.rounds}: {way.name:16}"
                  f"{speeds[way.name]:9,.0f} tokens/s   load {os.getloadavg()[0]:.1f}", flush=True)
        rounds.append(speeds)
        keep(rounds)
    return rounds


def measure_states(args, model):
    rows = []
    for stage in args.stages:
        row = states(args, model, stage)
        row["ratio"] = row["measured"] / row["planned"]
        rows.append(row)
        print(f"{model.name} stage {stage}: states {row['measured'] * 1e-6:.1f} MB, "
              f"planned {row['planned'] * 1e-6:.1f} MB, {row['ratio']:.3f}", flush=True)
    return rows


def ratio(rounds, ours, theirs):
    return statistics.median(r[ours] / r[theirs] for r in rounds)


def against_best_peer(rounds, stage):
    peers = [name for name in rounds[0] if name in (f"deepspeed-{stage}", f"fsdp2-{stage}")]
    return statistics.median(r[f"dtrain-{stage}"] / max(r[p] for p in peers) for r in rounds)


def stages_of(rounds):
    """The stages at which dtrain trained in these rounds."""
    return [stage for stage in range(4) if f"dtrain-{stage}" in rounds[0]]


def speed_goals(model, rounds):
    name, stages = f"zero.{model}", stages_of(rounds)
    goals = [(f"{name}.stage0_vs_ddp", ratio(rounds, "dtrain-0", "ddp"), ">=", 1.0)]
    goals += [(f"{name}.stage{stage}_vs_best_peer", against_best_peer(rounds, stage), ">=", OVER_PEER)
              for stage in stages if stage > 0]
    if 3 in stages:
        goals.append((f"{name}.stage3_step_of_stage0", ratio(rounds, "dtrain-0", "dtrain-3"),
                      "<=", STEP_OF_STAGE_0))
    return goals


def state_goals(model, rows):
    return [(f"zero.{model}.stage{row['stage']}_states_off_the_plan", abs(row["ratio"] - 1),
             "<=", 0.02) for row in rows]


def goals_of(models):
    goals = []
    for row in models:
        goals += state_goals(row["model"], row.get("states", []))
        if "tokens_per_s" in row:
            goals += speed_goals(row["model"], row["tokens_per_s"])
    return goals


def all_goals(results):
    """The goals of a results file."""
    return goals_of(results["models"])


def with_states(results, model, rows):
    """`results` with these rows of the model's states in the place of the earlier ones."""
    before = next((row for row in results if row["model"] == model), {})
    states = sorted(merged(before.get("states", []), rows, ["stage"]), key=lambda row: row["stage"])
    return merged(results, [{**before, "model": model, "states": states}], ["model"])


def with_speed(results, model, rounds, taken):
    """`results` with these rounds as the model's speed; `taken` is their provenance. Rounds of earlier
    runs are dropped, because each ratio compares programs of one round."""
    before = next((row for row in results if row["model"] == model), {})
    row = {**before, "model": model, "tokens_per_s": rounds, "speed_taken": taken}
    return merged(results, [row], ["model"])


def print_table(model, rounds):
    print(f"\n{model.name:18}{'tokens/s':>10}{'of DDP':>9}{'of dtrain-0':>13}")
    for way in rounds[0]:
        speed = statistics.median(r[way] for r in rounds)
        print(f"{way:18}{speed:10,.0f}{ratio(rounds, way, 'ddp'):9.3f}"
              f"{ratio(rounds, way, 'dtrain-0'):13.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--config", default="examples/configs/gpt.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=0, help="0: the model's own number")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--stages", nargs="+", type=int, default=[0, 1, 2, 3], choices=range(4))
    parser.add_argument("--parts", nargs="+", default=["states", "speed"],
                        choices=["states", "speed"])
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    args.json = begin("zero", args.json)
    results = measured_before(args.json).get("models", [])
    for model in (MODELS[name] for name in args.models):
        if "states" in args.parts:
            rows = [{**row, **how_taken()} for row in measure_states(args, model)]
            results = with_states(results, model.name, rows)
            write_results(args.json, "zero", models=results, goals=judged(goals_of(results)))
        if "speed" in args.parts:

            def keep(rounds, model=model, others=results):
                # Rounds take minutes: if one fails, the earlier ones must not be lost.
                kept = with_speed(others, model.name, rounds, how_taken())
                write_results(args.json, "zero", models=kept, goals=judged(goals_of(kept)))

            rounds = measure_speed(args, model, keep)
            results = with_speed(results, model.name, rounds, how_taken())
            print_table(model, rounds)
    write_results(args.json, "zero", models=results, goals=print_goals(goals_of(results)))


if __name__ == "__main__":
    main()
