"""Jobs whose number of nodes changes while the real program trains: what they lose, and that the numbers are
those of a run that was resumed at the other size by hand."""
import signal

import end_to_end
from elastic_nodes import ElasticNodes
from end_to_end import BIN
from ports import free_port

# 48 micro-batches a step, which 3 ranks share and 2 too.
SETS = ["train_batch_size=96", "train_micro_batch_size_per_gpu=2", "checkpoint.interval=2",
        "deterministic=true", "metrics.tensorboard=false"]
STEPS = 60


class Elastic(ElasticNodes):
    def start_nodes(self, name, nnodes, count, steps=STEPS):
        """The launchers of a run with one rank each, by node number."""
        port = free_port()
        return [self.start_node(name, node, nnodes, port, [*SETS, f"train_steps={steps}"])
                for node in range(count)]

    def end_nodes(self, name, nodes, codes):
        for node, process in enumerate(nodes):
            self.end_node(name, node, process, codes[node])

    def await_durable(self, name, step, nodes):
        self.await_that(lambda: max((record["step"] for record in self.records(f"{self.folder}/{name}")
                                     if record["kind"] == "ckpt" and record.get("durable")), default=0) >= step,
                        name, nodes)

    def check_numbers(self, name):
        """The run went on at one step with 2 of 3 ranks. Gives that step, after a comparison with a run
        that was ended there and resumed with 2 ranks by hand, without --accept-change."""
        run_dir = f"{self.folder}/{name}"
        restored = [record["restored"] for record in self.records(run_dir) if "restored" in record]
        self.assertEqual(len(restored), 1, self.said(name))
        reference = f"{name}-by-hand"
        self.end_nodes(reference, self.start_nodes(reference, "3", 3, restored[0]), [0] * 3)
        self.end_nodes(reference, self.start_nodes(reference, "2", 2), [0] * 2)
        self.assertEqual(max(self.losses(run_dir)), STEPS)
        self.assertEqual(self.losses(run_dir), self.losses(f"{self.folder}/{reference}"))
        self.assertEqual(self.model_files(run_dir), self.model_files(f"{self.folder}/{reference}"))
        return restored[0]

    def test_a_killed_node_leaves_the_loss_of_a_run_resumed_with_fewer_by_hand(self):
        nodes = self.start_nodes("killed", "2:3", 3)
        self.await_durable("killed", 4, nodes)
        nodes[2].kill()
        self.await_that(lambda: "is lost: the connection of its agent has ended" in self.said("killed"), "killed",
                        nodes[:2])
        self.end_nodes("killed", nodes, [0, 0, -signal.SIGKILL])
        self.check_numbers("killed")
        for node in (0, 1):
            self.check_one_process("killed", [75, 0], node)

    def test_a_drained_node_costs_no_step(self):
        nodes = self.start_nodes("drained", "2:3", 3)
        self.await_durable("drained", 4, nodes)
        result = self.run_program([f"{BIN}/dtrain", "drain", "1", f"{self.folder}/drained"])
        self.assertEqual(result.code, 0, result.output)
        self.assertIn("has left after", result.output)
        self.end_nodes("drained", nodes, [0, 0, 0])
        self.check_numbers("drained")
        steps = [record["step"] for record in self.records(f"{self.folder}/drained")
                 if record["kind"] == "step"]
        self.assertEqual(steps, list(range(1, STEPS + 1)), "each step was taken once")
        for node in (0, 2):  # The rank of node 2 becomes rank 1.
            self.check_one_process("drained", [143, 0], node)

    def test_what_does_not_divide_is_refused_by_name(self):
        sets = ["train_batch_size=8", "train_micro_batch_size_per_gpu=4"]
        run_dir = f"{self.folder}/odd"
        process = self.start([
            f"{BIN}/dtrain", "launch", "--nnodes", "1:2", "--nproc-per-node", "3", "--rdzv-endpoint",
            f"127.0.0.1:{free_port()}", "--token-file", self.token(), "--run-dir", run_dir, "--",
            f"{BIN}/dtrain-gpt",
            self.config, *[word for value in sets for word in ("--set", value)]])
        result = self.finish(process)
        self.assertEqual(result.code, 64, result.output)
        self.assertIn("no number of nodes from 1 to 2 will do", result.output)
        self.assertIn("train_batch_size 8", result.output)


if __name__ == "__main__":
    end_to_end.main()
