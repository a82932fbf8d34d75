"""Launchers of jobs whose number of nodes changes, one process a node on this host, and what they did."""
import json
import subprocess
import time

import end_to_end
from end_to_end import BIN, EndToEnd


class ElasticNodes(EndToEnd):
    def start_node(self, name, node, nnodes, port, sets, last_call_s=60, more=()):
        """The launcher of node number `node`, with one rank. `more`: options of the launcher."""
        words = [f"{BIN}/dtrain", "launch", "--nnodes", nnodes, "--node-rank", str(node),
                 "--rdzv-endpoint", f"127.0.0.1:{port}", "--token-file", self.token(),
                 "--rdzv-conf", f"last_call_timeout={last_call_s}", "--run-dir", f"{self.folder}/{name}", *more,
                 "--", f"{BIN}/dtrain-gpt", self.config]
        for value in sets:
            words += ["--set", value]
        with open(f"{self.folder}/{name}-node-{node}.log", "a", encoding="utf-8") as log:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                    env=self.environment(None))

    def said(self, name, node=0):
        with open(f"{self.folder}/{name}-node-{node}.log", encoding="utf-8") as file:
            return file.read()

    def end_node(self, name, node, process, code):
        try:
            process.wait(end_to_end.TIME_BOUND_S)
        except subprocess.TimeoutExpired:
            self.fail(f"node {node} does not end:\n{self.said(name, node)}")
        self.assertEqual(process.returncode, code, self.said(name, node))

    def await_that(self, condition, name, alive):
        """Waits until `condition` holds, for which the launchers `alive` must go on."""
        end = time.monotonic() + end_to_end.TIME_BOUND_S
        while not condition():
            self.assertTrue(all(process.poll() is None for process in alive), self.said(name))
            self.assertLess(time.monotonic(), end, self.said(name))
            time.sleep(0.02)

    def await_record(self, name, kind, attempt, alive):
        """Waits for a step, or for a durable checkpoint (kind "ckpt"), of an attempt."""
        self.await_that(lambda: any(
            record["kind"] == kind and record["attempt"] == attempt and (kind != "ckpt" or record.get("durable"))
            for record in self.records(f"{self.folder}/{name}")), name, alive)

    def events(self, name, node=0):
        path = f"{self.folder}/{name}/" + ("events.jsonl" if node == 0 else f"events-node-{node}.jsonl")
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file.read().split("\n")[:-1]]

    def check_one_process(self, name, codes, node=0):
        """The node's rank was one process from its first attempt to its last, whose attempts ended there with
        `codes`."""
        events = self.events(name, node)
        ends = [event for event in events if event["event"] == "end"]
        text = f"{events}\n{self.said(name, node)}"
        self.assertEqual([end["exit_code"] for end in ends], codes, text)
        self.assertEqual(len({end["pid"] for end in ends}), 1, text)
        self.assertEqual([end["kept"] for end in ends], [True] * (len(codes) - 1) + [False], text)
        self.assertEqual(sum(event["event"] == "spawn" for event in events), 1, text)
        self.assertEqual([event["pid"] for event in events if event["event"] == "reuse"],
                         [ends[0]["pid"]] * (len(codes) - 1), text)
