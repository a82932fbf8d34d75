"""Random faults while the built programs train on three hosts (network namespaces; two train, one is a spare),
with checkpoints and a step journal: kills, stops, lost hosts, cut cables and a full disk. No step is lost beyond
the journal's promise, no process is left, every loss and the weights at the end are those of the same job
without faults, and that one is not restarted although other programs take its CPU.

The default plays a few faults in 15 s, DTRAIN_TEST_LONG one about every 20 s for an hour. Where they are as rare,
the test says whether the time of correct steps reaches its goal of 95 % of all. DTRAIN_FAULTS_S sets how long,
DTRAIN_FAULTS_SEED what is drawn and when. A seed plays the same faults again; what the processes do at these
moments depends on the machine.
"""
import json
import os
import sys
import unittest

import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd

sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/launches"]

import fault_run  # noqa: E402
import links  # noqa: E402
import random_faults  # noqa: E402
from random_faults import Attempt, Fault  # noqa: E402

LONG = "DTRAIN_TEST_LONG" in os.environ
SECONDS = float(os.environ.get("DTRAIN_FAULTS_S", "3600" if LONG else "15"))
SEED = int(os.environ.get("DTRAIN_FAULTS_SEED", str(int.from_bytes(os.urandom(3), "big") if LONG else 2)))
EVERY_S = 20 if SECONDS >= 100 else 3
STRESS_S = min(600, SECONDS / 4)
GOODPUT_LEAST = 0.95  # Where faults are as rare as the goal says.
WHY_NOT = links.why_not()


def step(number, ts, loss=1.0):
    return {"kind": "step", "step": number, "ts": ts, "m": {"train/loss": loss, "time/step_s": 0.1}}


class Plans(unittest.TestCase):
    def test_a_seed_draws_the_same_faults_again_and_all_kinds_equally_often(self):
        faults = random_faults.plan(7, 3600, 20)
        self.assertEqual(faults, random_faults.plan(7, 3600, 20))
        self.assertNotEqual(faults, random_faults.plan(8, 3600, 20))
        self.assertEqual(len(faults), 180)
        counts = {kind: sum(fault.kind == kind for fault in faults) for kind in random_faults.KINDS}
        self.assertLessEqual(max(counts.values()) - min(counts.values()), 1, counts)
        moments = [fault.at_s for fault in faults]
        self.assertEqual(moments, sorted(moments))
        self.assertTrue(all(0 < fault.at_s < 3600 and fault.lasts_s <= 5 for fault in faults))

    def test_the_first_node_is_never_lost_because_it_has_the_coordinator(self):
        for fault in random_faults.plan(3, 3600, 20):
            self.assertIn(fault.target, {"first", "partner"} if fault.kind in random_faults.RANK_KINDS else
                          {"partner", "spare"} if fault.kind in random_faults.NODE_KINDS else {""})


