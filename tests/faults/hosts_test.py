"""`dtrain launch --hostfile`: one command starts hosts over ssh. The hosts are two network namespaces, each
with a real sshd; the starter is in the first."""
import base64
import contextlib
import glob
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest

import end_to_end
from end_to_end import BIN, SOURCE, TIME_BOUND_S, EndToEnd
from processes import marked_processes

sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/launches"]

import ssh_hosts  # noqa: E402

ADDRESSES = {"alpha": "10.78.0.1", "beta": "10.78.0.2"}
HOSTILE = b"it's \"$(touch x)\"\n`touch y` \\ \xff;|&*~"
FOREVER = "trap 'echo stopped; exit 143' TERM; echo ready; while :; do sleep 0.05; done"


WHY_NOT = ssh_hosts.why_not()

SSHD_CONFIG = ssh_hosts.SSHD_CONFIG + """MaxStartups 100
SetEnv PATH={folder}/{host}.bin:/usr/bin:/bin {mark}
"""

# Queues of tc, the worst first: tbf limits the rate, and drops packets that would wait for long.
BAD_LINKS = ("netem delay 3ms 2ms loss 1% duplicate 1% reorder 5%", "tbf rate 20mbit burst 16kb latency 20ms")

# gone: an address that nobody has; shut: a port at which nobody listens; silent: a connection on which
# nothing comes; stranger: a host that does not let this user in.
SSH_CONFIG = """Host alpha
  HostName 10.78.0.1
Host beta
  HostName 10.78.0.2
Host gone
  HostName 10.78.0.99
Host shut
  HostName 10.78.0.2
  Port 2223
Host silent
  ProxyCommand sleep 1000
Host stranger
  HostName 10.78.0.2
  PubkeyAuthentication no
""" + ssh_hosts.SSH_CONFIG

