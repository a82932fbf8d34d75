"""Goals and results files of the benchmarks: how they are judged, printed, merged and written."""
import json
import operator
import os
import shlex
import sys

import provenance

RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt}
NO_BOUND = "no bound"
OF_THIS_MACHINE = ("--bin", "--json", "--extensions", "--cpu-python", "--folder")  # Options with paths of this machine.

_taken = None  # The provenance of this process's run, from begin().


def judged(goals):
    """`goals` (as for print_goals) with their verdicts, for the results file."""
    results = []
    for name, value, relation, target, *void in goals:
        verdict = void[0] if void else "ok" if RELATIONS[relation](value, target) else "short"
        results.append({"name": name, "measured": value, "op": relation, "target": target,
                        "ok": verdict == "ok", "verdict": verdict})
    return results


def print_goals(goals):
    """Prints a line for each goal and gives their verdicts for the file. A goal is (name, measured,
    relation, target). NO_BOUND as a fifth part says that the probe was slower than the operation
    that it should bound, so the goal is neither met nor missed."""
    results = judged(goals)
    print()
    for goal in results:
        print(f"goal {goal['name']} measured {goal['measured']:.4g} target {goal['op']} "
              f"{goal['target']:.4g} {goal['verdict']}")
    if _taken:
        provenance.say_marks(_taken["marks"])
    return results


def of_probe(name, share, target):
    """The goal of a share of the probe. It has no bound if the probe was the slower of the two."""
    return (name, share, ">=", target, *([NO_BOUND] if share > 1 else []))


def command_of(bench, words):
    """The command of a run that was given `words`, without this machine's paths."""
    kept, words = [], iter(words)
    for word in words:
        if word in OF_THIS_MACHINE:
            next(words, None)
        elif word.split("=")[0] not in OF_THIS_MACHINE:
            kept.append(word)
    return shlex.join(["./dev", "bench", bench, *kept])


def begin(bench, path):
    """Looks at the tree and at the machine; to be called before the first measurement. Gives the file
    for the results: `path`, or another one if marked results must not be kept there."""
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
    """The provenance of a row, for a file that keeps rows of several runs."""
    return {key: value for key, value in taken().items() if key not in ("cpu", "cores")}


def read_results(path):
    """Reads a results file. Keys that are sizes become numbers again: JSON has only texts for keys."""
    def keys(pairs):
        return {int(key) if key.isdigit() else key: value for key, value in pairs}

    with open(path, encoding="utf-8") as file:
        return json.load(file, object_pairs_hook=keys)


def measured_before(path):
    """The results of an earlier run on a machine of this kind, for a run that replaces only some of
    them; {} if there are none. To be called after begin(): a run without marks adds to no marked
    results, because the file would then say of all of them what is true of its own alone."""
    try:
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
    except (OSError, ValueError):
        return {}
    if (before.get("cpu"), before.get("cores")) != (provenance.cpu_name(), os.cpu_count()):
        print(f"bench: {path} is of another machine ({before.get('cores')} cores of "
              f"{before.get('cpu')}): replaced")
        return {}
    if before.get("marks") and not taken()["marks"]:
        print(f"bench: {path} has marks ({'; '.join(before['marks'])}): replaced")
        return {}
    return before


def merged(before, taken_now, keys):
    """The rows of `before`, with each row of `taken_now` in the place of the one with equal `keys`."""
    rows = {tuple(row[key] for key in keys): row for row in [*before, *taken_now]}
    return list(rows.values())


def write_text(path, text):
    """Writes the whole file or nothing: if the program is killed, the earlier file stays."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(f"{path}.new", path)


def write_json(path, results):
    write_text(path, json.dumps(results, indent=2) + "\n")


def write_results(path, bench, **facts):
    """Writes the results file of `./dev bench BENCH`; does nothing if `path` is empty. The facts of
    begin() are added, so `facts` must not have them."""
    if path:
        write_json(path, {"bench": bench, **taken(), **facts})


def measure_parts(path, bench, keys, measures, all_goals):
    """Measures parts of a results file anew, and keeps the others. `keys`: {part: the keys that tell its
    rows from each other}, in the file's order; `measures`: {part: gives its rows}; `all_goals`: of all
    parts."""
    before = measured_before(path)
    parts = {part: before[part] for part in keys if part in before}
    for part, measure in measures.items():
        rows = [{**row, **how_taken()} for row in measure()]
        parts[part] = merged(parts.get(part, []), rows, keys[part])
    write_results(path, bench, **parts, goals=print_goals(all_goals(parts)))