class Figures(unittest.TestCase):
    def test_records_are_parted_where_the_job_began_again(self):
        records = [step(1, 1), step(2, 2), {"kind": "ckpt", "step": 2, "durable": True}, step(3, 3), step(4, 4),
                   {"kind": "event", "restored": 3}, {"kind": "event", "restored": 3}, step(4, 6), step(5, 7)]
        attempts = random_faults.attempts_of(records)
        self.assertEqual([(a.restored, a.durable, [s["step"] for s in a.steps]) for a in attempts],
                         [(0, 2, [1, 2, 3, 4]), (3, 2, [4, 5])])
        fresh = random_faults.attempts_of([step(1, 1), step(2, 2), step(1, 3)])
        self.assertEqual([[s["step"] for s in a.steps] for a in fresh], [[1, 2], [1]])

    def test_a_journal_may_lose_two_logged_steps_and_one_that_is_off_those_since_the_checkpoint(self):
        def attempts(**changes):
            return [Attempt(0, [step(i, i) for i in range(1, 31)], durable=20, **changes),
                    Attempt(25, [step(26, 40)])]

        self.assertEqual(random_faults.lost_steps(attempts()), [(5, 2)])
        self.assertEqual(random_faults.lost_steps(attempts(journal_is_off=True)), [(5, 10)])
        self.assertEqual(random_faults.lost_steps(attempts(), [(28, 29)]), [(5, 10)])
        self.assertEqual(random_faults.lost_steps(attempts(), [(50, 60)]), [(5, 2)], "a later one is no excuse")

    def test_time_counts_once_for_each_step_and_not_where_its_loss_is_wrong_or_it_was_held_up(self):
        right = {number: 1.0 for number in range(1, 9)}
        first = [step(1, 10.1), *(step(i, 10 + i / 10) for i in range(2, 7))]
        again = [step(6, 20.1), step(7, 20.2, loss=2.0), step(8, 24.2)]
        attempts = [Attempt(0, first), Attempt(5, again)]
        # Steps 1 to 6 take 0.1 s each, 7 is wrong, and 8 counts as two usual ones.
        self.assertAlmostEqual(random_faults.good_seconds(attempts, right), 0.8)
        figures = random_faults.summary([*first, {"kind": "event", "restored": 5}, *again], right, 10, 25)
        self.assertAlmostEqual(figures["goodput"], 0.8 / 15)
        self.assertEqual((figures["taken_again"], figures["lost_beyond_promise"], figures["wrong"]),
                         (1, 0, [(7, 2.0, 1.0)]))

    def test_a_step_without_a_record_is_missing_unless_the_disk_was_full(self):
        moments = {1: 1.0, 2: 2.0, 5: 5.0}
        self.assertEqual(fault_run.missing_steps(moments, 6, [], moments), [3, 4, 6])
        self.assertEqual(fault_run.missing_steps(moments, 6, [(2.5, 3.0)], moments), [6])
        self.assertEqual(fault_run.missing_steps(moments, 6, [(2.5, 9.0)], moments), [])


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no network namespaces here: {WHY_NOT}")
class RandomFaults(EndToEnd):
    def test_random_faults_cost_no_step_no_bit_and_leave_nothing(self):
        again = f"DTRAIN_FAULTS_SEED={SEED} DTRAIN_FAULTS_S={SECONDS:g} ./dev test random_faults_test"
        # Steps of some tens of milliseconds.
        config = self.write_config("faults.json", train_batch_size=64)
        faults = []
        try:
            figures = fault_run.measure(f"{BIN}/dtrain", [f"{BIN}/dtrain-gpt", config], self.environment(None),
                                        f"{self.folder}/run", SEED, SECONDS, EVERY_S, STRESS_S, faults.append)
        except fault_run.Broken as error:
            self.fail(f"{error}\nfaults: {'; '.join(faults)}\nagain: {again}")
        print("figures", json.dumps({key: value for key, value in figures.items() if key != "wrong"}), flush=True)
        self.assertEqual(fault_run.problems(figures), [], f"faults: {'; '.join(faults)}\nagain: {again}")
        if EVERY_S >= 20:
            ended = "ok" if figures["goodput"] >= GOODPUT_LEAST else "short"
            print(f"goal goodput measured {figures['goodput']:.3f} target >= {GOODPUT_LEAST} {ended}", flush=True)

    def test_a_run_that_is_wrong_is_called_so(self):
        good = {"lost_beyond_promise": 0, "orphans": [], "false_restarts": 0, "wrong": [], "missing": [],
                "weights_differ": False, "codes_without_faults": [0, 0, 0], "codes": [130, 130, 130]}
        self.assertEqual(fault_run.problems(good), [])
        for key, value in (("lost_beyond_promise", 1), ("orphans", ["7 dtrain-gpt"]), ("false_restarts", 1),
                           ("wrong", [(3, 1.0, 2.0)]), ("missing", [4]), ("weights_differ", True),
                           ("codes_without_faults", [0, 75, 0]), ("codes", [75, 130, 130])):
            [problem] = fault_run.problems({**good, key: value})
            self.assertIn(key, problem)

    def test_a_fault_says_when_and_on_what_it_is_made(self):
        self.assertEqual(Fault(3.25, "partition", "spare", 1.5).text(), "3.2 s: partition spare for 1.5 s")


if __name__ == "__main__":
    end_to_end.main()
