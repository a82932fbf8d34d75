"""When the nodes of a job change, the ranks of those that stay go on in their processes, with the losses of a
run whose nodes did not change (docs/FAILURES.md, Processes that are used again)."""
import contextlib
import os
import signal
import time

import end_to_end
from elastic_nodes import ElasticNodes
from end_to_end import BIN
from ports import free_port

STEPS = 600
TOKEN_FD = 3  # In a process that a launcher has just started.
# Two micro-batches a step, whose sum has the same bits on one rank and on two.
SETS = ["deterministic=true", "metrics.tensorboard=false", f"train_steps={STEPS}", "checkpoint.interval=20"]


def programs_of(launcher):
    """The processes of the job's program below a launcher, the oldest first."""
    with open(f"/proc/{launcher}/task/{launcher}/children", encoding="ascii") as file:
        children = file.read().split()
    found = []
    for pid in children:
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "dtrain-gpt":
                found.append(int(pid))
    return found


def waiting_of(launcher):
    """Those of a spare that wait for their first job: they have put its token aside."""
    return [pid for pid in programs_of(launcher) if not os.path.exists(f"/proc/{pid}/fd/{TOKEN_FD}")]


class ElasticReuse(ElasticNodes):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls("right_losses")
        cls.right = case.losses(case.train(1, "right", SETS))

    def right_losses(self):
        """Gives setUpClass an instance, which runs the training with one node and no fault."""

    def start_one(self, name, node, port, last_call_s=60, sets=(), more=()):
        return self.start_node(name, node, "1:2", port, [*SETS, *sets], last_call_s, more)

    def check_losses(self, name):
        """Gives the steps in the order in which they were taken."""
        steps = [r for r in self.records(f"{self.folder}/{name}") if r["kind"] == "step" and "train/loss" in r["m"]]
        self.assertEqual({r["step"] for r in steps}, set(self.right))
        for record in steps:
            self.assertEqual(record["m"]["train/loss"], self.right[record["step"]], record["step"])
        return [record["step"] for record in steps]

    def test_over_a_lost_node_its_spare_and_the_loss_of_that_too(self):
        port = free_port()
        first, second = (self.start_one("lost", node, port) for node in (0, 1))
        self.await_record("lost", "ckpt", 0, [first, second])
        spare = self.start_one("lost", 5, port)
        self.await_that(lambda: "is a spare" in self.said("lost", 5), "lost", [first, second, spare])
        second.kill()
        self.await_record("lost", "ckpt", 1, [first, spare])
        spare.kill()
        self.end_node("lost", 0, first, 0)
        self.end_node("lost", 1, second, -signal.SIGKILL)
        self.end_node("lost", 5, spare, -signal.SIGKILL)
        self.check_losses("lost")
        self.check_one_process("lost", [75, 75, 0])
        self.assertEqual([e["world_size"] for e in self.events("lost") if e["event"] == "start"], [2, 2, 1])

    def test_over_a_lost_node_whose_place_a_warm_spare_takes_with_a_process_that_waits_for_it(self):
        port = free_port()
        options = {"sets": ["comm.hang_timeout_s=0"], "more": ["--reserve"]}
        first, second = (self.start_one("warm", node, port, **options) for node in (0, 1))
        self.await_record("warm", "ckpt", 0, [first, second])
        [trains, *_] = programs_of(second.pid)
        os.kill(trains, signal.SIGSTOP)  # So that the training is not over before the spare is warm.
        spare = self.start_one("warm", 5, port, **options)
        self.await_that(lambda: waiting_of(spare.pid), "warm", [first, second, spare])
        [waits] = waiting_of(spare.pid)
        second.kill()
        lost = time.time()
        self.end_node("warm", 0, first, 0)
        self.end_node("warm", 1, second, -signal.SIGKILL)
        self.end_node("warm", 5, spare, 0)
        self.check_losses("warm")
        self.check_one_process("warm", [75, 0])
        events = self.events("warm", 5)
        self.assertEqual([(e["rank"], e["pid"]) for e in events if e["event"] == "reserve_taken"], [(1, waits)])
        self.assertEqual([e for e in events if e["event"] == "spawn"], [], "no other was started")
        again = min(record["ts"] for record in self.records(f"{self.folder}/warm")
                    if record["kind"] == "step" and record["attempt"] == 1)
        print(f"{again - lost:.3f} s from a killed node to the next step, a warm spare")

    def test_over_growth_and_a_drain_without_a_step_that_is_taken_twice(self):
        port = free_port()
        first = self.start_one("planned", 0, port, last_call_s=0.2)
        self.await_record("planned", "step", 0, [first])
        second = self.start_one("planned", 1, port)
        self.await_record("planned", "step", 1, [first, second])
        drain = self.run_program([f"{BIN}/dtrain", "drain", "1", f"{self.folder}/planned"])
        self.assertEqual(drain.code, 0, drain.output)
        self.end_node("planned", 1, second, 0)
        self.end_node("planned", 0, first, 0)
        self.assertEqual(self.check_losses("planned"), list(range(1, STEPS + 1)))
        self.check_one_process("planned", [143, 143, 0])
        self.assertEqual([e["world_size"] for e in self.events("planned") if e["event"] == "start"], [1, 2, 1])

    def test_over_sigterm_to_another_node_but_not_over_one_for_the_job(self):
        port = free_port()
        first, second = (self.start_one("left", node, port) for node in (0, 1))
        self.await_record("left", "step", 0, [first, second])
        second.send_signal(signal.SIGTERM)
        self.end_node("left", 1, second, 143)
        self.await_record("left", "step", 1, [first])
        first.send_signal(signal.SIGTERM)
        self.end_node("left", 0, first, 143)
        self.check_one_process("left", [143, 143])


if __name__ == "__main__":
    end_to_end.main()
