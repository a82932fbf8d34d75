"""Reads from ctest's output how long the tests took, and checks whether the suite is within its time."""
import os
import re

# All tests together on 2 cores. A fresh clone is to be built and tested within 50 minutes there, and the
# build needs 30 of them; people who wait longer for a change's verdict stop running all of it.
BUDGET_S = 20 * 60
BUDGET_CORES = 2
OVER_BY = 1.5  # The suite fails above this share: machines differ, and other programs run beside it.
SLOWEST = 5
TEST = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) .*?\s(\d+\.\d+) sec")
TOTAL = re.compile(r"^Total Test time \(real\) =\s+(\d+\.\d+) sec")


def times_of(lines):
    """({test: seconds}, seconds of all together, None where ctest did not say)."""
    tests, total = {}, None
    for line in lines:
        if match := TEST.match(line):
            tests[match[1]] = float(match[2])
        elif match := TOTAL.match(line):
            total = float(match[1])
    return tests, total


def budget_s(cores):
    """The budget for a number of cores: one core takes twice as long as two or more."""
    return BUDGET_S * BUDGET_CORES / min(cores, BUDGET_CORES)


def end_of(tests, total, whole, cores=None):
    """(last lines to show, whether the suite is within its time). `whole`: no filter left tests out, so
    the total is the suite's."""
    cores = cores or os.cpu_count()
    shown = []
    if tests:
        slowest = sorted(tests.items(), key=lambda item: (-item[1], item[0]))[:SLOWEST]
        shown.append("slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in slowest))
    if total is None or not whole:
        return shown, True
    budget = budget_s(cores)
    shown.append(f"tests took {total:,.0f} s of the {budget:,.0f} s that they may take on {cores} cores")
    if total <= OVER_BY * budget:
        return shown, True
    shown.append(f"./dev test: FAILED: the tests took {total:,.0f} s, more than {OVER_BY:g} times their "
                 f"budget of {budget:,.0f} s; shorten the slowest, give them the label \"long\", or run "
                 "again when nothing else runs here")
    return shown, False
