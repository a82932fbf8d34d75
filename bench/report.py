"""What the benchmarks of several programs share: goal lines and the results file."""
import json
import operator
import os
import platform

RELATIONS = {">=": operator.ge, "<=": operator.le, ">": operator.gt}


def print_goals(goals):
    """`goals`: (name, measured, relation, target). Prints a line each, gives them for the file."""
    results = []
    print()
    for name, value, relation, target in goals:
        ok = RELATIONS[relation](value, target)
        print(f"goal {name} measured {value:.4g} target {relation} {target:.4g} "
              f"{'ok' if ok else 'short'}")
        results.append({"name": name, "measured": value, "op": relation, "target": target,
                        "ok": ok})
    return results


def write_results(path, bench, **facts):
    """The results file of `./dev bench BENCH`; nothing when `path` is empty."""
    if not path:
        return
    with open("/proc/cpuinfo", encoding="ascii") as file:
        cpu = next((line.split(":")[1].strip() for line in file if line.startswith("model name")),
                   platform.processor())
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"bench": bench, "cpu": cpu, "cores": os.cpu_count(),
                   "load_average": os.getloadavg(), "command": f"./dev bench {bench}", **facts},
                  file, indent=2)
        file.write("\n")
