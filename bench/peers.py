"""The peers' twins as the benchmarks start them, under torchrun, and the facts that they leave."""
import json
import os
import sys
import tempfile

from runner import set_words

TWINS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "twins")


def twin_path(peer):
    return os.path.join(TWINS, f"gpt_{peer}.py")


def torchrun(script, config, facts, sets, extra, ranks, python=sys.executable):
    return [python, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks),
            "--standalone", script, config, "--facts", facts,
            *set_words(sets), *extra]


def twin_command(peer, config, facts, sets=(), extra=(), ranks=2, python=sys.executable):
    """`peer`: ddp, deepspeed or fsdp2; `sets`: KEY=VALUE of --set."""
    return torchrun(twin_path(peer), config, facts, sets, extra, ranks, python)


def stages_command(ways, config, facts, sets=(), extra=(), ranks=2):
    """`ways`: PEER:STAGE, one after the other; the facts of each in a file of its own."""
    return torchrun(twin_path("stages"), config, facts, sets, [*extra, "--ways", *ways], ranks)


def twin_environment(ranks=2):
    """Shares the cores among the ranks, as `dtrain launch` does. torch.compile's cache is
    kept, so that only the first run of a model waits for it."""
    threads = max(1, os.cpu_count() // ranks)
    return {"TORCHINDUCTOR_CACHE_DIR": os.path.join(tempfile.gettempdir(), "dtrain-bench-inductor"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1", **os.environ, "OMP_NUM_THREADS": str(threads),
            "PYTHONDONTWRITEBYTECODE": "1"}


def is_rank_of(peer):
    """Whether a command line is a rank's, and not torchrun's own."""
    return lambda command: twin_path(peer) in command and "-u" in command


def read_facts(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def steps_of(facts, name):
    return [fact[name] for fact in facts if fact["kind"] == "step"]
