"""`dtrain launch --hostfile` with more hosts than one starts alone: hosts start others. They are seven network
namespaces at one switch, each with a real sshd; the starter is in the first."""
import contextlib
import glob
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import end_to_end
from end_to_end import BIN, MARK, SOURCE, TIME_BOUND_S, EndToEnd
from processes import marked_processes

sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/launches"]

import ssh_hosts  # noqa: E402

# With a fan-out of 2: alpha starts beta and gamma, delta starts epsilon and zeta, and zeta starts eta.
HOSTS = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta")
SSH_FROM = (0, 0, 0, 0, 3, 3, 5)
HOSTILE = "it's \"$(touch x)\" `touch y` ;|&*~ -oProxyCommand=z"
FOREVER = "trap 'echo stopped; exit 143' TERM; echo ready; while :; do sleep 0.1; done"

WHY_NOT = ssh_hosts.why_not()
# shut: a port at which nobody listens; stranger: a host that does not let this user in.
SSH_CONFIG = "".join(f"Host {host}\n  HostName 10.80.0.{number + 1}\n" for number, host in enumerate(HOSTS)) + """
Host shut
  HostName 10.80.0.2
  Port 2223
Host stranger
  HostName 10.80.0.3
  PubkeyAuthentication no
""" + ssh_hosts.SSH_CONFIG


