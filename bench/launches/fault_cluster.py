"""Three hosts, each a network namespace at one switch, with an agent of a job on each: two train and one is a
spare. The faults of random_faults.py are made here: kills, stops, cut cables, lost hosts, a full disk."""
import contextlib
import errno
import glob
import os
import signal
import subprocess
import time

NODES = 3
ENDPOINT_PORT = 29500
ESTABLISHED = "01"  # A connection's state in the kernel's tables.
# How long agents may need to settle after a fault, before the job counts as broken.
SETTLES_WITHIN_S = 60
ENDS_WITHIN_S = 60
NOTICED_S = 1.3  # Silence of a node is noticed within a second; before that nothing tells that it was lost.
LOST = ("given this node up", "is lost")
SPARE = "is a spare"


class Broken(Exception):
    """The job did what it should not; the text says what, with the agents' words."""


def ip(words):
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


def address(node):
    return f"10.79.0.{node + 1}"


class Cluster:
    """Use as a context. `program`: the words of the ranks' command; `environment`: of all that is started."""

    def __init__(self, dtrain, folder, program, environment, disk_mb):
        self.dtrain, self.folder, self.program, self.environment = dtrain, folder, program, environment
        self.disk_mb, self.sets = disk_mb, ()
        self.spaces = [f"dtf{os.getpid()}-{node}" for node in range(NODES)]
        self.hub = f"dtf{os.getpid()}-hub"
        self.disk, self.run_dir = f"{folder}/disk", f"{folder}/disk/run"
        self.agents = [None] * NODES
        self.ended = []  # (node, exit code) of agents that ended by themselves while the job ran.
        self.full_disks = []  # [(begin, end)]
        self.stopped = None  # The process that a fault has stopped.
        self.marks = [0] * NODES  # How long each agent's log was when the last fault began.

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make(self):
        os.makedirs(self.disk)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.disk_mb}m", "none", self.disk], check=True,
                       capture_output=True)
        ip(f"netns add {self.hub}")
        ip(f"-n {self.hub} link add switch0 type bridge forward_delay 0")
        ip(f"-n {self.hub} link set switch0 up")
        for node, space in enumerate(self.spaces):
            ip(f"netns add {space}")
            ip(f"-n {space} link set lo up")
            ip(f"link add wire0 netns {space} type veth peer name port{node} netns {self.hub}")
            ip(f"-n {space} addr add {address(node)}/24 dev wire0")
            ip(f"-n {space} link set wire0 up")
            ip(f"-n {self.hub} link set port{node} up")
            self._plug(node)
        token = f"{self.folder}/token"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("5a" * 32)

    def __exit__(self, *_):
        for node in range(NODES):
            self._kill_all(node)
        for agent in filter(None, self.agents):
            agent.wait()
        for space in (*self.spaces, self.hub):
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
        subprocess.run(["umount", "-l", self.disk], check=False, capture_output=True)

    def _plug(self, node):
        ip(f"-n {self.hub} link set port{node} master switch0")

    def _unplug(self, node):
        ip(f"-n {self.hub} link set port{node} nomaster")

    # Agents.

    def start(self, node, sets=()):
        """Starts the agent of `node`. All get the same command, again and again, as a scheduler gives it."""
        self.sets = sets or self.sets
        # Each keeps a process in reserve, the spare too.
        words = [self.dtrain, "launch", "--nnodes", "1:2", "--node-rank", str(node),
                 "--rdzv-endpoint", f"{address(0)}:{ENDPOINT_PORT}", "--token-file", f"{self.folder}/token",
                 "--rdzv-conf", "last_call_timeout=30", "--max-restarts", "100000", "--reserve",
                 "--local-addr", address(node), "--run-dir", self.run_dir, "--", *self.program]
        for value in self.sets:
            words += ["--set", value]
        self.start_program(node, words)

    def start_program(self, node, words):
        """Starts the host's agent. Hosts share no core with those that train beside them."""
        cpus = sorted(os.sched_getaffinity(0))
        place = ["ip", "netns", "exec", self.spaces[node], "taskset", "-c", str(cpus[min(node, len(cpus) - 1)])]
        with open(self._log(node), "a", encoding="utf-8") as log:
            self.agents[node] = subprocess.Popen([*place, *words], stdin=subprocess.DEVNULL, stdout=log,
                                                 stderr=subprocess.STDOUT, start_new_session=True,
                                                 env=self.environment)

    def start_all(self, sets):
        """The agents of a job: first those that train, then the spare."""
        for node in (0, 1):
            self.start(node, sets)
        self.await_that(lambda: self.ranks(0) and self.ranks(1), "ranks on the first two nodes")
        self.start(2)
        self.await_that(lambda: SPARE in self.said(2), "a spare")

    def _log(self, node):
        return f"{self.folder}/node-{node}.log"

    def said(self, node, since=0):
        try:
            with open(self._log(node), "rb") as file:
                file.seek(since)
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""

    def all_said(self):
        return "\n".join(f"== node {node}\n{self.said(node)[-6000:]}" for node in range(NODES))

    def ranks(self, node):
        """The pids of the node's ranks. A process in reserve has no log yet."""
        program = os.path.basename(self.program[0])
        return [pid for pid in self.pids(node) if program_of(pid) == program and output_of(pid) != os.devnull]

    def pids(self, node):
        """The processes of the host. They are looked for while the job mends itself, on the same cores, so by less
        than a program of its own."""
        space = namespace_of(f"/run/netns/{self.spaces[node]}")
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
                if space and namespace_of(f"/proc/{pid}/ns/net") == space]

    def partner(self):
        """The node that trains beside the first; None while there is none."""
        return next((node for node in (1, 2) if self.ranks(node)), None)

    def keep_agents(self):
        """Starts agents that have ended again, as a scheduler does."""
        if self.agents[0].poll() is not None:
            raise Broken(f"the first node's agent has ended with {self.agents[0].returncode}:\n{self.all_said()}")
        for node in (1, 2):
            if self.agents[node] is not None and self.agents[node].poll() is not None:
                self.ended.append((node, self.agents[node].returncode))
                self.start(node)

    def await_that(self, condition, what, within_s=SETTLES_WITHIN_S):
        end = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > end:
                raise Broken(f"not within {within_s} s: {what}\n{self.all_said()}")
            if self.agents[0].poll() is not None:
                raise Broken(f"the job has ended with {self.agents[0].returncode} before: {what}\n"
                             f"{self.all_said()}")
            time.sleep(0.02)

    def pause(self, seconds):
        """Lets the job run for so long."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.keep_agents()
            time.sleep(min(0.1, left))

    def is_settled(self):
        """Whether two nodes train, and the third is there as a spare."""
        self.keep_agents()
        for node in (1, 2):
            new = self.said(node, self.marks[node])
            last = max(new.rfind(text) for text in LOST)
            if last >= 0 and SPARE not in new[last:] and not self.ranks(node):
                return False
        return bool(self.ranks(0)) and self.partner() is not None

    # Faults.

    def begin(self, fault):
        """Makes the fault; gives what it was made on."""
        self.marks = [os.path.getsize(path) if os.path.exists(path) else 0 for path in map(self._log, range(NODES))]
        if fault.kind == "full_disk":
            self.full_disks.append((time.time(), float("inf")))
            fill(f"{self.disk}/filler")
            return "disk"
        partner = self.partner()
        node = 0 if fault.target == "first" else partner if fault.target == "partner" else 3 - partner
        pid = self.agents[node].pid
        if fault.kind in ("kill_rank", "stop_rank"):
            pid = self.ranks(node)[0]
        if fault.kind == "partition":
            self._unplug(node)
        elif fault.kind == "lose_node":
            self.lose(node)
        elif fault.kind in ("kill_rank", "kill_agent"):
            os.kill(pid, signal.SIGKILL)
        elif fault.kind in ("stop_rank", "stop_agent"):
            os.kill(pid, signal.SIGSTOP)
            self.stopped = pid
        return node

    def lose(self, node):
        """Power loss: nobody hears that the host's connections have ended."""
        self._unplug(node)
        self._kill_all(node)

    def end(self, fault, made_on):
        if fault.kind == "full_disk":
            os.remove(f"{self.disk}/filler")
            self.full_disks[-1] = (self.full_disks[-1][0], time.time())
        elif fault.kind in ("partition", "lose_node"):
            self._plug(made_on)
        elif self.stopped is not None:
            # The agent may have killed it, and the number may be another process's now.
            if self.stopped in self.pids(made_on):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.stopped, signal.SIGCONT)
            self.stopped = None

    def make(self, fault):
        """A fault from its begin until the job has got over it."""
        # The fault before may have been noticed later than anything told.
        self.await_that(self.is_settled, f"two nodes that train and a spare before {fault.text()}")
        made_on = self.begin(fault)
        end = time.monotonic() + fault.lasts_s
        while (left := end - time.monotonic()) > 0:
            # A lost host comes back when its time is over.
            if fault.kind != "lose_node":
                self.keep_agents()
            time.sleep(min(0.1, left))
        self.end(fault, made_on)
        self.pause(max(0, NOTICED_S - fault.lasts_s))
        self.await_that(self.is_settled, f"two nodes that train and a spare after {fault.text()}")

    def _kill_all(self, node):
        """Kills every process of the host."""
        end = time.monotonic() + ENDS_WITHIN_S
        while (left := self.pids(node)) and time.monotonic() < end:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.agents[node] is not None:
                self.agents[node].poll()
            time.sleep(0.005)

    # The end.

    def stop(self):
        """Ends the job with a save, as Ctrl-C does; gives the agents' exit codes."""
        self.agents[0].send_signal(signal.SIGINT)
        return self.wait(ENDS_WITHIN_S)

    def wait(self, within_s):
        end = time.monotonic() + within_s
        for node, agent in enumerate(self.agents):
            try:
                agent.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Broken(f"node {node} does not end within {within_s} s:\n{self.all_said()}") from None
        return [agent.returncode for agent in self.agents]

    def orphans(self, within_s=20):
        """What runs on the hosts although the job has ended."""
        end = time.monotonic() + within_s
        while (left := [pid for node in range(NODES) for pid in self.pids(node)]) and time.monotonic() < end:
            time.sleep(0.05)
        return [f"{pid} {program_of(pid)}" for pid in left]

    def attempts(self):
        """How often the ranks were started."""
        return len(glob.glob(f"{self.run_dir}/logs/attempt-*"))


def program_of(pid):
    """The name of the process's program; "" when it is gone."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return os.path.basename(file.read().split(b"\0")[0].decode(errors="replace"))
    except OSError:
        return ""


def namespace_of(path):
    """What tells the namespace at the path from others; None when it is gone."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_connected(pid, port):
    """Whether a process of this one's host has a TCP connection to the port; False when the process is gone."""
    rows = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            rows += [line.split() for line in file]
    return any(row[2].endswith(f":{port:04X}") and row[3] == ESTABLISHED for row in rows)


def output_of(pid):
    """The file to which the process writes; "" when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:
        return ""


def fill(path):
    """Fills the disk: no byte is left when it returns."""
    with open(path, "wb", buffering=0) as file:
        block = 1 << 20
        while block:
            try:
                file.write(b"\0" * block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block //= 16
