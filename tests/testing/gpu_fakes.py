"""A fake machine with a GPU: its nvidia-smi, and a pack whose benchmarks write results."""
import json
import os
import sys
import tempfile
import unittest


def write_program(path, body, interpreter="/bin/sh"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"#!{interpreter}\n{body}\n")
    os.chmod(path, 0o755)


def fake_nvidia_smi(folder, memory_mib=3):
    """One GPU, A, whose memory in use rises by 1,000 MiB at once."""
    write_program(f"{folder}/nvidia-smi", f"""case "$*" in
-L) echo "GPU 0: A" ;;
*memory.used*) printf '0, 100\\n0, 1100\\n' ;;
*) echo "A, 1.2, {memory_mib} MiB" ;;
esac""")


# For the training whose picture DTRAIN_FAKE_HANGS names, it prints its process id and waits.
FAKE_TRAINING = """import json, os, sys, time
word = dict(zip(sys.argv[1:], sys.argv[2:]))
name = os.path.basename(word["--svg"])[:-len(".svg")]
if name == os.environ.get("DTRAIN_FAKE_HANGS"):
    with open(os.environ["DTRAIN_FAKE_PID"] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.environ["DTRAIN_FAKE_PID"])
    time.sleep(600)
with open(os.path.dirname(os.environ["DTRAIN_FAKE_ROW"]) + "/order", "a") as file:
    file.write(f"mfu {name}\\n")
with open(os.environ["DTRAIN_FAKE_ROW"]) as file:
    row = json.load(file)
with open(word["--json"], "w") as file:
    json.dump({**row, "step_seconds": [1.0] * int(word["--steps"])}, file)
"""


# short.json of the pack gives, by the name of each training of the short run, its "losses", the text
# that it prints ("says") and its exit code; one that "hangs" prints its process id and waits. A
# training without an entry has falling losses, and two graphs if it uses graphs.
FAKE_GPT = """import json, os, sys, time
words = sys.argv[1:]
settings = [word for flag, word in zip(words, words[1:]) if flag == "--set"]
folder = words[words.index("--run-dir") + 1]
name = os.path.basename(folder)
graphs = "cuda_graphs=true" in settings
with open(os.path.dirname(os.environ["DTRAIN_FAKE_ROW"]) + "/order", "a") as file:
    file.write(f"gpt {name}\\n")
with open(words[0]) as file:
    config = json.load(file)
steps = next((int(word[12:]) for word in settings if word.startswith("train_steps=")), config["train_steps"])
with open(os.path.dirname(os.environ["DTRAIN_FAKE_ROW"]) + "/short.json") as file:
    facts = json.load(file).get(name, {})
if facts.get("hangs"):
    with open(os.environ["DTRAIN_FAKE_PID"] + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, os.environ["DTRAIN_FAKE_PID"])
    time.sleep(600)
for graph in (1, 2) if graphs else ():
    print(f"[I 00:00:00.00{graph}] cuda_graphs: graph {graph} holds a micro-batch", file=sys.stderr)
print(facts.get("says", ""), file=sys.stderr)
os.makedirs(f"{folder}/metrics")
with open(f"{folder}/metrics/rank-0.jsonl", "w") as file:
    for step, loss in enumerate(facts.get("losses") or [5.5 - 0.1 * i for i in range(steps)], 1):
        m = {"train/loss": loss, "train/grad_norm": 1.0, "time/step_s": 0.002 if graphs else 0.008,
             "memory/weights_bytes": 2e8, "memory/optimizer_bytes": 3e8}
        file.write(json.dumps({"kind": "step", "step": step, "m": m}) + "\\n")
sys.exit(facts.get("exit", 0))
"""
FAKE_PLAN = """echo "memory of each rank:"
echo "  weights            85.7 MB"
echo "  total             932.1 MB\""""
# A benchmark that prints its name and writes an empty result.
FAKE_BENCHMARK = """import json, os, sys
with open(os.path.dirname(os.environ["DTRAIN_FAKE_ROW"]) + "/order", "a") as file:
    file.write(os.path.basename(sys.argv[0]) + "\\n")
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump({"elements": 8, "results": [], "rows": []}, file)
"""
FAKE_TEST = 'echo "${0##*/}" >>"${DTRAIN_FAKE_ROW%%/*}/order"; exit %d'


def fake_pack(folder, row, tests=None):
    """A pack whose `tests` ({name: exit code}) and programs end at once: each of dtrain's trainings
    with `row`. Gives the variables that its run needs. The pack's file `order` names what was
    started."""
    write_program(f"{folder}/bin/dtrain-bench-mfu", FAKE_TRAINING, sys.executable)
    write_program(f"{folder}/bin/dtrain-gpt", FAKE_GPT, sys.executable)
    write_program(f"{folder}/bin/dtrain-plan", FAKE_PLAN)
    for name in ("dtrain-bench-kernels-cuda", "dtrain-bench-comm"):
        write_program(f"{folder}/bin/{name}", FAKE_BENCHMARK, sys.executable)
    for name, code in (tests or {}).items():
        write_program(f"{folder}/tests/{name}", FAKE_TEST % code)
    listed = [{"name": name, "program": f"tests/{name}", "limit_s": 60} for name in tests or {}]
    with open(f"{folder}/pack.json", "w", encoding="utf-8") as file:
        json.dump({"commit": "0123456789ab", "libraries": [], "torch": None, "tests": listed}, file)
    with open(f"{folder}/row.json", "w", encoding="utf-8") as file:
        json.dump(row, file)
    return {"DTRAIN_FAKE_ROW": f"{folder}/row.json", "DTRAIN_FAKE_PID": f"{folder}/pid",
            "DTRAIN_TORCH": folder}


class GpuMachine(unittest.TestCase):
    """Whole calls on a machine with a fake GPU and fake programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        fake_nvidia_smi(f"{self.folder}/host", memory_mib=143771)

    def use_pack(self, row, tests=None):
        self.environment = {**os.environ, **fake_pack(f"{self.folder}/pack", row, tests),
                            "PATH": f"{self.folder}/host:{os.environ['PATH']}"}