# Answers as another version of dtrain would.
OTHER_VERSION = """#!/usr/bin/env python3
import base64, json, struct, sys
text = lambda t: base64.b64encode(t.encode()).decode()
hello = json.dumps({"version": text("9.9.9"), "program": text("/p"), "digest": text("d"),
                    "address": text(""), "client_address": text(""), "error": text("")}).encode()
sys.stdout.buffer.write(b"Welcome!\\n\\ndtrain node-agent 1\\n" + struct.pack("<IB", len(hello), 4) + hello)
sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""


def write(path, text, mode=0o600):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)


def run(words, **options):
    return subprocess.run(words, check=True, capture_output=True, **options)


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no hosts with sshd here: {WHY_NOT}")
class Hosts(EndToEnd):
    of_one_host = {}  # The losses of two ranks on one host, by step.

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.spaces = {host: f"dt-hosts-{os.getpid()}-{host}" for host in ADDRESSES}
        cls.addClassCleanup(cls.remove_spaces)
        for space in cls.spaces.values():
            run(["ip", "netns", "add", space])
            run(["ip", "-n", space, "link", "set", "lo", "up"])
        first, second = cls.spaces.values()
        run(["ip", "link", "add", "wire0", "netns", first, "type", "veth", "peer", "name", "wire0",
             "netns", second])
        for host, space in cls.spaces.items():
            run(["ip", "-n", space, "addr", "add", f"{ADDRESSES[host]}/24", "dev", "wire0"])
            run(["ip", "-n", space, "link", "set", "wire0", "up"])
        for key in ("host_key", "key"):
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{cls.folder}/{key}"])
        write(f"{cls.folder}/ssh_config", SSH_CONFIG.format(folder=cls.folder, port=ssh_hosts.PORT))
        os.makedirs("/run/sshd", exist_ok=True)  # sshd wants it, and makes it not itself.

    @classmethod
    def remove_spaces(cls):
        for space in cls.spaces.values():
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)

    def setUp(self):
        self.work = f"{self.folder}/{self._testMethodName}"
        os.makedirs(self.work)
        for host in ADDRESSES:
            os.makedirs(f"{self.folder}/{host}.bin", exist_ok=True)
            self.start_sshd(host)
            self.addCleanup(shutil.rmtree, f"{self.folder}/{host}.bin")

    def start_sshd(self, host):
        path = f"{self.folder}/{host}.sshd"
        # Sessions have the test's mark; the server itself has not, for it is stopped after the check.
        write(path, SSHD_CONFIG.format(port=ssh_hosts.PORT, address=ADDRESSES[host], folder=self.folder,
                                       host=host, mark=self.mark))
        with open(f"{self.folder}/{host}.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(["ip", "netns", "exec", self.spaces[host], ssh_hosts.SSHD, "-D", "-e",
                                       "-f", path], stdin=subprocess.DEVNULL, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        end = time.monotonic() + TIME_BOUND_S
        while not os.path.exists(f"{self.folder}/{host}.pid"):  # Written when it listens.
            self.assertIsNone(server.poll(), f"sshd of {host} has ended")
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def hostfile(self, text):
        write(f"{self.work}/hosts", text)
        return f"{self.work}/hosts"

    def command(self, *words, hosts="alpha slots=1\nbeta slots=1\n"):
        return ["ip", "netns", "exec", self.spaces["alpha"], f"{BIN}/dtrain", "launch", "--hostfile",
                self.hostfile(hosts), "--launcher-args", f"-F {self.folder}/ssh_config", "--run-dir",
                f"{self.work}/run", *words]

    def script(self, text, *words, **options):
        """A job whose ranks run this shell script."""
        return self.command(*words, "--", "sh", "-c", text, **options)

    def gpt(self, *sets):
        words = ["--", f"{BIN}/dtrain-gpt", self.config]
        for value in ("checkpoint.interval=0", *sets):
            words += ["--set", value]
        return words

    def log(self, rank, stream="out"):
        path = f"{self.work}/run/logs/attempt-0/rank-{rank}.{stream}"
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def await_that(self, condition, process):
        end = time.monotonic() + TIME_BOUND_S
        while not condition():
            if process.poll() is not None or time.monotonic() > end:
                process.kill()
                self.fail(f"it did not come to that:\n{process.communicate()[0]}")
            time.sleep(0.01)

    def await_ready(self, process):
        self.await_that(lambda: "ready" in self.log(0) and "ready" in self.log(1), process)

    def ssh_processes(self):
        return {host: pid for pid, command in marked_processes(self.mark) for host in ADDRESSES
                if command.startswith("ssh ") and f" -- {host} " in command}

    def assert_nothing_started(self):
        self.assertFalse(os.path.exists(f"{self.work}/run"))

    # Jobs that work.

    def assert_five_steps_as_of_one_host(self):
        result = self.run_program(self.command(*self.gpt("train_steps=5")))
        self.assertEqual(result.code, 0, result.output)
        self.assert_one_line(result.output, "step 5/5")
        if not Hosts.of_one_host:
            Hosts.of_one_host.update(self.losses(self.train(2, "one-host", ["train_steps=5", "checkpoint.interval=0"])))
        self.assertEqual(self.losses(f"{self.work}/run"), Hosts.of_one_host)
        self.assertEqual(len(Hosts.of_one_host), 5)
        return result.output

    def test_two_hosts_train_as_one_host_with_two_ranks_does(self):
        self.assert_five_steps_as_of_one_host()

    def test_a_link_that_is_slow_and_drops_packets_costs_no_host_and_no_bit(self):
        bad = next((way for way in BAD_LINKS if all(self.make_link(host, way) for host in ADDRESSES)), None)
        if bad is None:
            self.skipTest("LOUD SKIP: this kernel has no queue that makes a link bad")
        output = self.assert_five_steps_as_of_one_host()
        for verdict in ("is lost", "hangs", "attempt 1"):
            self.assertNotIn(verdict, output, bad)

    def make_link(self, host, way):
        """Gives the host's end of the wire a queue for this test; whether the kernel has it."""
        queue = ["tc", "-n", self.spaces[host], "qdisc"]
        made = subprocess.run([*queue, "replace", "dev", "wire0", "root", *way.split()], check=False)
        if made.returncode == 0:
            self.addCleanup(run, [*queue, "del", "dev", "wire0", "root"])
        return made.returncode == 0

    def test_each_host_has_its_slots_and_node_zero_picks_the_port(self):
        result = self.run_program(self.script(
            "echo $RANK $WORLD_SIZE $LOCAL_RANK $GROUP_RANK $DTRAIN_HOST_ADDRESS $DTRAIN_STORE "
            "$CUDA_VISIBLE_DEVICES", "--include", "beta:1,3@alpha:0,1",
            hosts="alpha slots=2\nbeta slots=4\n"))
        self.assertEqual(result.code, 0, result.output)
        port = self.log(0).split(":")[-1].strip()
        self.assertGreater(int(port), 1023)
        self.assertEqual([self.log(rank) for rank in range(4)],
                         [f"0 4 0 0 10.78.0.1 10.78.0.1:{port}\n", f"1 4 1 0 10.78.0.1 10.78.0.1:{port}\n",
                          f"2 4 0 1 10.78.0.2 10.78.0.1:{port} 1,3\n",
                          f"3 4 1 1 10.78.0.2 10.78.0.1:{port} 1,3\n"])

    def test_this_host_is_started_without_ssh(self):
        result = self.run_program(self.script("echo $RANK $DTRAIN_HOST_ADDRESS $SSH_CONNECTION",
                                              hosts="localhost slots=1\nbeta slots=1\n"),
                                  env={"SSH_CONNECTION": "1.1.1.1 1 2.2.2.2 2"})
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual(self.log(0), "0 10.78.0.1 1.1.1.1 1 2.2.2.2 2\n")
        self.assertRegex(self.log(1), r"^1 10\.78\.0\.2 10\.78\.0\.1 \d+ 10\.78\.0\.2 2222\n$")

    def test_arguments_and_variables_reach_the_program_unchanged(self):
        with open(f"{self.folder}/ds_env", "w", encoding="utf-8") as file:
            file.write("OF_FILE=$(touch z)\n")
        script = "printf '%s\\0' \"$@\" \"$MINE\" \"$OF_FILE\" \"$NCCL_MINE\" \"$NOT_MINE\" >got.$RANK; pwd"
        command = self.script(script, "--export", "MINE") + ["name", HOSTILE, "", "--hostfile"]
        environment = {"MINE": os.fsdecode(HOSTILE), "NCCL_MINE": "a\nb", "NOT_MINE": "secret",
                       "DS_ENV_FILE": f"{self.folder}/ds_env"}
        process = subprocess.run(command, cwd=self.work, env=self.environment(environment), check=False,
                                 capture_output=True, timeout=TIME_BOUND_S)
        self.assertEqual(process.returncode, 0, process.stderr)
        expected = b"\0".join([HOSTILE, b"", b"--hostfile", HOSTILE, b"$(touch z)", b"a\nb", b"", b""])
        for rank in (0, 1):
            with open(f"{self.work}/got.{rank}", "rb") as file:
                self.assertEqual(file.read(), expected)
            self.assertEqual(self.log(rank), f"{self.work}\n")
        for touched in ("x", "y", "z"):
            self.assertEqual(glob.glob(f"{self.work}/**/{touched}", recursive=True), [])
            self.assertFalse(os.path.exists(f"/root/{touched}"))

    def test_output_of_other_hosts_has_their_names_and_that_of_node_zero_has_not(self):
        result = self.run_program(self.script("echo out of $RANK; echo err of $RANK >&2", "--tee", "3"))
        self.assertEqual(result.code, 0, result.output)
        lines = result.output.splitlines()
        for line in ("[rank 0] out of 0", "[rank 0] err of 0", "[beta] [rank 1] out of 1",
                     "[beta] [rank 1] err of 1"):
            self.assertIn(line, lines)

    def test_the_token_is_in_no_command_line_and_no_environment(self):
        process = self.start(self.script(FOREVER))
        self.await_ready(process)
        rank = next(pid for pid, command in marked_processes(self.mark) if self.variable(pid, "RANK") == "1"
                    and "sh -c trap" in command)
        with open(f"/proc/{rank}/fd/3", "rb") as file:
            token = file.read()
        self.assertEqual(len(token), 32)
        forms = [token, token.hex().encode(), token.hex().upper().encode(), base64.b64encode(token)]
        found = []
        for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError), open(path, "rb") as file:
                text = file.read()
                found += [path for form in forms if form in text]
        self.assertEqual(found, [])
        process.send_signal(signal.SIGTERM)
        self.assertEqual(self.finish(process).code, 143)

    @staticmethod
    def variable(pid, name):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                items = dict(item.split(b"=", 1) for item in file.read().split(b"\0") if b"=" in item)
        except OSError:
            return None
        return items.get(name.encode(), b"").decode()

    # How it ends.

    def test_a_killed_starter_leaves_nothing_and_the_ranks_could_save(self):
        process = self.start(self.script(FOREVER))
        self.await_ready(process)
        process.kill()
        process.communicate()
        end = time.monotonic() + TIME_BOUND_S
        while self.left_behind() and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.left_behind(), [])
        for rank in (0, 1):
            self.assertEqual(self.log(rank), "ready\nstopped\n")

    def test_sigterm_saves_on_all_hosts_and_ends_with_143(self):
        process = self.start(self.command(*self.gpt("train_steps=100000")))
        self.await_step(f"{self.work}/run", 3, process)
        process.send_signal(signal.SIGTERM)
        result = self.finish(process)
        self.assertEqual(result.code, 143, result.output)
        self.assertEqual(len(glob.glob(f"{self.work}/run/checkpoints/step-*")), 1, result.output)
        self.assertNotIn("second SIGTERM", result.output)

    def test_ctrl_c_stops_all_hosts_and_a_second_one_kills(self):
        deaf = "trap '' INT TERM; echo ready; while :; do sleep 0.05; done"
        process = self.start(self.script(deaf))
        self.await_ready(process)
        os.killpg(process.pid, signal.SIGINT)  # As the terminal sends it.
        # The agents' own lines, by which they have taken the first signal.
        time_bound = time.monotonic() + TIME_BOUND_S
        seen = b""
        os.set_blocking(process.stdout.fileno(), False)
        while seen.count(b"SIGINT received") < 2 and time.monotonic() < time_bound:
            with contextlib.suppress(BlockingIOError):
                seen += os.read(process.stdout.fileno(), 65536)
            time.sleep(0.01)
        self.assertEqual(seen.count(b"SIGINT received"), 2, seen)
        os.set_blocking(process.stdout.fileno(), True)
        os.killpg(process.pid, signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, result.output)
        self.assertIn("second SIGINT", result.output)

    def test_the_code_is_that_of_the_rank_that_failed_on_another_host(self):
        result = self.run_program(self.script(
            "if [ $RANK = 1 ]; then echo oh no >&2; exit 17; fi; sleep 1000"))
        self.assertEqual(result.code, 17, result.output)
        self.assert_one_line(result.output, "rank 1 ended with exit code 17")
        self.assert_one_line(result.output, "[beta] ", "| oh no")

    def test_exit_code_255_is_the_programs_own(self):
        result = self.run_program(self.script("exit 255"))
        self.assertEqual(result.code, 255, result.output)
        self.assertNotIn("is lost", result.output)

    def test_a_cut_connection_stops_the_job_on_all_hosts(self):
        process = self.start(self.script(FOREVER))
        self.await_ready(process)
        os.kill(self.ssh_processes()["beta"], signal.SIGKILL)
        result = self.finish(process)
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "host beta is lost")
        for rank in (0, 1):
            self.assertEqual(self.log(rank), "ready\nstopped\n")

    def test_a_killed_agent_is_a_lost_host_and_its_ranks_can_save(self):
        process = self.start(self.script(FOREVER))
        self.await_ready(process)
        agents = [pid for pid, command in marked_processes(self.mark)
                  if command.strip().endswith("dtrain node-agent") and not command.startswith("ssh ")
                  and (self.variable(pid, "SSH_CONNECTION") or "").endswith("10.78.0.2 2222")]
        [first] = [pid for pid in agents if self.parent(pid) not in agents]
        self.assertEqual(len(agents), 3, "the one that talks, the launcher of the node, and its guard")
        os.kill(first, signal.SIGKILL)
        result = self.finish(process)
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "host beta is lost")
        for rank in (0, 1):
            self.assertEqual(self.log(rank), "ready\nstopped\n")

    @staticmethod
    def parent(pid):
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])

    def test_an_elastic_job_goes_on_without_a_killed_host_and_takes_it_back(self):
        script = ("echo attempt $DTRAIN_ATTEMPT rank $RANK of $WORLD_SIZE; [ $DTRAIN_ATTEMPT = 2 ] && exit 0; "
                  "trap 'echo saved; exit 143' TERM; echo ready; while :; do sleep 0.05; done")
        process = self.start(self.script(script, "--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1"))
        self.await_ready(process)
        # Its ranks, its agent and its sshd: all at once, or the agent sees its connection end first and says so. The
        # newest is killed first, because the kernel lets a stopped process go on when its parent is gone.
        found = run(["ip", "netns", "pids", self.spaces["beta"]], text=True).stdout
        pids = sorted(map(int, found.split()), reverse=True)
        for number, pid in itertools.product((signal.SIGSTOP, signal.SIGKILL), pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        self.await_that(lambda: os.path.exists(f"{self.work}/run/logs/attempt-1/rank-0.out"), process)
        os.remove(f"{self.folder}/beta.pid")
        self.start_sshd("beta")
        result = self.finish(process)
        self.assertEqual(result.code, 0, result.output)
        self.assert_one_line(result.output, "host beta is lost")
        self.assert_one_line(result.output, "node 1 (host ", ", beta in the hostfile) is lost: the connection of its "
                             "agent has ended", "; stopping 1 rank")
        self.assert_one_line(result.output, "host beta is back")
        self.assertIn("the job grows from 1 to 2 nodes", result.output)
        with open(f"{self.work}/run/logs/attempt-2/rank-1.out", encoding="utf-8") as file:
            self.assertEqual(file.read(), "attempt 2 rank 1 of 2\n")

    def test_a_restart_meets_again(self):
        result = self.run_program(self.script(
            "if [ $DTRAIN_ATTEMPT = 0 ]; then [ $RANK = 1 ] && exit 75; exec sleep 1000; fi; "
            "echo $DTRAIN_STORE", "--max-restarts", "1"))
        self.assertEqual(result.code, 0, result.output)
        for rank in (0, 1):
            with open(f"{self.work}/run/logs/attempt-1/rank-{rank}.out", encoding="utf-8") as file:
                self.assertRegex(file.read(), r"^10\.78\.0\.1:\d+\n$")

    # Jobs that are refused before anything starts.

    def test_all_hosts_that_cannot_be_reached_are_named(self):
        result = self.run_program(self.script("true", hosts="".join(
            f"{host} slots=1\n" for host in ("alpha", "gone", "beta", "shut", "stranger"))))
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "3 of 5 hosts cannot start", "gone: ssh: connect to host",
                             "shut: ssh: connect to host 10.78.0.2 port 2223: Connection refused",
                             "stranger: root@10.78.0.2: Permission denied", "--exclude gone@shut@stranger")
        self.assert_nothing_started()

    def test_ctrl_c_while_a_host_is_silent_ends_at_once(self):
        process = self.start(self.script("true", hosts="alpha slots=1\nsilent slots=1\n"))
        self.await_that(lambda: any(command.startswith("sleep 1000")
                                    for _, command in marked_processes(self.mark)), process)
        process.send_signal(signal.SIGINT)
        result = self.finish(process)
        self.assertEqual(result.code, 130, result.output)
        self.assert_one_line(result.output, "SIGINT before all hosts had answered")
        self.assert_nothing_started()

    def test_host_names_are_no_options_of_ssh(self):
        for host in ("-oProxyCommand=touch x", "-oProxyCommand=touch${IFS}x", "alpha;touch", "-l"):
            result = self.run_program(self.script("true", hosts=f"alpha slots=1\n{host} slots=1\n"))
            self.assertEqual(result.code, 64, result.output)
            self.assert_one_line(result.output, "/hosts:2: ", host)
        result = self.run_program(self.script("true", "--include", "-oProxyCommand=touch x"))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "--include names host", "-oProxyCommand=touch x")
        self.assertFalse(os.path.exists("x"))
        self.assert_nothing_started()

    def test_another_version_is_refused(self):
        write(f"{self.folder}/beta.bin/dtrain", OTHER_VERSION, 0o755)
        os.symlink(f"{BIN}/dtrain", f"{self.folder}/alpha.bin/dtrain")
        result = self.run_program(self.script("true", "--remote-dtrain", "dtrain"))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "1 of 2 hosts cannot start", "beta: it has dtrain 9.9.9, this host")
        self.assert_nothing_started()

    def test_a_host_without_dtrain_is_named(self):
        os.symlink(f"{BIN}/dtrain", f"{self.folder}/alpha.bin/dtrain")
        result = self.run_program(self.script("true", "--remote-dtrain", "dtrain"))
        self.assertEqual(result.code, 75, result.output)
        self.assert_one_line(result.output, "1 of 2 hosts cannot start", "beta: ", "dtrain", "not found")

    def test_programs_that_differ_are_refused(self):
        for host in ADDRESSES:
            write(f"{self.folder}/{host}.bin/their-program", f"#!/bin/sh\necho {host}\n", 0o755)
        result = self.run_program(self.command("their-program"))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "their-program is not the same on all hosts", " on alpha", " on beta")
        self.assert_nothing_started()

    def test_what_every_host_lacks_is_said_for_each(self):
        result = self.run_program(self.command("./no-such-program"))
        self.assertEqual(result.code, 64, result.output)
        self.assert_one_line(result.output, "2 of 2 hosts cannot start",
                             "alpha: program ./no-such-program not found", "beta: program ./no-such-program")

    def test_a_fixed_port_that_is_taken_is_named(self):
        holder = subprocess.Popen(
            ["ip", "netns", "exec", self.spaces["alpha"], sys.executable, "-c",
             "import socket, sys; s = socket.socket(); s.bind(('10.78.0.1', 29511)); s.listen(); "
             "print('bound', flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.assertEqual(holder.stdout.readline(), b"bound\n")
        result = self.run_program(self.script("true", "--master-port", "29511"))
        holder.communicate()
        self.assertNotEqual(result.code, 0)
        self.assert_one_line(result.output, "node 0 cannot serve", "10.78.0.1:29511")

    def test_a_dry_run_shows_all_and_starts_nothing(self):
        result = self.run_program(self.script("true", "--dry-run", "--max-restarts", "2",
                                              hosts="alpha slots=1\ngone slots=2\n"),
                                  env={"NCCL_DEBUG": "INFO", "NCCL_MY_TOKEN": "abc"})
        self.assertEqual(result.code, 0, result.output)
        lines = result.output.splitlines()
        self.assertIn("node 1 of 2: host gone, 2 ranks", lines)
        self.assert_one_line(result.output, "command: ssh -T", "BatchMode=yes", f"-F {self.folder}/ssh_config",
                             f" -- gone '{BIN}/dtrain node-agent'")
        self.assert_one_line(result.output, "flags: ", '"--max-restarts" "2"')
        self.assertIn('    variable: NCCL_DEBUG="INFO"', lines)
        self.assertIn('    variable: NCCL_MY_TOKEN="(hidden)"', lines)
        self.assertIn("    token: (hidden)", lines)
        self.assertNotIn("abc", result.output)
        self.assert_nothing_started()
        self.assertEqual(marked_processes(self.mark), [])


if __name__ == "__main__":
    end_to_end.main()
