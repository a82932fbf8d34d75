"""Shares of a step's time, read from its Chrome trace (metrics.trace_steps)."""
import collections
import json
import re

GEMM_OR_ATTENTION = re.compile(
    r"aten::(mm|addmm|bmm|baddbmm)$|scaled_dot_product|flash_attention|dtrain::attention")
WAIT = "dtrain::wait"


def events_of(path):
    """(name, begin, end) in us of the thread that trains: operations and dtrain's phases."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = [e for e in events if e.get("ph") == "X" and e.get("cat") in ("cpu_op", "user_annotation")]
    phases = [e for e in spans if e["name"] in ("dtrain::forward", "dtrain::backward")]
    if not phases:
        raise ValueError(f"{path}: no dtrain::forward in it; metrics.trace_steps must be 1")
    thread = phases[0]["tid"]
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in spans if e["tid"] == thread]


def shares(events):
    """{"gemm_attention", "wait", "outside": 1 less gemm_attention, "most": [(name, share)]}, of
    the time from the first event to the last. A moment counts for the innermost event; what
    attention or a wait calls counts as theirs."""
    events = sorted(events, key=lambda e: (e[1], -e[2]))
    begin, end = events[0][1], max(e[2] for e in events)
    own = collections.Counter()
    open_events, now = [], begin

    def advance(to):
        nonlocal now
        while now < to:
            while open_events and open_events[-1][1] <= now:
                open_events.pop()
            until = min(to, open_events[-1][1]) if open_events else to
            own[open_events[-1][0] if open_events else "between operations"] += until - now
            now = until

    for name, first, last in events:
        advance(first)
        while open_events and open_events[-1][1] <= first:
            open_events.pop()
        outer = open_events[-1][0] if open_events else ""
        kept = outer if GEMM_OR_ATTENTION.search(outer) or outer == WAIT else name
        open_events.append((kept, last))
    advance(end)
    whole = end - begin
    gemm = sum(time for name, time in own.items() if GEMM_OR_ATTENTION.search(name))
    rest = [(name, time / whole) for name, time in own.most_common()
            if not GEMM_OR_ATTENTION.search(name) and name != WAIT]
    return {"gemm_attention": gemm / whole, "wait": own[WAIT] / whole, "outside": 1 - gemm / whole,
            "seconds": whole * 1e-6, "most": rest[:8]}


def shares_of_trace(path):
    return shares(events_of(path))