def run(words):
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def write(path, text):
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no hosts with sshd here: {WHY_NOT}")
class HostTree(EndToEnd):
    mark = f"{MARK}=host-tree.{os.getpid()}"  # One for all tests: the servers give it to their sessions.

    @classmethod
    def setUpClass(cls):
        cls.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-e2e-")
        cls.folder = cls.folder_object.name
        cls.spaces = {host: f"dt-tree-{os.getpid()}-{host}" for host in HOSTS}
        cls.servers = {}
        cls.addClassCleanup(cls.remove_hosts)
        hub = cls.spaces["hub"] = f"dt-tree-{os.getpid()}-hub"
        run(["ip", "netns", "add", hub])
        run(["ip", "-n", hub, "link", "add", "switch0", "type", "bridge", "forward_delay", "0"])
        run(["ip", "-n", hub, "link", "set", "switch0", "up"])
        for key in ("host_key", "key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{cls.folder}/{key}"])
        write(f"{cls.folder}/ssh_config", SSH_CONFIG.format(folder=cls.folder, port=ssh_hosts.PORT))
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it, and does not make it.
        for number, host in enumerate(HOSTS):
            space, port = cls.spaces[host], f"port{number}"
            run(["ip", "netns", "add", space])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
            run(["ip", "link", "add", "wire0", "netns", space, "type", "veth", "peer", "name", port, "netns", hub])
            run(["ip", "-n", space, "addr", "add", f"10.80.0.{number + 1}/24", "dev", "wire0"])
            run(["ip", "-n", space, "link", "set", "wire0", "up"])
            run(["ip", "-n", hub, "link", "set", port, "master", "switch0"])
            run(["ip", "-n", hub, "link", "set", port, "up"])
        for host in HOSTS:
            cls.start_sshd(host)

    @classmethod
    def remove_hosts(cls):
        for server in cls.servers.values():
            server.terminate()
            server.wait()
        for space in cls.spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    @classmethod
    def start_sshd(cls, host):
        with contextlib.suppress(FileNotFoundError):
            os.remove(f"{cls.folder}/{host}.pid")
        text = ssh_hosts.SSHD_CONFIG + "MaxStartups 100\nSetEnv {mark}\n"
        write(f"{cls.folder}/{host}.sshd", text.format(
            port=ssh_hosts.PORT, address=f"10.80.0.{HOSTS.index(host) + 1}", folder=cls.folder, host=host,
            mark=cls.mark))
        with open(f"{cls.folder}/{host}.log", "a", encoding="utf-8") as log:
            server = cls.servers[host] = subprocess.Popen(
                ["ip", "netns", "exec", cls.spaces[host], ssh_hosts.SSHD, "-D", "-e", "-f",
                 f"{cls.folder}/{host}.sshd"], stdin=subprocess.DEVNULL, stderr=log)
        end = time.monotonic() + TIME_BOUND_S
        while not os.path.exists(f"{cls.folder}/{host}.pid"):  # Written when it listens.
            if server.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"sshd of {host} does not listen")
            time.sleep(0.01)

    def command(self, text, *words, hosts=HOSTS):
        """A job whose ranks run this shell script."""
        self.run_dir = f"{self.folder}/{self._testMethodName}"
        write(f"{self.folder}/hosts", "".join(f"{host} slots=1\n" for host in hosts))
        return ["ip", "netns", "exec", self.spaces["alpha"], f"{BIN}/dtrain", "launch", "--hostfile",
                f"{self.folder}/hosts", "--launcher-args", f"-F {self.folder}/ssh_config", "--run-dir", self.run_dir,
                "--ssh-fanout", "2", *words, "--", "sh", "-c", text]

    def log(self, rank):
        path = f"{self.run_dir}/logs/attempt-0/rank-{rank}.out"
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8") as file:
            return file.read()

    def await_ready(self, process):
        self.wait_until(lambda: all("ready\n" in self.log(rank) for rank in range(len(HOSTS))), "all ranks are ready",
                        process)

    def token_of(self, rank):
        for pid, _ in marked_processes(self.mark):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
                if f"RANK={rank}".encode() in environ.read().split(b"\0"):
                    with open(f"/proc/{pid}/fd/3", "rb") as file:
                        return file.read()
        self.fail(f"no process of rank {rank}")

    def test_hosts_that_others_start_run_and_end_as_if_one_had_started_all(self):
        script = "echo $RANK $WORLD_SIZE $SSH_CONNECTION; echo \"$MINE\"; " + FOREVER
        process = self.start(self.command(script, "--tee", "3", "--export", "MINE"), env={"MINE": HOSTILE})
        self.await_ready(process)
        token = self.token_of(6)
        self.assertEqual(len(token), 32)
        for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = file.read()
                self.assertFalse(token in text or token.hex().encode() in text, path)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, 143, result.output)
        self.assertNotIn("is lost", result.output)
        lines = result.output.splitlines()
        for rank, host in enumerate(HOSTS):
            first, *rest = self.log(rank).splitlines()
            self.assertRegex(first, rf"^{rank} 7 10\.80\.0\.{SSH_FROM[rank] + 1} \d+ 10\.80\.0\.{rank + 1} 2222$")
            self.assertEqual(rest, [HOSTILE, "ready", "stopped"])
            self.assertIn(f"[{host}] [rank {rank}] ready" if rank else "[rank 0] ready", lines)

    def test_all_hosts_that_cannot_be_reached_are_named_and_hide_none_behind_them(self):
        # shut is to start those behind it; they are reached without it. alpha is to start stranger.
        hosts = ("alpha", "beta", "stranger", "shut", "gamma", "delta", "eta")
        result = self.run_program(self.command("true", hosts=hosts))
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "2 of 7 hosts cannot start: stranger: root@10.80.0.3: Permission denied",
                             "(ssh ran on host alpha); shut: ssh: connect to host 10.80.0.2 port 2223: Connection "
                             "refused; nothing was started", "--exclude stranger@shut", "--ssh-fanout 0")
        self.assertFalse(os.path.exists(self.run_dir))

    def test_a_killed_host_that_has_started_others_leaves_none_of_them_running(self):
        process = self.start(self.command(FOREVER))
        self.await_ready(process)
        self.addCleanup(self.start_sshd, "delta")
        pids = run(["ip", "netns", "pids", self.spaces["delta"]]).split()
        # All at once, or the agent sees its connection end first and says so.
        for number, pid in itertools.product((signal.SIGSTOP, signal.SIGKILL), pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
        self.servers["delta"].wait()
        result = self.finish(process)
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "host delta is lost: ")
        for host, before in (("epsilon", "delta"), ("zeta", "delta"), ("eta", "zeta")):
            self.assert_one_line(result.output, f"host {host} is lost: it was started from host {before}, which is")
        for rank in (0, 1, 2, 4, 5, 6):  # tearDown sees that nothing is left.
            self.assertEqual(self.log(rank), "ready\nstopped\n")


if __name__ == "__main__":
    end_to_end.main()
