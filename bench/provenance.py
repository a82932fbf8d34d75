"""The origin of a result: commit, date, machine and load. All that Python writes into bench/results
takes it from here; base/provenance.h is its twin for programs without a checkout.

A result has marks where it must not be taken for more than it is: the tree differed from its
commit, or others used the machine. `kept_path` keeps such results out of bench/results.
"""
import os
import platform
import re
import subprocess
import sys
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = f"{SOURCE}/bench/results"
# Cores that others may use: more would show in the figures. A share, so that a larger machine may
# have its few daemons.
BUSY_SHARE_MAX = 0.1
LOOK_S = 1.0
NAMED_FILES = 3
# Prose and earlier results do not change a measurement.
MEASURED = (".", ":!bench/results", ":!*.md")
# Names for CPUs by family and model, where the processor's own name says little (AMD's and Intel's
# lists).
GENERATIONS = {("AuthenticAMD", 25, 1): "zen3", ("AuthenticAMD", 25, 17): "zen4",
               ("AuthenticAMD", 26, 2): "zen5"}


def cpu_facts(path="/proc/cpuinfo"):
    """The first processor's facts; {} where Linux does not name them."""
    facts = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                facts.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    return facts


def cpu_name(facts=None):
    """The CPU's name with family and model, because a hypervisor may give different CPUs one name."""
    facts = cpu_facts() if facts is None else facts
    if "model name" not in facts:
        return platform.processor() or platform.machine()
    return f"{facts['model name']} (family {facts.get('cpu family')}, model {facts.get('model')})"


def machine_folder(facts=None, cores=None):
    """The folder of bench/results for results of such a machine: its CPU and its number of cores."""
    facts = cpu_facts() if facts is None else facts
    number = {key: int(facts[key]) for key in ("cpu family", "model") if facts.get(key, "").isdigit()}
    known = GENERATIONS.get((facts.get("vendor_id"), *number.values()))
    name = known or cpu_name(facts)
    name = re.sub(r"\((R|TM)\)", "", name)
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {cores or os.cpu_count()}core".lower()).strip("-")


def _git(*words):
    """The output of git on this source; "" without git or outside a checkout."""
    try:
        return subprocess.run(["git", "-C", SOURCE, *words], capture_output=True, text=True,
                              check=False).stdout.rstrip()
    except OSError:
        return ""


def changed_files():
    """Measured files that differ from the commit."""
    return [line[3:] for line in _git("status", "--porcelain", "--", *MEASURED).splitlines()]


def commit():
    """The commit, with "-dirty" where what is measured differs from it; "" without git."""
    said = _git("describe", "--always", "--abbrev=12", "--exclude=*")
    return said and said + ("-dirty" if changed_files() else "")


def today():
    return time.strftime("%Y-%m-%d", time.gmtime())


def _cpu_ticks(path):
    """(busy ticks, all ticks) of all cores together."""
    with open(path, encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    idle = ticks[3] + ticks[4]  # A wait for a disk takes no core.
    return sum(ticks) - idle, sum(ticks)


def busy_cores(seconds=LOOK_S, path="/proc/stat", wait=time.sleep):
    """How many cores others use now. The load average would still tell of the build before."""
    before = _cpu_ticks(path)
    wait(seconds)
    busy, whole = (b - a for a, b in zip(before, _cpu_ticks(path)))
    return os.cpu_count() * busy / whole if whole else 0.0


def marks_of(changed, busy, cores):
    """Warnings that a reader must see before the figures of a result."""
    marks = []
    if changed:
        named = ", ".join(changed[:NAMED_FILES])
        more = len(changed) - NAMED_FILES
        marks.append(f"dirty: {named}{f' and {more} more' if more > 0 else ''} differ from the commit")
    if busy > BUSY_SHARE_MAX * cores:
        marks.append(f"busy: others used {busy:.2f} of {cores} cores before the start")
    return marks


def look(packed_commit=None):
    """The provenance of the measurements that follow. `packed_commit`: the commit of a pack, which has
    no checkout."""
    busy, cores = busy_cores(), os.cpu_count()
    changed = changed_files() if packed_commit is None else \
        ["files of the pack"] if packed_commit.endswith("-dirty") else []
    return {"date": today(), "commit": commit() if packed_commit is None else packed_commit,
            "cpu": cpu_name(), "cores": cores, "load_average": os.getloadavg()[0],
            "busy_cores": round(busy, 3), "marks": marks_of(changed, busy, cores)}


def kept_path(path, marks):
    """`path`, or a path in build/bench if `path` is in bench/results and the result has marks: a kept
    result must come from a commit and a quiet machine."""
    inside = os.path.relpath(os.path.abspath(path), RESULTS)
    if not marks or inside.startswith(os.pardir):
        return path
    return os.path.join(SOURCE, "build", "bench", inside)


def say_marks(marks, path="", kept=""):
    """Prints the marks loudly; prints nothing if there are none."""
    if not marks:
        return
    print("\n".join(["=" * 100, *(f"bench: MARKED RESULT: {mark}" for mark in marks)]), file=sys.stderr)
    if path != kept:
        print(f"bench: it goes to {os.path.relpath(kept, SOURCE)} and {os.path.relpath(path, SOURCE)} "
              "stays as it is; commit, or end what else runs, for a result that is kept", file=sys.stderr)
    print("=" * 100, file=sys.stderr, flush=True)


if __name__ == "__main__":  # ./dev asks where the results of this machine are kept.
    print(f"bench/results/{machine_folder()}")
