"""Programs that a benchmark runs to their end. When one of them fails, the benchmark ends too and
shows the last words of that program."""
import json
import os
import subprocess
import sys

SHOWN_CHARACTERS = 3000
TIMEOUT_S = 1800


def set_words(values):
    """The words of a command line that set each of `values` (KEY=VALUE)."""
    return [word for value in values for word in ("--set", value)]


def fail(command, code, said):
    sys.exit(f"bench: {' '.join(command)} ended with {code}:\n{said[-SHOWN_CHARACTERS:]}")


def run(command, env=None, timeout_s=TIMEOUT_S):
    """Runs `command` and gives its standard output. `env` is added to this process's environment."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env={**os.environ, **(env or {})}, timeout=timeout_s, check=False)
    if done.returncode != 0:
        fail(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


def times_by_size(text):
    """{bytes: microseconds} of the lines that a program with all-reduces printed."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith('{"bytes"')]
    return {line["bytes"]: line["p50_us"] for line in lines}
