"""Random faults for a job of several nodes: which come when, drawn from a seed, and what the job's records say
afterwards. Pure: it starts nothing and reads no clock."""
import dataclasses
import random
import statistics

# On ranks: of the first node, or of the other one that trains.
RANK_KINDS = ("kill_rank", "stop_rank")
# On a whole node, but never on the one that has the coordinator.
NODE_KINDS = ("kill_agent", "stop_agent", "lose_node", "partition")
KINDS = (*RANK_KINDS, *NODE_KINDS, "full_disk")
SPARE_SHARE = 0.25  # The share of nodes' faults that meet the spare.
# How long each lasts; the others are over at once. Some are shorter than what a job must notice.
LASTS_S = {"stop_rank": (0.2, 5), "stop_agent": (0.3, 5), "lose_node": (1, 5), "partition": (0.3, 5),
           "full_disk": (1, 5)}
# A step that takes longer than so many usual ones was held up by a fault, and only so much of it counts.
LONG_STEP = 2
# The last logged step may not have ended, and the journal may lose one of those that have.
PROMISED_LOSS = 2


@dataclasses.dataclass(frozen=True)
class Fault:
    at_s: float  # After the start of the job.
    kind: str
    target: str  # "first", "partner" or "spare"; "" for the disk.
    lasts_s: float = 0.0

    def text(self):
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.at_s:.1f} s: {self.kind} {self.target}{lasts}"


def plan(seed, seconds, every_s):
    """The faults of a job that runs for `seconds`: one about every `every_s`, each kind equally often."""
    draw = random.Random(seed)
    faults, deck = [], []
    for number in range(int(seconds / every_s)):
        if not deck:
            deck = list(KINDS)
            draw.shuffle(deck)
        kind = deck.pop()
        target = ""
        if kind in RANK_KINDS:
            target = draw.choice(("first", "partner"))
        elif kind in NODE_KINDS:
            target = "spare" if draw.random() < SPARE_SHARE else "partner"
        least, most = LASTS_S.get(kind, (0, 0))
        # In a job that has a fault every few seconds, none lasts until the next.
        lasts_s = draw.uniform(least, max(least, min(most, every_s / 2)))
        faults.append(Fault((number + 0.5 + draw.uniform(-0.3, 0.3)) * every_s, kind, target, lasts_s))
    return faults


@dataclasses.dataclass
class Attempt:
    """Records of rank 0 between two starts."""
    restored: int  # The step from which it went on.
    steps: list = dataclasses.field(default_factory=list)
    durable: int = 0  # The newest step that a checkpoint has.
    journal_is_off: bool = False


def attempts_of(records):
    """The records of rank 0 as attempts, in their order. One that took no step is left out."""
    found = [Attempt(0)]
    for record in records:
        attempt = found[-1]
        if "restored" in record:
            found.append(Attempt(record["restored"], durable=attempt.durable))
        elif record.get("name") == "journal_off":
            attempt.journal_is_off = True
        elif record["kind"] == "ckpt" and record.get("durable"):
            attempt.durable = record["step"]
            attempt.journal_is_off = False  # It begins anew.
        elif record["kind"] == "step":
            last = attempt.steps[-1]["step"] if attempt.steps else attempt.restored
            if record["step"] <= last:  # A start from step 0, of which no record tells.
                found.append(Attempt(0))
            found[-1].steps.append(record)
    return [attempt for attempt in found if attempt.steps]


def lost_steps(attempts, full_disks=()):
    """[(steps that were logged and taken again, how many of them the journal's promise allows)] of the starts
    after the first. `full_disks`: [(begin, end)], in which the journal may have switched itself off
    without a record of that; it begins anew with the next checkpoint."""
    found = []
    for before, after in zip(attempts, attempts[1:]):
        last = before.steps[-1]
        blind = before.journal_is_off or any(
            begin <= last["ts"] and (before.durable == 0 or before.steps[0]["ts"] <= end)
            for begin, end in full_disks)
        allowed = last["step"] - before.durable if blind else PROMISED_LOSS
        found.append((max(0, last["step"] - after.restored), allowed))
    return found


def losses_of(attempts):
    """{step: [loss each time that it was taken]}"""
    found = {}
    for attempt in attempts:
        for record in attempt.steps:
            if "train/loss" in record["m"]:
                found.setdefault(record["step"], []).append(record["m"]["train/loss"])
    return found


def wrong_steps(losses, right):
    """[(step, loss, what it is without faults)] of the steps that differ."""
    return [(step, loss, right.get(step)) for step, taken in sorted(losses.items()) for loss in taken
            if loss != right.get(step)]


def good_seconds(attempts, right):
    """The time of the steps with the right loss, each counted once. Between two records of an attempt lies the
    time of the second one's step, with what the program does between steps; records may lack where the disk
    was full."""
    gaps = [b["ts"] - a["ts"] for attempt in attempts for a, b in zip(attempt.steps, attempt.steps[1:])]
    if not gaps:
        return 0.0
    usual = statistics.median(gaps)
    seconds = {}
    for attempt in attempts:
        before = None
        for record in attempt.steps:
            count = record["step"] - before["step"] if before else 1
            taken = record["ts"] - before["ts"] if before else record["m"].get("time/step_s", usual)
            if record["m"].get("train/loss") == right.get(record["step"]):
                seconds[record["step"]] = min(taken, LONG_STEP * usual * count)
            before = record
    return sum(seconds.values())


def summary(records, right, begin, end, full_disks=()):
    """The figures of a job that ran from `begin` to `end` (seconds since the epoch)."""
    attempts = attempts_of(records)
    lost = lost_steps(attempts, full_disks)
    losses = losses_of(attempts)
    return {"seconds": end - begin, "goodput": good_seconds(attempts, right) / (end - begin),
            "steps": max(losses, default=0), "attempts": len(attempts),
            "taken_again": sum(steps for steps, _ in lost),
            "lost_beyond_promise": sum(max(0, steps - allowed) for steps, allowed in lost),
            "wrong": wrong_steps(losses, right)}
