"""The short training of ./dev gpu run: a small GPT by dtrain-gpt on the GPU, eagerly and by CUDA
graphs, and for a few steps on the CPU. It shows whether what is measured after it is right.

With `deterministic` graphs give the bits of eager steps (docs/ARCHITECTURE.md), unless a kernel of
LibTorch's does not repeat its own. A second eager training then tells: if eager steps repeat their
bits, graphs with others are wrong; else they are held to the tolerance between devices, as
gpt_engine_gpu_test holds them. The CPU trains in fp32, the GPU in bf16.
"""
import json
import math
import random
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import threading

STEPS, CPU_STEPS = 16, 4
FIRST_LAUNCHED = 5  # Graphs are captured in the fourth step; the steps after it are timed.
LEARNT = 0.98  # The last loss is at most this share of the first.
# gpt_engine_gpu_test has the same: bf16 rounds to 8 bits at other places. Gradient norms may differ
# ten times as much, because fewer of the numbers in them agree.
TOLERANCE, TOLERANCE_OF_NORMS = 2e-2, 2e-1
CPU_LIMIT_S = 30
GPU_RUNS = {"eager": "cuda_graphs=false", "graphs": "cuda_graphs=true",
            "eager again": "cuda_graphs=false"}
NAMES = [*GPU_RUNS, "cpu"]
CUT_OFF = "cut off"
VOCABULARY, SEQUENCE, TOKENS = 256, 256, 100_000
CONFIG = {
    "train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "train_steps": STEPS, "seed": 1,
    "deterministic": True, "gradient_clipping": 1.0, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
    "data": {"sequence_length": SEQUENCE},
    "eval_interval": 0, "checkpoint": {"interval": 0}, "sample": {"bytes": 0},
    "metrics": {"interval": 1000, "tensorboard": False},
    "model": {"model_type": "qwen2", "vocab_size": VOCABULARY, "hidden_size": 768,
              "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 12,
              "num_key_value_heads": 4, "max_position_embeddings": SEQUENCE}}
