"""What the benchmarks of several programs share: goal lines, spreads and the results file."""
import json
import operator
import os
import shlex
import statistics
import sys

import provenance

RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt}
NO_BOUND = "no bound"
OF_THIS_MACHINE = ("--bin", "--json", "--extensions", "--cpu-python")  # Values that are its paths.
PERCENTILE_ROUNDS_MIN = 20  # Fewer have no tenth: their percentiles would be least and most.

_taken = None  # The provenance of this process's run, from begin().


def judged(goals):
    """`goals`, as print_goals takes them, for the file."""
    results = []
    for name, value, relation, target, *void in goals:
        verdict = void[0] if void else "ok" if RELATIONS[relation](value, target) else "short"
        results.append({"name": name, "measured": value, "op": relation, "target": target,
                        "ok": verdict == "ok", "verdict": verdict})
    return results


def print_goals(goals):
    """`goals`: (name, measured, relation, target), and NO_BOUND behind it where `measured` is the
    share of a probe that was slower than what it should bound, so that the goal is neither met nor
    missed. Prints a line each, gives them for the file."""
    results = judged(goals)
    print()
    for goal in results:
        print(f"goal {goal['name']} measured {goal['measured']:.4g} target {goal['op']} "
              f"{goal['target']:.4g} {goal['verdict']}")
    if _taken:
        provenance.say_marks(_taken["marks"])
    return results


def of_probe(name, share, target):
    """The goal of a share of the probe: none where the probe was the slower of the two."""
    return (name, share, ">=", target, *([NO_BOUND] if share > 1 else []))


def spread(values):
    """The median with the 10th and 90th percentiles, or with the range where rounds are few."""
    values = sorted(values)
    found = {"median": statistics.median(values), "rounds": len(values)}
    if len(values) < PERCENTILE_ROUNDS_MIN:
        return {**found, "least": values[0], "most": values[-1]}
    last = len(values) - 1
    return {**found, "p10": values[round(0.1 * last)], "p90": values[round(0.9 * last)]}


def spread_text(found, digits=3):
    """"1.03 (range of 9 rounds 0.98 to 1.07)"."""
    low, high, what = (found["least"], found["most"], f"range of {found['rounds']} rounds") \
        if "least" in found else (found["p10"], found["p90"], "10th to 90th percentile")
    return f"{found['median']:.{digits}f} ({what} {low:.{digits}f} to {high:.{digits}f})"


def command_of(bench, words):
    """What to type for a run that was given `words`, less this machine's paths."""
    kept, words = [], iter(words)
    for word in words:
        if word in OF_THIS_MACHINE:
            next(words, None)
        elif word.split("=")[0] not in OF_THIS_MACHINE:
            kept.append(word)
    return shlex.join(["./dev", "bench", bench, *kept])


def begin(bench, path):
    """Before the first measurement: looks at the tree and at the machine. Gives the file that the
    results go to; another than `path` where they must not be kept there."""
    global _taken
    _taken = {"command": command_of(bench, sys.argv[1:]), **provenance.look()}
    kept = provenance.kept_path(path, _taken["marks"]) if path else path
    provenance.say_marks(_taken["marks"], path, kept)
    return kept


def taken():
    if _taken is None:
        raise RuntimeError("report.begin() comes before the first measurement")
    return _taken


def how_taken():
    """What a row says of its own run, where the file keeps rows of several."""
    return {key: value for key, value in taken().items() if key not in ("cpu", "cores")}


def read_results(path):
    """A results file with its sizes as numbers: JSON has texts for keys."""
    def keys(pairs):
        return {int(key) if key.isdigit() else key: value for key, value in pairs}

    with open(path, encoding="utf-8") as file:
        return json.load(file, object_pairs_hook=keys)


def measured_before(path):
    """The results of an earlier run on such a machine, for one that takes only some of them again;
    {} where there are none."""
    try:
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
    except (OSError, ValueError):
        return {}
    if (before.get("cpu"), before.get("cores")) != (provenance.cpu_name(), os.cpu_count()):
        print(f"bench: {path} is of another machine ({before.get('cores')} cores of "
              f"{before.get('cpu')}): replaced")
        return {}
    return before


def merged(before, taken_now, keys):
    """The rows `taken_now`, each in the place of the row before that `keys` say is the same."""
    rows = {tuple(row[key] for key in keys): row for row in [*before, *taken_now]}
    return list(rows.values())


def write_json(path, results):
    """Whole or not at all: an earlier result outlives an end at any moment."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
        file.write("\n")
    os.replace(f"{path}.new", path)


def write_results(path, bench, **facts):
    """The results file of `./dev bench BENCH`; nothing when `path` is empty. Facts that a file has
    from begin() are not the caller's to give."""
    if path:
        write_json(path, {"bench": bench, **taken(), **facts})
