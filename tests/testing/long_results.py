"""Keeps the last result of the tests that `./dev test` leaves out: `long_results.py JUNIT JSON COMMAND`.

JUNIT is what `ctest --output-junit` wrote. JSON gets when they ran, at which commit, on what, and of
each test how long it took, how it ended and the figures that it printed as `figures {JSON}`; a run of
some of them alone (`ctest -R`) replaces these and leaves the others, with the date and commit of their
own last run.
"""
import json
import os
import sys
import xml.etree.ElementTree

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))

import provenance  # noqa: E402
import report  # noqa: E402

FIGURES = "figures "
ENDED = {"run": "passed", "fail": "failed", "notrun": "skipped", "disabled": "skipped"}


def figures_of(output):
    """{figure: value} of the lines `figures {JSON}` in a test's output."""
    found = {}
    for line in output.splitlines():
        if line.startswith(FIGURES):
            found |= json.loads(line.removeprefix(FIGURES))
    return found


def tests_of(junit):
    """{test: (seconds, how it ended, its figures)} of ctest's JUnit text."""
    found = {}
    for case in xml.etree.ElementTree.fromstring(junit).iter("testcase"):
        skipped = case.find("skipped")
        missing = skipped is not None and skipped.get("message", "").startswith("Unable to find")
        ended = "failed" if missing else ENDED[case.get("status")]
        found[case.get("name")] = (round(float(case.get("time")), 1), ended,
                                   figures_of(case.findtext("system-out") or ""))
    return found


def merged(before, tests, stamp):
    """The kept result after a run of `tests`; `stamp`: the provenance of this run."""
    kept = dict(before.get("tests", {}))
    for name, (seconds, ended, figures) in tests.items():
        kept[name] = {"result": ended, "seconds": seconds, **({"figures": figures} if figures else {}), **stamp}
    return {"bench": "long", **stamp, "passed": all(t["result"] != "failed" for t in kept.values()),
            "seconds": round(sum(t["seconds"] for t in kept.values()), 1),
            "tests": dict(sorted(kept.items()))}


def main():
    junit, path, command = sys.argv[1:]
    with open(junit, encoding="utf-8") as file:
        tests = tests_of(file.read())
    if not tests:
        sys.exit(f"long_results.py: {junit} names no test, so {path} is left as it was")
    before = report.measured_before(path)
    # The load is left out: it does not matter for whether tests pass.
    cores = os.cpu_count()
    stamp = {"command": command, "date": provenance.today(), "commit": provenance.commit(),
             "cpu": provenance.cpu_name(), "cores": cores,
             "marks": provenance.marks_of(provenance.changed_files(), 0, cores)}
    path = provenance.kept_path(path, stamp["marks"])
    provenance.say_marks(stamp["marks"], sys.argv[2], path)
    report.write_json(path, merged(before, tests, stamp))
    print(f"kept in {path}: " + ", ".join(f"{name} {ended} in {seconds:.0f} s"
                                          for name, (seconds, ended, _) in sorted(tests.items())))


if __name__ == "__main__":
    main()
