"""Decides which parts of ./dev gpu run are not started, and why. Pure: no clock and no device.

A part that would measure something wrong is left out. Trainings and torch's beside them want
collectives, an engine and a short run without a fault; the benchmark of collectives wants
collectives. Kernels are timed whatever the engine does: their programs have no engine, and whoever
has 15 minutes of a GPU takes home what can still be right.

A test that was cut off has shown nothing, and a card that nobody has used before may take longer
than was planned. The short run decides then: one that was cut off stops the trainings.
"""
COLLECTIVES = ("nccl_gpu_test",)
ENGINE = ("runtime_gpu_test", "gpt_engine_gpu_test")
FIRST = COLLECTIVES + ENGINE


def in_order(tests):
    """Tests that can stop later parts come first, then the others as they are listed."""
    names = [*FIRST, *(test["name"] for test in tests)]
    return sorted(tests, key=lambda test: names.index(test["name"]))


def failed(tests, names):
    return [f"{test['name']} failed" for test in tests or []
            if test["name"] in names and test["state"] == "failed"]


def stopped(tests, short):
    """{part: why it is not started}. `tests` and `short`: results of these parts, or None where
    they are not known, which stops nothing."""
    of_collectives = failed(tests, COLLECTIVES)
    wrong = of_collectives + failed(tests, ENGINE) + [
        f"short run: {problem}" for problem in (short or {}).get("problems", [])]
    reasons = {"comm": of_collectives, "mfu": wrong, "mfu_peers": wrong}
    return {part: "; ".join(why) for part, why in reasons.items() if why}
