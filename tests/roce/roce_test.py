"""Groups over real RDMA verbs: soft-RoCE in one qemu guest, and between two guests as two hosts."""
import json
import os
import re
import sys
import time
import unittest

import bandwidth
import guest
from lab import Lab

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]
# Generous: without KVM and on a busy machine everything takes ten times as long.
TIME_BOUND_S = int(os.environ.get("DTRAIN_ROCE_BOUND_S", "400"))
PROGRAMS = ("tests/comm_tests", "tests/roce_guest_test",
            *(f"bin/{program}" for program in bandwidth.PROGRAMS))


class Roce(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        kernel = guest.kernel_of(SOURCE)
        cls.why_not = guest.why_not(kernel)
        if cls.why_not:
            return
        start = time.monotonic()
        with Lab(kernel, [f"{BUILD}/{program}" for program in PROGRAMS]) as lab:
            cls.accelerator = lab.accelerator
            cls.guests, cls.ended = lab.alone("one", TIME_BOUND_S,
                                              bandwidth.arguments(1, (1 << 20, 4 << 20)))
            guests, ended = lab.pair(("a", "b"), TIME_BOUND_S)
        cls.guests.update(guests)
        cls.ended.update(ended)
        print(f"guests ran {time.monotonic() - start:.0f} s with {' '.join(cls.accelerator)}",
              file=sys.stderr)

    def setUp(self):
        if self.why_not:
            self.skipTest(f"LOUD SKIP: no soft-RoCE guest here: {self.why_not}")

    def passed(self, name):
        lines, code = self.guests["one"].section(name)
        self.assertEqual(code, 0, f"{name}:\n" + self.guests["one"].text())
        return lines

    def gtests_passed(self, name, at_least):
        """A googletest program that ran and passed at least so many tests."""
        text = "\n".join(self.passed(name))
        found = re.search(r"\[  PASSED  \] (\d+) tests?", text)
        self.assertTrue(found, text)
        self.assertGreaterEqual(int(found.group(1)), at_least, text)
        self.assertNotIn("SKIPPED", text)

    def result(self, role, scenario):
        lines, code = self.guests[role].section(scenario)
        self.assertEqual(code, 0, self.guests[role].text())
        results = [line for line in lines if line.startswith("RESULT ")]
        self.assertEqual(len(results), 1, self.guests[role].text())
        return results[0]

    def test_every_collective_has_the_oracles_bits_on_one_host(self):
        self.gtests_passed("group", 10)

    def test_faults_are_named_on_one_host(self):
        self.gtests_passed("faults", 7)

    def test_what_only_a_device_shows(self):
        self.gtests_passed("guest", 5)

    def test_the_guests_power_off_by_themselves(self):
        self.assertEqual(self.ended, {"one": True, "a": True, "b": True},
                         "\n".join(one.text() for one in self.guests.values()))

    def test_collectives_between_hosts(self):
        for role in ("a", "b"):
            self.assertTrue(self.result(role, "collectives").startswith("RESULT OK "),
                            self.guests[role].text())

    def test_a_killed_rank_is_named_by_the_other_host(self):
        self.assertEqual(self.result("b", "kill"), "RESULT SIGNAL 9")
        said = self.result("a", "kill")
        self.assertIn("RESULT UNAVAILABLE ", said)
        self.assertIn("rank 1 (node host1, pid ", said)

    def test_a_stopped_rank_is_named_at_the_deadline(self):
        self.assertEqual(self.result("b", "stop"), "RESULT SIGNAL 9")
        said = self.result("a", "stop")
        self.assertIn("RESULT DEADLINE_EXCEEDED ", said)
        self.assertIn("rank 1 (node host1, pid ", said)

    def test_a_cut_cable_is_told_on_both_hosts_before_the_deadline(self):
        for role, peer in (("a", 1), ("b", 0)):
            said = self.result(role, "cut")
            self.assertIn("RESULT UNAVAILABLE ", said)
            self.assertIn(f"rank {peer} (node host{peer}, pid ", said)
            self.assertIn("check the cable", said)
            # Where the port itself is down, soft-RoCE says that the device refused the request.
            self.assertRegex(said, "IBV_WC_RETRY_EXC_ERR|IBV_WC_LOC_QP_OP_ERR.* is DOWN")

    def test_bandwidth_is_measured_beside_ib_write_bw(self):
        rounds = bandwidth.read_rounds([self.guests["one"]], 1)
        self.assertEqual(rounds[0]["transport"], "rdma")
        self.assertEqual([(row["what"], row["bytes"]) for row in bandwidth.summary(rounds)],
                         [(what, size) for size in (1 << 20, 4 << 20)
                          for what in ("send_receive", "all_reduce_busbw")])
        print("\n".join(bandwidth.table(rounds)), file=sys.stderr)
        if path := os.environ.get("DTRAIN_ROCE_JSON"):
            with open(path, "w", encoding="utf-8") as file:
                json.dump({**rounds[0], "accelerator": self.accelerator[1]}, file, indent=1)
                file.write("\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
