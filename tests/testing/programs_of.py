"""The targets to build for the chosen tests: `ctest --show-only=json-v1 ... | programs_of.py BUILD`.

Prints the targets of test programs in BUILD/tests when the tests start nothing else themselves, and
nothing when one does (a test in Python starts programs that only it knows): then all must be built.
A program that such a target starts is a dependency of it in CMake.
"""
import json
import os
import sys

STARTER = "in_shards.py"  # It starts the program that its arguments name.


def targets_of(tests, build):
    """The sorted targets, or [] when all must be built."""
    folder = os.path.join(os.path.realpath(build), "tests")
    targets = set()
    for test in tests:
        command = test.get("command", [])
        if len(command) > 1 and os.path.basename(command[1]) == STARTER:
            command = command[3:]
        if not command or os.path.dirname(command[0]) != folder:
            return []
        targets.add(os.path.basename(command[0]))
    return sorted(targets)


if __name__ == "__main__":
    print(*targets_of(json.load(sys.stdin)["tests"], sys.argv[1]))
