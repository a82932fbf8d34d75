"""The trainings that ./dev gpu run measures and torch's beside them: what they are, what they need
of a card, and which of them a time is enough for. No clock and no device: values in, plan out.

The protocol is llmq's: sequences of 1,024, 524,288 tokens a step, AdamW's states in bf16 with
stochastic rounding, clipping at 1, nothing recomputed. llmq has no masters; dtrain keeps fp32 ones.
"""
import dataclasses
import sys

SEQUENCE, TOKENS_A_STEP = 1024, 524288
# Two steps run eagerly and the third is captured. A first micro-batch copies its gradients, others
# add to them, and the last reduces them: steps of three have each kind.
WARM_UP_STEPS, SHORT_MICRO_BATCHES = 3, 3
PAST_PLAN = 2  # A training may take this many times what is planned: its speed is not known before.


@dataclasses.dataclass(frozen=True)
class Training:
    """A training by dtrain."""
    model: str
    dtype: str
    micro_batch: int
    needs_gb: float  # Memory of the card: weights, masters, gradients, states, activations.
    step_s: float  # A whole step on an H100 or H200 at the goal's rate.
    start_s: float  # Estimate of all but whole steps: start, the card's rates, short steps.
    goal: bool = True  # The others come after these.
    attention: str = "cudnn"  # Twice as fast as flash on an H100.
    host_gb: float = 0  # Above 0: masters and states are in the host's memory (ZeRO-Offload).
    steps_max: int = 2
    unmeasured_steps: int = 2  # Whole ones: bench/mfu/measure_steps.h, after short warm-up steps.

    @property
    def name(self):
        unusual = [self.attention] if self.attention != "cudnn" else []
        return "-".join([self.model, self.dtype, *unusual, *(["offload"] if self.host_gb else [])])

    @property
    def accumulation(self):
        return TOKENS_A_STEP // SEQUENCE // self.micro_batch

    def words(self, pack, folder, steps):
        settings = ["cuda_graphs=true", "bf16.stochastic_rounding=true"]
        if self.host_gb:
            settings.append("zero_optimization.offload_optimizer.device=cpu")
        return [f"{pack}/bin/dtrain-bench-mfu", "--preset", self.model, "--device", "cuda",
                "--dtype", self.dtype, "--attention", self.attention, "--bf16-states",
                "--zero", "1" if self.host_gb else "0", "--micro-batch", str(self.micro_batch),
                "--accumulation", str(self.accumulation), "--seq", str(SEQUENCE),
                *(word for setting in settings for word in ("--set", setting)),
                "--warm-up", str(WARM_UP_STEPS), "--short-steps", str(SHORT_MICRO_BATCHES),
                "--steps", str(steps), "--svg", f"{folder}/{self.name}.svg"]

    def facts(self):
        """Facts that its row has even if it fails; the program's own facts are added."""
        return {"name": self.name, "model": self.model, "dtype": self.dtype,
                "attention": self.attention, "rounding": "stochastic", "gradients": "fp32",
                "masters": "fp32, host memory" if self.host_gb else "fp32", "loss": "logits in chunks"}


@dataclasses.dataclass(frozen=True)
class Peer:
    """The same model of transformers, trained by torch in as many micro-batches of the same size."""
    model: str
    way: str
    micro_batch: int
    needs_gb: float
    step_s: float  # An estimate, as are all numbers of a peer.
    start_s: float
    goal: bool = False
    host_gb: float = 0
    steps_max: int = 2
    unmeasured_steps: int = 0

    @property
    def name(self):
        return f"{self.model}-{self.way}"

    @property
    def accumulation(self):
        return TOKENS_A_STEP // SEQUENCE // self.micro_batch

    def words(self, pack, folder, steps):
        return [sys.executable, f"{pack}/bench/twins/mfu_torch.py", "--config",
                f"{pack}/examples/configs/models/{self.model}.json", "--device", "cuda", "--dtype",
                "bf16", "--micro-batch", str(self.micro_batch), "--accumulation",
                str(self.accumulation), "--seq", str(SEQUENCE), "--way", self.way, "--warm-up",
                str(WARM_UP_STEPS), "--short-steps", str(SHORT_MICRO_BATCHES), "--steps", str(steps)]

    def facts(self):
        return {"name": self.name, "model": self.model, "way": self.way}


# They run in this order. With AdamW's states in bf16 a parameter takes 14 bytes, 6 of them on the card where
# masters and states are not; FP8 adds the codes of weights.
TRAININGS = (
    Training("qwen2.5-7b", "bf16", 4, 130, step_s=40, start_s=25),
    Training("qwen2.5-7b", "bf16", 4, 72, step_s=46, start_s=60, host_gb=66),
    Training("qwen2.5-3b", "bf16", 4, 64, step_s=17, start_s=18),
    Training("qwen2.5-3b", "fp8", 4, 72, step_s=12.6, start_s=18),
    Training("qwen2.5-1.5b", "bf16", 8, 46, step_s=9.2, start_s=15),
    Training("qwen2.5-3b", "bf16", 4, 64, step_s=17, start_s=18, goal=False, attention="flash"))
PEERS = (
    Peer("qwen2.5-1.5b", "eager", 8, 60, step_s=14, start_s=25),
    Peer("qwen2.5-1.5b", "compile", 8, 60, step_s=11, start_s=90),
    Peer("qwen2.5-3b", "eager", 4, 60, step_s=26, start_s=30),
    Peer("qwen2.5-3b", "compile", 4, 60, step_s=21, start_s=110))
ALL = {"mfu": TRAININGS, "mfu_peers": PEERS}
NAMES = [training.name for of_part in ALL.values() for training in of_part]


def seconds(training, steps):
    return training.start_s + (training.unmeasured_steps + steps) * training.step_s


def chosen(part, card_gb, asked):
    """The trainings of a part to take: the `asked` names, or all. A training with states in the host's
    memory is for a model that is too large for the card; on a larger card it is only taken if asked."""
    if asked:
        return [training for training in ALL[part] if training.name in asked]
    too_large = {training.model for training in ALL[part]
                 if not training.host_gb and training.needs_gb > card_gb}
    return [training for training in ALL[part]
            if not training.host_gb or training.model in too_large]


def does_not_fit(training, card_gb, host_gb):
    """The reason if the card's or the host's memory is too small, else None."""
    if training.needs_gb > card_gb:
        return f"it needs about {training.needs_gb:.0f} GB of memory, this GPU has {card_gb:.0f}"
    if training.host_gb > host_gb:
        return (f"it needs about {training.host_gb:.0f} GB of the host's memory, "
                f"{host_gb:.0f} are available")
    return None


def plan(trainings, left):
    """{name: whole steps} to measure in `left` seconds; a training without time for a step is missing.
    Those with goals come first. Each gets one step in its order, and then more."""
    steps = {}
    for goal in (True, False):
        group = [training for training in trainings if training.goal == goal]
        for training in group:
            if seconds(training, 1) <= left:
                steps[training.name] = 1
                left -= seconds(training, 1)
        for training in group:
            while 0 < steps.get(training.name, 0) < training.steps_max and training.step_s <= left:
                steps[training.name] += 1
                left -= training.step_s
    return steps


def not_taken(training, left):
    """The facts of a training for which no time was left."""
    return {"skipped": f"not taken: time (about {seconds(training, 1):.0f} s, "
                       f"{max(0, left):.0f} were left); run --trainings {training.name}"}
