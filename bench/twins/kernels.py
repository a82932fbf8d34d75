"""torch's own forms of the operations that `dtrain bench kernels` measures: eager and compiled.

A process that bench/kernels.py talks to: standard input gives `NAME eager|compile` a line, and each is
one timed call, answered by one JSON line: {"s": seconds} or {"missing": why}. The first call of
a compiled form compiles it; its outputs are compared with eager's before anything is timed. Every
answer says whether it was "compiled" and, where outputs can be compared, their relative "distance"
and the distance "allowed"; and which "eager_form" is the fastest where torch has several.
"""
import argparse
import json
import sys
import time

import torch

from kernel_twins import Setting, find

ARENA_STREAMS = 6  # Four bytes an element, as in bench/kernels/case.h.
GROSS = 10  # Above so many tolerances the work is not the same: an error. Below, the answer says so.
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2,
             torch.float8_e4m3fn: 2e-2, torch.float8_e5m2: 2e-2, torch.int8: 2e-2}


def flatten(outputs):
    return [t.float() for t in (outputs if isinstance(outputs, tuple) else (outputs,))]


def check_equal(name, eager, compiled):
    """The two peers do the same work: the largest relative distance of an output, and what of it
    is allowed."""
    limit = max(TOLERANCE[t.dtype] for t in (eager if isinstance(eager, tuple) else (eager,)))
    distances = []
    for index, (a, b) in enumerate(zip(flatten(eager), flatten(compiled))):
        distances.append(((a - b).norm() / a.norm().clamp_min(1e-30)).item())
        if not distances[-1] <= GROSS * limit:
            raise SystemExit(f"{name}: output {index} is {distances[-1]:.2g} off eager's, allowed: "
                             f"{limit}, and at most {GROSS} times that")
    return {"distance": max(distances), "allowed": limit}


class Ready:
    """The forms of one case, compiled, compared and warm."""

    ROUNDS = 3  # Calls of each eager form if there are several; the fastest call counts.
    evicting = None  # It is as large as dtrain's arena, so that writing it empties the caches.

    def __init__(self, name, setting):
        if Ready.evicting is None:
            Ready.evicting = torch.empty(ARENA_STREAMS * setting.elements)
        maker, dtype = find(name)
        self.twin = maker(setting, dtype)
        torch._dynamo.reset()
        self.forms = {"eager": self.twin.eager, "compile": self.twin.form_of_compile()}
        self.said = {"compiled": not self.twin.never_compiled}
        if self.twin.others:
            self.choose_eager(name)
        eager, compiled = self.forms["eager"](), self.forms["compile"]()
        if not (getattr(self.twin, "in_place", False) or getattr(self.twin, "random", False)):
            self.said.update(check_equal(f"{name}, torch.compile", eager, compiled))
        for form in self.forms.values():
            form()

    def choose_eager(self, name):
        """Takes the fastest of torch's own forms, so that the peer is not a slow one."""
        forms = self.twin.eager_forms()
        first = forms["eager"]()
        fastest = {}
        for form, call in forms.items():
            check_equal(f"{name}, {form}", first, call())
            self.forms["eager"] = call
            fastest[form] = min(self.seconds("eager") for _ in range(self.ROUNDS))
        self.said["eager_form"] = min(fastest, key=fastest.get)
        self.forms["eager"] = forms[self.said["eager_form"]]

    def seconds(self, kind):
        Ready.evicting.fill_(0.01)
        start = time.perf_counter()
        self.forms[kind]()
        return time.perf_counter() - start


def serve(setting):
    current, ready = None, None
    for line in sys.stdin:
        name, kind = line.split()
        if find(name) is None:
            print(json.dumps({"missing": f"bench/twins/kernel_twins has no twin of {name}"}), flush=True)
            continue
        if name != current:
            ready = None  # Frees the operands before the next case makes its own.
            current, ready = name, Ready(name, setting)
        print(json.dumps({"s": ready.seconds(kind), **ready.said}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--elements", type=int, required=True)
    parser.add_argument("--hidden", type=int, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--shapes", default="{}", help="JSON: case -> what else it must know")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    serve(Setting(args.elements, args.hidden, json.loads(args.shapes)))


if __name__ == "__main__":
    main()
