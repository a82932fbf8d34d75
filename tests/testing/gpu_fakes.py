"""A machine with a GPU that is none: its nvidia-smi, and a pack whose benchmarks write results."""
import json
import os
import sys


def write_program(path, body, interpreter="/bin/sh"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!{interpreter}\n{body}\n")
    os.chmod(path, 0o755)


def fake_nvidia_smi(folder, memory_mib=3):
    write_program(f"{folder}/nvidia-smi", f'[ "$1" = -L ] && echo "GPU 0: A" || '
                                          f'echo "A, 1.2, {memory_mib} MiB"')


# Of the training whose picture has the name of DTRAIN_FAKE_HANGS it says its process and waits.
FAKE_TRAINING = """import json, os, sys, time
word = dict(zip(sys.argv[1:], sys.argv[2:]))
name = os.path.basename(word["--svg"])[:-len(".svg")]
if name == os.environ.get("DTRAIN_FAKE_HANGS"):
    with open(os.environ["DTRAIN_FAKE_PID"] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.environ["DTRAIN_FAKE_PID"])
    time.sleep(600)
with open(os.environ["DTRAIN_FAKE_ROW"]) as file:
    row = json.load(file)
with open(word["--json"], "w") as file:
    json.dump({**row, "step_seconds": [1.0] * int(word["--steps"])}, file)
"""


def fake_pack(folder, row):
    """A pack without tests, in which each of dtrain's trainings ends at once with `row`. Gives the
    variables that its run needs."""
    write_program(f"{folder}/bin/dtrain-bench-mfu", FAKE_TRAINING, sys.executable)
    with open(f"{folder}/pack.json", "w", encoding="utf-8") as file:
        json.dump({"commit": "", "libraries": [], "torch": None, "tests": []}, file)
    with open(f"{folder}/row.json", "w", encoding="utf-8") as file:
        json.dump(row, file)
    return {"DTRAIN_FAKE_ROW": f"{folder}/row.json", "DTRAIN_FAKE_PID": f"{folder}/pid",
            "DTRAIN_TORCH": folder}