UNITS = {"B": 1, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
# Warnings in dtrain's log, in LibTorch's log, and of others.
SAID = (re.compile(r"\[[WE] [\d:.]+(?: rank \d+)?\] (.*)"), re.compile(r"\[[WE]\d+ [\d:.]+ [^\]]*\] (.*)"),
        re.compile(r"(.*\b[Ww]arning\b.*)"))
MEMORY = [f"memory/{kind}_bytes"
          for kind in ("weights", "live_weights", "gradients", "optimizer", "activations")]


def write_input(folder):
    """The configuration, and tokens that can be learnt: words of eight, drawn with a fixed seed."""
    draw = random.Random(1)
    words = [bytes(draw.randrange(VOCABULARY) for _ in range(8)) for _ in range(64)]
    tokens = b"".join(draw.choice(words) for _ in range(TOKENS // 8))
    with open(f"{folder}/tokens.bin", "wb") as file:  # llm.c's: docs/DATA_FORMAT.md.
        file.write(struct.pack("<256i", 20240520, 1, len(tokens), VOCABULARY, *[0] * 252))
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    data = {**CONFIG["data"], "train": [f"{folder}/tokens.bin"], "validation": [f"{folder}/tokens.bin"]}
    with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
        json.dump({**CONFIG, "data": data}, file)


def settings(name):
    return ["device=cpu", "bf16.enabled=false", f"train_steps={CPU_STEPS}"] if name == "cpu" else \
        ["device=cuda", GPU_RUNS[name]]


def words(program, name, folder):
    return [program, f"{folder}/config.json",
            *(word for setting in settings(name) for word in ("--set", setting))]


class CardMemory:
    """How far a card's memory in use rises while it is watched, by nvidia-smi: with CUDA's context
    and what LibTorch's cache holds. Programs beside it count too."""

    def __init__(self):
        self.first, self.most, self.begun = {}, {}, threading.Event()

    def __enter__(self):
        try:
            self.process = subprocess.Popen(
                ["nvidia-smi", "--query-gpu=index,memory.used", "--format=csv,noheader,nounits",
                 "-lms", "100"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        except OSError:
            self.process = None
            return self
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()
        self.begun.wait(timeout=5)
        return self

    def _read(self):
        for line in self.process.stdout:
            if found := re.fullmatch(r"(\d+), (\d+)", line.strip()):
                card, used = found[1], int(found[2])
                self.first.setdefault(card, used)
                self.most[card] = max(used, self.most.get(card, 0))
            self.begun.set()  # Some cards answer "[N/A]": that counts as begun too.
        self.begun.set()

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.thread.join(timeout=5)

    def rise_bytes(self):
        """The rise in bytes; None if nvidia-smi gave no number."""
        rises = [(self.most[card] - first) * 2**20 for card, first in self.first.items()]
        return max(rises, default=None)


def steps_of(folder):
    """The metrics of each step that a run has recorded. An incomplete last line is left out."""
    steps = []
    try:
        with open(f"{folder}/metrics/rank-0.jsonl", encoding="utf-8") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if record.get("kind") == "step" and "train/loss" in record["m"]:
                    steps.append(record["m"])
    except OSError:
        pass
    return steps


def warnings_of(output):
    """The warnings of a program, each once, without the time."""
    found = {}
    for line in output.splitlines():
        if match := next((match for said in SAID if (match := said.match(line))), None):
            found[match[1].strip()] = None
    return list(found)


def row_of(name, done, steps, rise_bytes):
    """Makes the row that is kept of a run; `done` is run_command's answer."""
    row = {"name": name, "s": done["s"], "losses": [float(step["train/loss"]) for step in steps],
           "norms": [float(step["train/grad_norm"]) for step in steps],
           "step_seconds": [step["time/step_s"] for step in steps],
           "graphs": len(re.findall(r"cuda_graphs: graph \d+ holds", done["output"])),
           "warnings": warnings_of(done["output"]), "card_rise_bytes": rise_bytes}
    timed = row["step_seconds"][FIRST_LAUNCHED:] or row["step_seconds"][1:]
    row["step_s"] = statistics.median(timed) if timed else None
    row["engine_bytes"] = max((sum(step.get(key, 0) for key in MEMORY) for step in steps), default=None)
    if done["code"] != 0:
        row["error"] = CUT_OFF if done["code"] is None else f"exit {done['code']}"
        row["output"] = done["output"][-2000:]
    return row


def largest_share(got, expected):
    """The largest difference as a share, of the steps that both have; not finite counts as all."""
    shares = [abs(a - b) / abs(b) if b else math.inf for a, b in zip(got, expected) if a != b]
    return max((share if math.isfinite(share) else math.inf for share in shares), default=0.0)


def same_bits(a, b):
    return (a["losses"], a["norms"]) == (b["losses"], b["norms"])


def too_far(a, b):
    """Describes how the losses and norms of common steps differ; None if they agree."""
    losses = largest_share(a["losses"], b["losses"])
    norms = largest_share(a["norms"], b["norms"])
    if losses <= TOLERANCE and norms <= TOLERANCE_OF_NORMS:
        return None
    return f"losses by {losses:.2g}, gradient norms by {norms:.2g} of themselves"


def faults(row):
    """The problems of one training on the GPU, without comparing it with others."""
    if "error" in row:
        return [f"{row['name']}: {row['error']}"]
    for step, (loss, norm) in enumerate(zip(row["losses"], row["norms"]), 1):
        if not (math.isfinite(loss) and math.isfinite(norm)):
            return [f"{row['name']}: step {step} is not finite (loss {loss:g}, gradient norm {norm:g})"]
    if len(row["losses"]) != STEPS:
        return [f"{row['name']}: {len(row['losses'])} of {STEPS} steps were recorded"]
    if row["losses"][-1] > LEARNT * row["losses"][0]:
        return [f"{row['name']}: nothing was learnt (loss {row['losses'][0]:.4f}, then "
                f"{row['losses'][-1]:.4f})"]
    return []


def compare_graphs(eager, graphs, again):
    """(problems, sentences) of graphs beside eager steps."""
    if same_bits(eager, graphs):
        return [], [f"Graphs and eager steps have the same bits in all {STEPS} losses and gradient norms."]
    step = next(i for i, (a, b) in enumerate(zip(zip(eager["losses"], eager["norms"]),
                                                 zip(graphs["losses"], graphs["norms"])), 1) if a != b)
    differ = (f"graphs differ from eager steps from step {step} on, losses by "
              f"{largest_share(graphs['losses'], eager['losses']):.2g} of themselves")
    if again is None or faults(again):
        return [f"{differ}; whether eager steps repeat their bits is not known"], []
    if same_bits(eager, again):
        return [f"{differ}, and eager steps repeat their bits"], []
    for name, row in (("graphs", graphs), ("a second eager training", again)):
        if far := too_far(row, eager):
            return [f"{name} and the first eager training differ: {far}"], []
    return [], [f"Eager steps do not repeat their bits here: {differ}, within the tolerance of "
                f"{TOLERANCE:g}."]


def judged(runs):
    """{"problems": what makes later figures wrong, "compared": sentences of what agreed, or was not
    compared}, of the runs that there are."""
    by_name = {row["name"]: row for row in runs}
    gpu = [by_name[name] for name in ("eager", "graphs") if name in by_name]
    problems, compared = [fault for row in gpu for fault in faults(row)], []
    if problems or len(gpu) < 2:
        return {"problems": problems, "compared": compared}
    problems, compared = compare_graphs(*gpu, by_name.get("eager again"))
    if gpu[1]["graphs"] == 0:
        compared.append("No graph was captured: the warnings say why, and trainings run eagerly.")
    cpu = by_name.get("cpu")
    if cpu is None or not cpu["losses"]:
        if cpu and cpu.get("error", CUT_OFF) != CUT_OFF:
            problems.append(f"cpu: {cpu['error']}")
        compared.append("Not compared with the CPU: "
                        + (cpu.get("error", "no step") if cpu else "no time") + ".")
    elif far := too_far(gpu[0], cpu):
        problems.append(f"GPU and CPU differ in the first {len(cpu['losses'])} steps: {far}")
    else:
        compared.append(f"The GPU's first {len(cpu['losses'])} losses (bf16) are within {TOLERANCE:g} of "
                        "the CPU's (fp32).")
    return {"problems": problems, "compared": compared}


def planned_bytes(output):
    """Reads the total in dtrain plan's table; None where there is none."""
    found = re.search(r"^\s*total\s+([\d.]+) (\w+)\s*$", output, re.MULTILINE)
    return float(found[1]) * UNITS[found[2]] if found and found[2] in UNITS else None


def with_earlier(before, runs):
    """The rows of this call, with finished runs of an earlier call in the place of those that were not
    taken or were cut off."""
    rows = {row["name"]: row for row in before if "error" not in row}
    rows.update((row["name"], row) for row in runs
                if row["name"] not in rows or row.get("error") != CUT_OFF)
    return [rows[name] for name in NAMES if name in rows]


class ShortRun:
    """`command(words, limit)`: run_command's, within the part's time, of which `left()` is left.
    `keep(result)` is called with what is known after each run. `before`: an earlier result of the
    same programs on the same GPU, or None."""

    def __init__(self, pack, command, left, keep, before):
        self.pack, self.command, self.left, self.keep = pack, command, left, keep
        self.before = before["runs"] if before else []
        self.runs, self.plan_bytes = [], None

    def result(self):
        """Shows the best rows, and counts as a problem also what this call cut off."""
        runs = with_earlier(self.before, self.runs)
        verdict = judged(runs)
        hung = [f"{row['name']}: {CUT_OFF}" for row in self.runs
                if row["name"] in ("eager", "graphs") and row.get("error") == CUT_OFF]
        verdict["problems"] += [problem for problem in hung if problem not in verdict["problems"]]
        return {"runs": runs, "plan_bytes": self.plan_bytes, **verdict}

    def train(self, name, folder, limit):
        run_folder = f"{folder}/{name.replace(' ', '-')}"
        with CardMemory() as memory:
            done = self.command([*words(f"{self.pack}/bin/dtrain-gpt", name, folder), "--fresh",
                                 "--run-dir", run_folder], limit)
        rise = None if name == "cpu" else memory.rise_bytes()
        self.runs.append(row_of(name, done, steps_of(run_folder), rise))
        shutil.rmtree(run_folder, ignore_errors=True)  # Its checkpoint is half a gigabyte.
        row = self.runs[-1]
        said = row.get("error") or f"{len(row['losses'])} steps"
        print(f"  {name}: {said} ({row['s']:.1f} s)", flush=True)
        self.keep(self.result())
        return row

    def take(self):
        with tempfile.TemporaryDirectory(prefix="dtrain-gpu-") as folder:
            write_input(folder)
            done = self.command(words(f"{self.pack}/bin/dtrain-plan", "eager", folder), 5)
            self.plan_bytes = planned_bytes(done["output"])
            eager = self.train("eager", folder, self.left() / 2)  # One that hangs leaves time.
            graphs = self.train("graphs", folder, self.left())  # Rather this one than the CPU's.
            if not faults(eager) + faults(graphs):
                if not same_bits(eager, graphs):
                    self.train("eager again", folder, self.left())
                self.train("cpu", folder, min(CPU_LIMIT_S, self.left()))
        return self.result()
