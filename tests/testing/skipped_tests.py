"""The last lines of `./dev test`: `ctest ... | skipped_tests.py LOG [--whole]`.

ctest's output is passed on; its summary waits until LOG (ctest's LastTest.log), which is whole
only when ctest has ended, has been read. A case that a program skipped stands before the summary
with its reason, cases with the same reason in one line, where ctest only counts programs. After the
summary come the slowest tests and, with --whole, the time of all against their budget: it exits with
1 when they are too slow.
"""
import re
import sys

import suite_budget

SUMMARY = re.compile(r"^\d+% tests passed")
START = re.compile(r"^\d+/\d+ Test: (.+)$")
END = "<end of output>"
PYTHON_CASE = re.compile(r"^(test\w*|setUpClass) \(([^)]*)\)")
PYTHON_SKIP = re.compile(r"skipped (['\"])(.*)\1$")
GTEST_CASE = re.compile(r"^\[ RUN      \] (\S+)")
GTEST_REASON = re.compile(r"^\S+:\d+: Skipped$")
GTEST_SKIP = re.compile(r"^\[  SKIPPED \] (\S+) \(")
WHOLE_PROGRAM = re.compile(r"SKIPPED: .+")
NAMED_MAX = 3


def skips_of(lines):
    """[(case, reason)] of one program's output; the case of a whole program is ""."""
    skips, case, reason, reason_follows = [], "", "", False
    for line in lines:
        if match := PYTHON_CASE.match(line):
            case = match[1] if match[1] != "setUpClass" else match[2].split(".")[-1]
        elif match := GTEST_CASE.match(line):
            case, reason = match[1], ""
        if reason_follows:
            reason, reason_follows = line, False
        elif GTEST_REASON.match(line):
            reason_follows = True
        if match := GTEST_SKIP.match(line):
            skips.append((match[1], reason or "no reason given"))
        elif match := PYTHON_SKIP.search(line):
            skips.append((case, match[2]))
    if not skips:
        whole = next((m[0] for m in map(WHOLE_PROGRAM.search, lines) if m), None)
        skips += [("", whole.strip("* "))] if whole else []
    return skips


def programs(log):
    """[(test, [line of its output])] of ctest's LastTest.log."""
    found, inside = [], False
    for line in log.splitlines():
        if match := START.match(line):
            found.append((match[1], []))
            inside = False
        elif line == "Output:":
            inside = True
        elif line == END:
            inside = False
        elif inside and found:
            found[-1][1].append(line)
    return found


def lines_of(log):
    """The lines to show: one for each program and reason."""
    shown = []
    for test, output in programs(log):
        by_reason = {}
        for case, reason in skips_of(output):
            by_reason.setdefault(reason, []).append(case)
        for reason, cases in by_reason.items():
            named = ", ".join(case for case in cases[:NAMED_MAX] if case)
            more = f" and {len(cases) - NAMED_MAX} more" if len(cases) > NAMED_MAX else ""
            shown.append(f"  {test}{': ' if named else ''}{named}{more}: {reason}")
    return shown


def main():
    held, seen = [], []
    for line in sys.stdin:
        seen.append(line)
        if held or SUMMARY.match(line):
            held.append(line)
        else:
            print(line, end="", flush=True)
    try:
        with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
            skipped = lines_of(file.read())
    except FileNotFoundError:
        skipped = []
    if skipped:
        print("Left out, and why:", *skipped, "", sep="\n")
    print("".join(held), end="")
    shown, within = suite_budget.end_of(*suite_budget.times_of(seen), whole="--whole" in sys.argv[2:])
    if shown:
        print("", *shown, sep="\n")
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
