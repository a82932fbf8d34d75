"""./dev bench build: how long a newcomer waits. Clones this commit into an empty folder, with empty caches,
runs README's two commands there, then changes one file of the engine and runs its test.

Debian's packages must be installed before: their time is a matter of the mirror. Takes half an hour to an hour.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

import provenance  # noqa: E402
import report  # noqa: E402

TRAIN, TEST = ["./dev", "train", "--set", "train_steps=20"], ["./dev", "test"]
CHANGED, ITS_TEST = "runtime/engine/evaluation.cc", ["./dev", "test", "engine_evaluate_test"]
FIRST_STEP = re.compile(r"^step \d+/\d+ ")
STEPS = re.compile(r"\d+ of (\d+) steps")
PHASE = re.compile(r"==>\S* (.*): (\d+) s$")
TESTS = re.compile(r"^tests took ([\d,]+) s")
# Seconds on 2 cores.
FIRST_STEP_GOAL_S, WHOLE_GOAL_S, TESTS_GOAL_S, CHANGE_GOAL_S = 480, 3000, 1200, 40


def run(command, folder, environment, log):
    """Runs a command and gives its lines as (seconds since its start, text); a failed one ends the benchmark."""
    started, lines = time.monotonic(), []
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, text=True, errors="replace") as process:
        for line in process.stdout:
            lines.append((time.monotonic() - started, line.rstrip()))
            log.write(line)
            log.flush()
    if process.returncode != 0:
        sys.exit(f"bench: {' '.join(command)} ended with {process.returncode}; its output is in {log.name}")
    lines.append((time.monotonic() - started, ""))
    return lines


def phases(lines):
    """{what took some time: its seconds}, as ./dev says."""
    return {found[1]: int(found[2]) for _, line in lines if (found := PHASE.search(line))}


def build_steps(lines):
    return next((int(found[1]) for _, line in reversed(lines) if (found := STEPS.search(line))), None)


def build_row(lines, words):
    steps = build_steps(lines)
    return {"what": f"of these: the build{words}{f' ({steps} steps)' if steps else ''}",
            "seconds": sum(seconds for what, seconds in phases(lines).items() if what.startswith("build of"))}


def train_rows(lines):
    first = next((seconds for seconds, line in lines if FIRST_STEP.match(line)), None)
    if first is None:
        sys.exit("bench: ./dev train printed no step")
    return [{"what": "`git clone` to the first training step, `./dev train`", "seconds": round(first),
             "goal_s": FIRST_STEP_GOAL_S}, build_row(lines, "")]


def test_rows(train, test):
    took = next(int(found[1].replace(",", "")) for _, line in test if (found := TESTS.match(line)))
    return [{"what": "`./dev train` with 20 steps, and then `./dev test`, from an empty folder",
             "seconds": round(train[-1][0] + test[-1][0]), "goal_s": WHOLE_GOAL_S},
            build_row(test, " with all tests and CUDA for five targets"),
            {"what": "of these: the tests", "seconds": took, "goal_s": TESTS_GOAL_S}]


def change_row(folder, environment, log):
    with open(f"{folder}/{CHANGED}", "a", encoding="utf-8") as file:
        file.write("// Changed by the benchmark.\n")
    seconds = run(ITS_TEST, folder, environment, log)[-1][0]
    return {"what": f"a changed file of the engine, built and tested (`{' '.join(ITS_TEST)}`)",
            "seconds": round(seconds, 1), "goal_s": CHANGE_GOAL_S}


def measure(folder, log, train_only):
    """The rows of a clone in `folder`, which is empty."""
    clone = f"{folder}/dtrain"
    environment = {**os.environ, "CCACHE_DIR": f"{folder}/ccache", "XDG_CACHE_HOME": f"{folder}/cache"}
    cloned = run(["git", "clone", "--quiet", provenance.SOURCE, clone], folder, environment, log)[-1][0]
    train = [(seconds + cloned, line) for seconds, line in run(TRAIN, clone, environment, log)]
    rows = train_rows(train)
    if train_only:
        return rows
    test = run(TEST, clone, environment, log)
    return rows + test_rows(train, test) + [change_row(clone, environment, log)]


def all_goals(results):
    return [(row["what"], row["seconds"], "<=", row["goal_s"]) for row in results["rows"] if "goal_s" in row]


def main():
    parser = argparse.ArgumentParser(prog="./dev bench build", description=__doc__)
    parser.add_argument("--bin", help="unused: this benchmark builds its own programs")
    parser.add_argument("--json", help="the file for the results")
    parser.add_argument("--train-only", action="store_true", help="leave out ./dev test and the changed file")
    parser.add_argument("--folder", help="where the clone is made (default: below the folder for temporary files)")
    args = parser.parse_args()
    path = report.begin("build", args.json)
    with tempfile.TemporaryDirectory(prefix="dtrain-clone-", dir=args.folder) as folder:
        os.chmod(folder, 0o755)  # Some tests run the programs as another user.
        log_path = os.path.join(provenance.SOURCE, "build", "bench", "build.log")
        os.makedirs(os.path.dirname(log_path), exist_ok=True)
        with open(log_path, "w", encoding="utf-8") as log:
            rows = measure(folder, log, args.train_only)
    report.print_goals(all_goals({"rows": rows}))
    report.write_results(path, "build", rows=rows)


if __name__ == "__main__":
    main()
