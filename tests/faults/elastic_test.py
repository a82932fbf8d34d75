"""Jobs whose number of nodes changes while the real program trains: what they lose, and that the numbers are
those of a run that was resumed at the other size by hand."""
import os
import signal
import socket
import subprocess
import time

import end_to_end
from end_to_end import BIN, EndToEnd
from time_bounds import bound_s

# 48 micro-batches a step, which 3 ranks share and 2 too.
SETS = ["train_batch_size=96", "train_micro_batch_size_per_gpu=2", "checkpoint.interval=2",
        "deterministic=true", "metrics.tensorboard=false"]
STEPS = 60


class Elastic(EndToEnd):
    def token(self):
        path = f"{self.folder}/token"
        if not os.path.exists(path):
            with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
                file.write("5a" * 32)
        return path

    def start_nodes(self, name, nnodes, count, steps=STEPS):
        """The launchers of a run with one rank each, by node number."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        nodes = []
        for node in range(count):
            words = [f"{BIN}/dtrain", "launch", "--nnodes", nnodes, "--node-rank", str(node),
                     "--rdzv-endpoint", f"127.0.0.1:{port}", "--token-file", self.token(),
                     "--rdzv-conf", "last_call_timeout=60", "--run-dir", f"{self.folder}/{name}", "--",
                     f"{BIN}/dtrain-gpt", self.config]
            for value in [*SETS, f"train_steps={steps}"]:
                words += ["--set", value]
            with open(f"{self.folder}/{name}-node-{node}.log", "a", encoding="utf-8") as log:
                nodes.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log,
                                              stderr=subprocess.STDOUT, env=self.environment(None)))
        return nodes

    def said(self, name, node=0):
        with open(f"{self.folder}/{name}-node-{node}.log", encoding="utf-8") as file:
            return file.read()

    def end_nodes(self, name, nodes, codes):
        for node, process in enumerate(nodes):
            try:
                process.wait(end_to_end.TIME_BOUND_S)
            except subprocess.TimeoutExpired:
                self.fail(f"node {node} does not end:\n{self.said(name, node)}")
        self.assertEqual([process.returncode for process in nodes], codes, self.said(name))

    def await_durable(self, name, step, nodes):
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while max((record["step"] for record in self.records(f"{self.folder}/{name}")
                   if record["kind"] == "ckpt" and record.get("durable")), default=0) < step:
            self.assertTrue(all(process.poll() is None for process in nodes), self.said(name))
            self.assertLess(time.monotonic(), end, self.said(name))
            time.sleep(0.02)

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
        start = time.monotonic()
        nodes[2].kill()
        end = start + bound_s(30)
        while "is lost: the connection of its agent has ended" not in self.said("killed"):
            self.assertLess(time.monotonic(), end, self.said("killed"))
            time.sleep(0.01)
        self.assertLess(time.monotonic() - start, bound_s(1), "a lost node is seen within a second")
        self.end_nodes("killed", nodes, [0, 0, -signal.SIGKILL])
        self.check_numbers("killed")

    def test_a_drained_node_costs_no_step(self):
        nodes = self.start_nodes("drained", "2:3", 3)
        self.await_durable("drained", 4, nodes)
        result = self.run_program([f"{BIN}/dtrain", "drain", "2", f"{self.folder}/drained"])
        self.assertEqual(result.code, 0, result.output)
        self.assertIn("has left after", result.output)
        self.end_nodes("drained", nodes, [0, 0, 0])
        self.check_numbers("drained")
        steps = [record["step"] for record in self.records(f"{self.folder}/drained")
                 if record["kind"] == "step"]
        self.assertEqual(steps, list(range(1, STEPS + 1)), "each step was taken once")

    def test_what_does_not_divide_is_refused_by_name(self):
        sets = ["train_batch_size=8", "train_micro_batch_size_per_gpu=4"]
        run_dir = f"{self.folder}/odd"
        process = self.start([
            f"{BIN}/dtrain", "launch", "--nnodes", "1:2", "--nproc-per-node", "3", "--rdzv-endpoint",
            "127.0.0.1:0", "--token-file", self.token(), "--run-dir", run_dir, "--", f"{BIN}/dtrain-gpt",
            self.config, *[word for value in sets for word in ("--set", value)]])
        result = self.finish(process)
        self.assertEqual(result.code, 64, result.output)
        self.assertIn("no number of nodes from 1 to 2 will do", result.output)
        self.assertIn("train_batch_size 8", result.output)


if __name__ == "__main__":
    end_to_end.main()
