"""PyTorch's flight recorder analyser (torchfrtrace) reads our ranks' records and gives its verdict.

The analyser is the wheel's own code. Its parent packages are stood in for by empty ones, because
importing all of torch takes seconds and the analyser needs nothing of it.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from time_bounds import bound_s

BIN = os.environ["DTRAIN_BIN"]
RANKS = os.environ["DTRAIN_FLIGHT_RANKS"]
TIME_BOUND_S = bound_s(120)  # Generous: the machine may be busy.

ANALYSER = """
import os, sys, types
root = next(p for p in sys.path if os.path.isdir(os.path.join(p, "torch/distributed/flight_recorder")))
for name in ("torch", "torch.distributed"):
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split("."))]
    sys.modules[name] = module
from torch.distributed.flight_recorder.fr_trace import main
main(sys.argv[1:])
"""


def run(*words, expect=0):
    result = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, timeout=TIME_BOUND_S, check=False)
    if result.returncode != expect:
        raise AssertionError(f"{words} ended with {result.returncode}:\n{result.stdout}")
    return result.stdout


class FlightRecords(unittest.TestCase):
    def setUp(self):
        self.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-flight-")
        self.folder = self.folder_object.name
        self.addCleanup(self.folder_object.cleanup)

    def verdict(self, fault):
        """The analyser's output for three ranks whose third collective fails."""
        run(RANKS, self.folder, fault)
        run(f"{BIN}/dtrain", "trace", "torch", self.folder)
        return run(sys.executable, "-c", ANALYSER, f"{self.folder}/flight/torch")

    def test_ranks_that_agree_have_no_error(self):
        said = self.verdict("none")
        self.assertNotIn("Error type", said)
        self.assertNotIn("Not all ranks", said)

    def test_another_size_is_found_with_rank_and_sizes(self):
        said = self.verdict("size")
        self.assertIn("Collective sequence number: 3 has errors", said)
        self.assertIn("SIZE_OR_SYNTAX_MISMATCH", said)
        self.assertIn("Culprit rank 1", said)
        self.assertIn("[[101]]", said)

    def test_another_type_is_found(self):
        said = self.verdict("dtype")
        self.assertIn("Collective sequence number: 3 has errors", said)
        self.assertIn("COLLECTIVE_DTYPE_MISMATCH", said)
        self.assertIn("Int", said)

    def test_another_operation_is_found(self):
        said = self.verdict("order")
        self.assertIn("Collective sequence number: 3 has errors", said)
        self.assertIn("COLLECTIVE_TYPE_MISMATCH", said)
        self.assertIn("'broadcast'", said)

    def test_a_rank_that_did_not_come_is_named(self):
        said = self.verdict("missing")
        self.assertIn("Not all ranks joining collective, sequence number: 3", said)
        self.assertIn("missing ranks: {2}", said)

    def test_the_timeline_has_a_track_a_rank_and_the_failed_call(self):
        run(RANKS, self.folder, "missing")
        run(f"{BIN}/dtrain", "trace", "merge", self.folder)
        with open(f"{self.folder}/flight/trace.json", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
        self.assertEqual(len(names), 3)
        failed = [e for e in events if e["ph"] == "X" and "(failed)" in e["name"]]
        self.assertEqual({e["pid"] for e in failed}, {0, 1})
        for event in failed:
            self.assertIn("layers.1.mlp.gate.weight", event["name"])
            self.assertEqual(event["args"]["step"], 3)
            self.assertIn("rank 2", event["args"]["error"])
        self.assertEqual(len([e for e in events if e["ph"] == "X" and e["pid"] == 2]), 2)

    def test_a_wrong_word_and_an_empty_directory_are_explained(self):
        self.assertIn("did you mean merge", run(f"{BIN}/dtrain", "trace", "merg", expect=64))
        self.assertIn("SIGUSR2", run(f"{BIN}/dtrain", "trace", "merge", self.folder, expect=64))


if __name__ == "__main__":
    unittest.main(verbosity=2)
