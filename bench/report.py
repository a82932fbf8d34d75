"""What the benchmarks of several programs share: goal lines and the results file."""
import json
import operator
import os
import platform
import shlex
import subprocess
import sys
import time

RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt}
NO_BOUND = "no bound"
OF_THIS_MACHINE = ("--bin", "--json", "--extensions")  # Options whose values are its paths.


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
    return results


def cpu_name():
    """With family and model: a hypervisor may call CPUs that differ by one name."""
    facts = {}
    with open("/proc/cpuinfo", encoding="ascii") as file:
        for line in file:
            key, _, value = line.partition(":")
            facts.setdefault(key.strip(), value.strip())
    if "model name" not in facts:
        return platform.processor()
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


def commit():
    """What is measured: the commit, with "-dirty" where sources differ from it; "" without git."""
    try:
        said = subprocess.run(["git", "describe", "--always", "--abbrev=12", "--exclude=*"],
                              capture_output=True, text=True, check=False)
        changed = subprocess.run(["git", "status", "--porcelain", "--", ".", ":!bench/results",
                                  ":!*.md"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return said.stdout.strip() + ("-dirty" if changed.strip() else "")


def command_of(bench, words):
    """What to type for a run that was given `words`, less this machine's paths."""
    kept, words = [], iter(words)
    for word in words:
        if word in OF_THIS_MACHINE:
            next(words, None)
        elif word.split("=")[0] not in OF_THIS_MACHINE:
            kept.append(word)
    return shlex.join(["./dev", "bench", bench, *kept])


def today():
    return time.strftime("%Y-%m-%d", time.gmtime())


def how_taken(bench):
    """What a row says of its own run, where the file keeps rows of several."""
    return {"command": command_of(bench, sys.argv[1:]), "commit": commit(),
            "date": today(), "load_average": os.getloadavg()[0]}


def measured_before(path):
    """The results of an earlier run on such a machine, for one that takes only some of them again;
    {} where there are none."""
    try:
        with open(path, encoding="utf-8") as file:
            before = json.load(file)
    except (OSError, ValueError):
        return {}
    if (before.get("cpu"), before.get("cores")) != (cpu_name(), os.cpu_count()):
        print(f"bench: {path} is of another machine ({before.get('cores')} cores of "
              f"{before.get('cpu')}): replaced")
        return {}
    return before


def merged(before, taken, keys):
    """The rows `taken`, each in the place of the row before that `keys` say is the same."""
    rows = {tuple(row[key] for key in keys): row for row in [*before, *taken]}
    return list(rows.values())


def write_results(path, bench, **facts):
    """The results file of `./dev bench BENCH`; nothing when `path` is empty."""
    if not path:
        return
    results = {"bench": bench, "date": today(), "commit": commit(), "cpu": cpu_name(),
               "cores": os.cpu_count(), "load_average": os.getloadavg(),
               "command": command_of(bench, sys.argv[1:]), **facts}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
        file.write("\n")
