"""Two hosts train over a link that loses, delays, reorders and repeats packets. When it is down for two seconds,
that takes time, and no rank or host is taken for lost or for hanging; when the ranks' connection is reset in the
middle of what it carries, they go on from their checkpoint."""
import os
import sys
import time
import unittest

import bad_link
import end_to_end
from end_to_end import BIN, SOURCE, EndToEnd
from time_bounds import bound_s

sys.path.insert(0, f"{SOURCE}/bench")

import links  # noqa: E402

WHY_NOT = links.why_not() or bad_link.why_not()
STEPS = 40
INTERVAL = 10
LEARNT = 12  # From the tenth step on the limit of a hang is a second, or what the steps have taught.
DOWN_S = 2
GRADIENTS_BYTES = 6000  # No packet of the launchers is as large.
BACK_S = 15  # A reset costs at most so long: 5 s, and what a busy machine takes.
STORE_PORT = 29500


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no network namespaces with TUN devices here: {WHY_NOT}")
class Link(EndToEnd):
    def setUp(self):
        self.run_dir = f"{self.folder}/run"

    def start_nodes(self, link):
        program = [f"{BIN}/dtrain-gpt", self.config]
        for value in (f"train_steps={STEPS}", f"checkpoint.interval={INTERVAL}", "comm.transport=tcp"):
            program += ["--set", value]
        return [self.start(["ip", "netns", "exec", space, f"{BIN}/dtrain", "launch", "--nnodes", "2", "--node-rank",
                            str(node), "--rdzv-endpoint", f"{bad_link.ADDRESSES[0]}:{STORE_PORT}", "--token-file",
                            self.token(), "--nproc-per-node", "1", "--max-restarts", "1", "--run-dir", self.run_dir,
                            "--", *program])
                for node, space in enumerate(link.spaces)]

    def attempts(self):
        return sorted(os.listdir(f"{self.run_dir}/logs"))

    @staticmethod
    def take_down(link, process):
        """For DOWN_S, or until the process has ended."""
        end = time.monotonic() + DOWN_S
        with link.cut():
            while time.monotonic() < end and process.poll() is None:
                time.sleep(0.02)

    def steps_of(self, attempt):
        return [record for record in self.records(self.run_dir)
                if record["kind"] == "step" and record["attempt"] == attempt]

    def test_a_bad_link_that_goes_down_costs_time_and_a_reset_costs_one_restart(self):
        with bad_link.BadLink((0.001, 0.004), mbit=100, lost=0.01, repeated=0.01) as link:
            nodes = self.start_nodes(link)
            self.await_step(self.run_dir, LEARNT, nodes[0])
            self.take_down(link, nodes[0])
            self.await_step(self.run_dir, LEARNT + 4, nodes[0])
            self.assertEqual(self.attempts(), ["attempt-0"], "a link that is down for a moment is no failure")
            with link.resets(GRADIENTS_BYTES):
                self.wait_until(lambda: os.path.exists(f"{self.run_dir}/report.json"), "a report about the reset",
                                nodes[0])
            results = [self.finish(node) for node in nodes]
        output = "\n".join(result.output for result in results)
        self.assertEqual([result.code for result in results], [0, 0], output)
        for fault in ("lost", "repeated", "overtaken", "cut", "reset"):
            self.assertGreater(link.counts[fault], 0, link.counts)
        self.assertEqual(self.attempts(), ["attempt-0", "attempt-1"], output)
        self.assertNotIn("hangs", output)
        before, after = self.steps_of(0), self.steps_of(1)
        self.assertEqual([step["step"] for step in before], list(range(1, len(before) + 1)))
        pauses = [b["ts"] - a["ts"] for a, b in zip(before[LEARNT - 1:], before[LEARNT:])]
        self.assertGreater(max(pauses), 0.9 * DOWN_S, "the link was not down while they trained")
        resumed = after[0]["step"] - 1
        self.assertEqual([step["step"] for step in after], list(range(resumed + 1, STEPS + 1)))
        self.assertIn(resumed, range(INTERVAL, len(before) + 1, INTERVAL), output)
        self.assertLess(after[0]["ts"] - before[-1]["ts"], bound_s(BACK_S), output)


if __name__ == "__main__":
    end_to_end.main()
