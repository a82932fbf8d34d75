"""A job between two hosts listens only on the address that it was given: two network namespaces with
two links between them, of which one is trusted (`comm.interface`)."""
import contextlib
import os
import socket
import struct
import subprocess
import sys
import time
import unittest

import end_to_end
from end_to_end import BIN, SOURCE, TIME_BOUND_S, EndToEnd
from processes import listening, marked_processes

sys.path.insert(0, f"{SOURCE}/bench")

import links  # noqa: E402

STORE_PORT = 29500
WHY_NOT = links.why_not()


def as_in_proc(address):
    """10.77.0.1 as /proc/net/tcp writes it."""
    return f"{struct.unpack('<I', socket.inet_aton(address))[0]:08X}"


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no network namespaces here: {WHY_NOT}")
class OneInterface(EndToEnd):
    def setUp(self):
        self.spaces = [f"dt-if-{os.getpid()}-{side}" for side in "ab"]
        self.addCleanup(self.remove_spaces)
        for space in self.spaces:
            self.ip(f"netns add {space}")
            self.ip(f"-n {space} link set lo up")
        for number, cable in enumerate(("trusted0", "other0")):
            self.ip(f"link add {cable} netns {self.spaces[0]} type veth peer name {cable} "
                    f"netns {self.spaces[1]}")
            for host, space in enumerate(self.spaces):
                self.ip(f"-n {space} addr add 10.{77 + number}.0.{host + 1}/24 dev {cable}")
                self.ip(f"-n {space} link set {cable} up")

    @staticmethod
    def ip(words):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    def remove_spaces(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def node_command(self, node, endpoint, run_dir, *program):
        return [f"{BIN}/dtrain", "launch", "--nnodes", "2", "--node-rank", str(node),
                "--rdzv-endpoint", f"{endpoint}:{STORE_PORT}", "--token-file", self.token(),
                "--nproc-per-node", "1", "--run-dir", run_dir, "--", *program]

    def start_nodes(self, run_dir):
        program = [f"{BIN}/dtrain-gpt", self.config]
        for value in ("train_steps=1", "checkpoint.interval=0", "comm.transport=tcp", "comm.interface=trusted0"):
            program += ["--set", value]
        return [self.start(["ip", "netns", "exec", space,
                            *self.node_command(node, "10.77.0.1", run_dir, *program)])
                for node, space in enumerate(self.spaces)]

    def let_only_the_store_through(self):
        """Drops packets for other ports, like a link that loses packets."""
        for space in self.spaces:
            for rule in ("pref 10 lookup local", "pref 1 iif trusted0 ipproto tcp sport {} lookup local",
                         "pref 2 iif trusted0 ipproto tcp dport {} lookup local",
                         "pref 3 iif trusted0 ipproto tcp blackhole"):
                self.ip(f"-n {space} rule add {rule.format(STORE_PORT)}")
            self.ip(f"-n {space} rule del pref 0")

    def let_all_through(self):
        for space in self.spaces:
            self.ip(f"-n {space} rule del pref 3")

    def listeners_by_space(self):
        """[{(address, port)}] of the job's processes in each namespace."""
        found = [set() for _ in self.spaces]
        spaces = {os.stat(f"/var/run/netns/{space}").st_ino: i for i, space in enumerate(self.spaces)}
        for pid, _ in marked_processes(self.mark):
            with contextlib.suppress(OSError):  # The process has ended.
                space = spaces.get(os.stat(f"/proc/{pid}/ns/net").st_ino)
                if space is not None:
                    found[space] |= set(listening(pid))
        return found

    def await_listeners(self, nodes):
        """The listeners when a rank listens on each host, without the store's port."""
        seen, end = None, time.monotonic() + TIME_BOUND_S
        while time.monotonic() < end and all(node.poll() is None for node in nodes):
            seen = self.listeners_by_space()
            if all(any(port != STORE_PORT for _, port in found) for found in seen):
                return seen
        return self.fail(f"no listener of a rank: {seen}, {[self.finish(node).output for node in nodes]}")

    def test_every_listener_is_on_the_chosen_interface_alone(self):
        self.let_only_the_store_through()  # A rank listens only until its peers have come.
        nodes = self.start_nodes(f"{self.folder}/run")
        seen = self.await_listeners(nodes)
        self.let_all_through()
        results = [self.finish(node) for node in nodes]
        self.assertEqual([result.code for result in results], [0, 0], results[0].output)
        for host, found in enumerate(seen):
            trusted = as_in_proc(f"10.77.0.{host + 1}")
            self.assertEqual({address for address, _ in found}, {trusted}, seen)
        self.assertIn((as_in_proc("10.77.0.1"), STORE_PORT), seen[0], "the store's")

    def test_an_endpoint_that_means_every_interface_is_refused_with_what_to_give(self):
        result = self.run_program(self.node_command(0, "0.0.0.0", f"{self.folder}/every", "true"))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, '--rdzv-endpoint is "0.0.0.0:', "would listen on every interface",
                             "give the address of the trusted network")


if __name__ == "__main__":
    end_to_end.main()
