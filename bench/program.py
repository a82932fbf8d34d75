"""Benchmarks that are one program in C++: it measures, and its results are kept as all others are."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import provenance
from report import begin, taken, write_results

OF_THE_PROGRAM = ("bench", "version", "commit", "date", "cpu", "cores", "load_average")


def measure(bench, doc, program, *words):
    """Runs BIN/`program` with `words` and this process's further arguments. The facts that the
    program gives of its own start, when its driver already ran, give way to the driver's."""
    parser = argparse.ArgumentParser(description=doc, allow_abbrev=False,
                                     epilog=f"Other arguments go to {program}.")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", default="")
    args, further = parser.parse_known_args()
    path = begin(bench, args.json)
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        written = os.path.join(folder, "results.json")
        code = subprocess.run([f"{args.bin}/{program}", *words, *further, "--json", written],
                              check=False).returncode
        if code != 0:
            sys.exit(code)
        with open(written, encoding="utf-8") as file:
            facts = json.load(file)
    write_results(path, bench, **{key: value for key, value in facts.items()
                                  if key not in OF_THE_PROGRAM})
    provenance.say_marks(taken()["marks"])
