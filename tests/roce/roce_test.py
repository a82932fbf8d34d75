"""Groups over real RDMA verbs: soft-RoCE between two qemu guests as two hosts.

With DTRAIN_TEST_LONG set it also runs what one guest shows, which takes three times as long: every collective
and every fault of comm_tests between its own processes, what only a device shows, and the bandwidth
beside ib_write_bw's. `./dev test long` runs it so, as roce_all_test.
"""
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
# A generous limit: without KVM and on a busy machine everything takes ten times as long.
TIME_BOUND_S = int(os.environ.get("DTRAIN_ROCE_BOUND_S", "400"))
LINK_TRIES = 2  # How many pairs of guests are started while their emulated link dies.
ALL = "DTRAIN_TEST_LONG" in os.environ


class Guests(unittest.TestCase):
    """Runs `roles` with `programs` on the disk, and keeps their output for the test cases."""
    maxDiff = None
    programs = roles = ()

    @classmethod
    def setUpClass(cls):
        kernel = guest.kernel_of(SOURCE)
        cls.why_not = guest.why_not(kernel)
        if cls.why_not:
            return
        start = time.monotonic()
        with Lab(kernel, [f"{BUILD}/{program}" for program in cls.programs]) as lab:
            cls.accelerator = lab.accelerator
            cls.guests, cls.ended = cls.start(lab)
        print(f"guests ran {time.monotonic() - start:.0f} s with {' '.join(cls.accelerator)}",
              file=sys.stderr)

    def setUp(self):
        if self.why_not:
            self.skipTest(f"LOUD SKIP: no soft-RoCE guest here: {self.why_not}")

    def expect_powered_off(self):
        self.assertEqual(self.ended, {role: True for role in self.roles},
                         "\n".join(one.text() for one in self.guests.values()))


class OneHost(Guests):
    programs = ("tests/comm_tests", "tests/roce_guest_test",
                *(f"bin/{program}" for program in bandwidth.PROGRAMS))
    roles = ("one",)

    @classmethod
    def start(cls, lab):
        return lab.alone("one", TIME_BOUND_S, bandwidth.arguments(1, (1 << 20, 4 << 20)))

    def passed(self, name):
        lines, code = self.guests["one"].section(name)
        self.assertEqual(code, 0, f"{name}:\n" + self.guests["one"].text())
        return lines

    def gtests_passed(self, name, at_least):
        """Checks that a googletest program ran and passed at least this many tests."""
        text = "\n".join(self.passed(name))
        found = re.search(r"\[  PASSED  \] (\d+) tests?", text)
        self.assertTrue(found, text)
        self.assertGreaterEqual(int(found.group(1)), at_least, text)
        self.assertNotIn("SKIPPED", text)

    def test_every_collective_has_the_oracles_bits_on_one_host(self):
        self.gtests_passed("group", 10)

    def test_faults_are_named_on_one_host(self):
        self.gtests_passed("faults", 7)

    def test_what_only_a_device_shows(self):
        self.gtests_passed("guest", 5)

    def test_the_guest_powers_off_by_itself(self):
        self.expect_powered_off()

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


class TwoHosts(Guests):
    programs = ("bin/roce_host",)
    roles = ("a", "b")

    @classmethod
    def start(cls, lab):
        """Starts the guests anew if their link has died, which is the emulator's fault (init.sh says why)."""
        ends = time.monotonic() + TIME_BOUND_S
        for _ in range(LINK_TRIES):
            guests, ended = lab.pair(cls.roles, max(1, ends - time.monotonic()))
            dead = [one.text() for one in guests.values() if "== link dead" in one.text()]
            if not dead:
                break
            print("the emulated link between the guests died:", *dead, sep="\n", file=sys.stderr)
        return guests, ended

    def texts(self):
        return "\n".join(f"guest {role}:\n{one.text()}" for role, one in self.guests.items())

    def result(self, role, scenario):
        lines, code = self.guests[role].section(scenario)
        self.assertEqual(code, 0, self.texts())
        results = [line for line in lines if line.startswith("RESULT ")]
        self.assertEqual(len(results), 1, self.texts())
        return results[0]

    def test_the_guests_power_off_by_themselves(self):
        self.expect_powered_off()

    def test_collectives_between_hosts(self):
        for role in ("a", "b"):
            self.assertTrue(self.result(role, "collectives").startswith("RESULT OK "),
                            self.guests[role].text())

    def test_a_killed_rank_is_named_by_the_other_host(self):
        self.assertEqual(self.result("b", "kill"), "RESULT SIGNAL 9", self.texts())
        said = self.result("a", "kill")
        self.assertIn("RESULT UNAVAILABLE ", said)
        self.assertIn("rank 1 (node host1, pid ", said)

    def test_a_stopped_rank_is_named_at_the_deadline(self):
        self.assertEqual(self.result("b", "stop"), "RESULT SIGNAL 9", self.texts())
        said = self.result("a", "stop")
        self.assertIn("RESULT DEADLINE_EXCEEDED ", said)
        self.assertIn("rank 1 (node host1, pid ", said)

    def test_a_cut_cable_is_told_on_both_hosts_before_the_deadline(self):
        for role, peer in (("a", 1), ("b", 0)):
            said = self.result(role, "cut")
            self.assertIn("RESULT UNAVAILABLE ", said)
            self.assertIn(f"rank {peer} (node host{peer}, pid ", said)
            self.assertIn("check the cable", said)
            # If the port itself is down, soft-RoCE reports that the device refused the request.
            self.assertRegex(said, "IBV_WC_RETRY_EXC_ERR|IBV_WC_LOC_QP_OP_ERR.* is DOWN")


def load_tests(loader, _tests, _pattern):
    cases = (OneHost, TwoHosts) if ALL else (TwoHosts,)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in cases)


if __name__ == "__main__":
    unittest.main(verbosity=2)
