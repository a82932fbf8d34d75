"""Strangers at the ports of a running job: a port scanner, garbage, a wrong token, half-open and slow
connections. None gets in, none is answered with anything but the end of a handshake, and the job goes
on to the bit as if nobody had come."""
import glob
import os
import random
import shutil
import socket
import struct
import subprocess
import threading
import time

import end_to_end
from end_to_end import BIN, EndToEnd
from processes import listening
from time_bounds import bound_s

STEPS = 300  # Half a second on a fast machine, enough for several visits of every stranger.
TCP_REPAIR = 19  # Linux: a socket that is closed in this state sends nothing.


def descendants(pid):
    """The process and all below it."""
    found = [pid]
    for parent in found:
        try:
            for path in glob.glob(f"/proc/{parent}/task/*/children"):
                with open(path, encoding="ascii") as file:
                    found += [int(child) for child in file.read().split()]
        except OSError:
            pass
    return found


def listening_ports(pid):
    """{port} at which the job listens; every address must be the loopback."""
    ports = set()
    for address, port in listening(*descendants(pid)):
        if address != "0100007F":
            raise AssertionError(f"the job listens at {address}, not at 127.0.0.1 alone")
        ports.add(port)
    return ports


class Visitor(threading.Thread):
    """Finds the job's ports again and again, from its start on, and visits each until it ends."""
    pause_s = 0.002  # Between two rounds.

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.visits, self.ports = process, 0, set()
        self.heard = set()  # First bytes of all answers.
        self.error = None

    def visit(self, port):
        raise NotImplementedError

    def leave(self):
        """Closes the connections that are still open."""

    def run(self):
        try:
            while self.process.poll() is None:
                for port in listening_ports(self.process.pid):
                    try:
                        self.visit(port)
                        self.visits += 1
                        self.ports.add(port)
                    except OSError:
                        pass  # Refused, closed, or gone, as expected.
                time.sleep(self.pause_s)
        except AssertionError as error:
            self.error = error
        finally:
            self.leave()

    def listen(self, connection, timeout=0.05):
        connection.settimeout(timeout)
        try:
            if answer := connection.recv(64):
                self.heard.add(answer[:1])
        except OSError:
            pass


class Scanner(Visitor):
    """Connects and drops, at times with a reset, as a port scanner does."""

    def visit(self, port):
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            if self.visits % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Garbage(Visitor):
    def __init__(self, process):
        super().__init__(process)
        self.random = random.Random(20261122)

    def visit(self, port):
        # Noise, an HTTP request, and the first bytes of dtrain's two protocols.
        noise = self.random.randbytes(self.random.choice((1, 15, 68, 4096, 65536)))
        words = (noise, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"DTD1" + noise,
                 b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise)
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(words[self.visits % len(words)])
            self.listen(connection)


class SlowLoris(Visitor):
    """Many connections that send the beginning of a handshake, a byte at a time."""
    pause_s = 0.02

    def __init__(self, process):
        super().__init__(process)
        self.open = []

    def visit(self, port):
        if len(self.open) < 100:
            connection = socket.create_connection(("127.0.0.1", port), timeout=1)
            self.open.append((connection, iter(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 50)))
        for entry in list(self.open):
            try:
                entry[0].send(bytes([next(entry[1])]), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (OSError, StopIteration):
                entry[0].close()
                self.open.remove(entry)

    def leave(self):
        for connection, _ in self.open:
            connection.close()


class HalfOpen(Visitor):
    """Connections whose client vanishes silently, like after a power cut."""
    pause_s = 0.02

    def visit(self, port):
        connection = socket.create_connection(("127.0.0.1", port), timeout=1)
        connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        connection.close()


class Strangers(EndToEnd):
    def test_a_job_that_strangers_of_every_kind_visit_trains_as_one_that_nobody_visits(self):
        sets = [f"train_steps={STEPS}", "comm.transport=tcp", "comm.bucket_tuning=off",
                "checkpoint.interval=0"]
        alone = self.losses(self.train(2, "alone", sets))
        may_repair = self.may_repair()
        kinds = [Scanner, Garbage, SlowLoris, *([HalfOpen] if may_repair else [])]
        run_dir = f"{self.folder}/visited"
        process = self.start(self.launch_command(2, run_dir, sets))
        visitors = [kind(process) for kind in kinds]
        for visitor in visitors:  # From its start to its end.
            visitor.start()
        result = self.finish(process)
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(len(alone), STEPS)
        self.assertEqual(self.losses(run_dir), alone, "a stranger changed a number")
        for visitor in visitors:
            visitor.join(timeout=bound_s(30))
            kind = type(visitor).__name__
            self.assertIsNone(visitor.error, kind)
            self.assertTrue(visitor.ports, f"{kind} found no port")
            self.assertGreater(visitor.visits, 10, kind)
            # Strangers get nothing but a TLS alert (21).
            self.assertLessEqual(visitor.heard, {b"\x15"}, kind)
        if not may_repair:
            self.skipTest("LOUD SKIP: this user may not drop a connection silently (CAP_NET_ADMIN)")

    @staticmethod
    def may_repair():
        with socket.socket() as probe:
            try:
                probe.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
                probe.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 0)
                return True
            except OSError:
                return False

    def test_a_real_scanner_learns_nothing_and_a_rank_with_another_token_is_refused(self):
        run_dir = f"{self.folder}/foreign"
        process = self.start(self.launch_command(
            2, run_dir, ["train_steps=100000", "comm.transport=tcp", "checkpoint.interval=0"]))
        self.await_step(run_dir, 3, process)
        ports = sorted(listening_ports(process.pid))
        self.assertTrue(ports)
        has_nmap = shutil.which("nmap") is not None
        # The scanner asks for versions, which takes seconds; ranks with another token come meanwhile.
        scan = has_nmap and subprocess.Popen(
            ["nmap", "-Pn", "-n", "-sT", "-sV", "--version-intensity", "5", "--host-timeout", "40s",
             "-p", ",".join(map(str, ports)), "127.0.0.1"], stdout=subprocess.PIPE, text=True)
        if has_nmap:
            self.addCleanup(scan.kill)
        self.check_foreign_ranks(ports)
        if has_nmap:
            said = scan.communicate(timeout=bound_s(120))[0]
            self.assertEqual(scan.returncode, 0, said)
            self.assertIn("Nmap done", said)
            self.assertNotIn("dtrain", said)
            self.assertNotIn("rank", said)
        before = max(self.losses(run_dir))
        self.await_step(run_dir, before + 3, process)
        process.send_signal(end_to_end.signal.SIGTERM)
        self.assertEqual(self.finish(process).code, 143, "it trained on and saved")
        if not has_nmap:
            self.skipTest("LOUD SKIP: nmap is not installed (./dev deps test)")

    def check_foreign_ranks(self, ports):
        token = f"{self.folder}/other.key"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("17" * 32)
        intruders = [self.start(
            [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/intruder-{port}", "--set",
             "comm.timeout_s=5"],
            {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DTRAIN_TOKEN_FILE": token})
            for port in ports]
        for intruder in [self.finish(one) for one in intruders]:
            self.assertIn(intruder.code, (64, 75), intruder.output)
            self.assertIn("token", intruder.output)


if __name__ == "__main__":
    end_to_end.main()
