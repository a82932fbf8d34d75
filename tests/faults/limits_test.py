"""The real program under limits of the system: how it ends at each, and how many threads it has where
a cgroup gives it less CPU time than the machine has, or where its threads fill their CPUs."""
import contextlib
import glob
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile

import end_to_end
from end_to_end import BIN, EndToEnd
from memory_cgroup import memory_group
from ports import free_port
from time_bounds import bound_s

LONG = ["train_steps=100000", "checkpoint.interval=0"]
CHOSEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
PAUSE = {"x86_64": "34"}  # The number of the system call pause().

# A cgroup file system of files, with a quota of $QUOTA us in 100 ms wherever this process looks for one.
WITH_QUOTA = r"""
mount -t tmpfs none /sys/fs/cgroup || exit 1
while IFS=: read -r id controllers path; do
  case ",$controllers," in
    ,,) mkdir -p "/sys/fs/cgroup$path"; echo "$QUOTA 100000" >"/sys/fs/cgroup$path/cpu.max" ;;
    *,cpu,*) folder="/sys/fs/cgroup/cpu$path"; mkdir -p "$folder"
             echo "$QUOTA" >"$folder/cpu.cfs_quota_us"; echo 100000 >"$folder/cpu.cfs_period_us" ;;
  esac
done </proc/self/cgroup
exec "$@"
"""

# The rest of the command in the memory cgroup of the first word: all of it, or rank 1 alone, which the kernel
# then chooses before any other process there.
IN_GROUP = 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"'
RANK_1_IN_GROUP = """
if test "$RANK" = 1; then
  echo $$ >"$1/cgroup.procs" && echo 1000 >/proc/self/oom_score_adj || exit 1
fi
shift
exec "$@"
"""

# Fills so many MiB of the cgroup of the first argument.
NEIGHBOUR = """
import sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write("0")
held = [b"x" * (1 << 20) for _ in range(int(sys.argv[2]))]
"""
INITIAL_PIDS = "pid:[4026531836]"  # The namespace of the pids that the kernel's messages have.


def threads(pid):
    """Reads of each thread of a process its CPU time in ticks, and the system call in which it waits."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        folder = f"/proc/{pid}/task/{thread}"
        try:
            with open(f"{folder}/stat", encoding="ascii") as file:
                ticks = sum(int(value) for value in file.read().rpartition(")")[2].split()[11:13])
            with open(f"{folder}/syscall", encoding="ascii") as file:
                found.append((ticks, file.read().split(" ")[0].strip()))
        except OSError:  # The thread has ended.
            pass
    return found


class Limits(EndToEnd):
    def alone(self, name, sets=()):
        command = [f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/{name}"]
        for value in sets:
            command += ["--set", value]
        return command

    @staticmethod
    def said(run_dir):
        """What the ranks of a launched run have written to stderr."""
        texts = []
        for path in sorted(glob.glob(f"{run_dir}/logs/attempt-*/rank-*.err")):
            with open(path, encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
        return "".join(texts)

    @staticmethod
    def under(limit, command):
        """The command under `ulimit LIMIT`, which sets the soft and the hard limit."""
        return ["sh", "-c", f'ulimit {limit}; exec "$@"', "sh", *command]

    def test_cpu_time_that_is_used_up_saves_and_the_line_says_what_to_raise(self):
        for name, ranks in (("cpu-alone", 1), ("cpu-launched", 2)):
            run_dir = f"{self.folder}/{name}"
            command = self.alone(name, LONG) if ranks == 1 else self.launch_command(2, run_dir, LONG)
            result = self.run_program(self.under("-t 10", command))
            self.assertEqual(result.code, 143, result.output)
            # A rank that waits in a loop for another one, which other programs keep from its CPU, uses its
            # time up first; the launcher shows what rank 0 says alone.
            said = result.output + self.said(run_dir)
            self.assert_one_line(said, "the limit of CPU time, which is 10 s", "(ulimit -t)")
            self.assert_one_line(result.output, "the CPU time of a rank is used up", "is saved in")
            last = max(self.losses(run_dir))
            sets = [f"train_steps={last + 1}", "checkpoint.interval=0"]
            result = self.run_program(self.launch_command(ranks, run_dir, sets))
            self.assertEqual(result.code, 0, result.output)
            self.assertEqual(sorted(self.losses(run_dir)), list(range(1, last + 2)))

    def test_each_limit_that_ends_a_run_is_named_with_its_value(self):
        limits = [("-n 12", 75, ["the limit of open files, which is 12 (ulimit -n)"]),
                  ("-s 512", 64, ["the limit of the stack is 524288 bytes", "ulimit -s"])]
        if bound_s(1) == 1:  # Sanitizers take terabytes of addresses.
            limits.append(("-v 1200000", 75, ["the limit of address space", "1228800000 bytes (ulimit -v)"]))
        for limit, code, texts in limits:
            result = self.run_program(self.under(limit, self.alone("limited", [
                "train_steps=2", "model.hidden_size=1024", "model.num_hidden_layers=16"])))
            self.assertEqual(result.code, code, result.output)
            self.assert_one_line(result.output, *texts)

    def test_locked_memory_is_no_limit_of_a_run_without_rdma(self):
        result = self.run_program(self.under("-l 0", self.launch_command(
            2, f"{self.folder}/unlocked", ["train_steps=2"])))
        self.assertEqual(result.code, 0, result.output)


class OutOfMemory(EndToEnd):
    LIMIT_BYTES = 256 << 20

    def setUp(self):
        found = memory_group()
        if found is None:
            self.skipTest("LOUD SKIP: no memory cgroup that this user may write to")
        folder, limit = found
        self.group = tempfile.mkdtemp(prefix="dtrain-job-", dir=folder)
        self.addCleanup(self.wait_until, self.is_removed, "the processes leave their cgroup")
        with open(f"{self.group}/{limit}", "w", encoding="ascii") as file:
            file.write(str(self.LIMIT_BYTES))
        for name in ("memory.swappiness", "memory.swap.max"):  # What is swapped out does not count.
            if os.path.exists(f"{self.group}/{name}"):
                with open(f"{self.group}/{name}", "w", encoding="ascii") as file:
                    file.write("0")

    def is_removed(self):
        """Whether it could be: a process that has ended is in its group for another moment."""
        with contextlib.suppress(OSError):
            os.rmdir(self.group)
        return not os.path.exists(self.group)

    def check_report(self, run_dir, result):
        """Checks that console and reports name rank 1 and the cause; gives the report."""
        self.assertEqual(result.code, 137, result.output)
        self.assertIn("rank 1 killed by signal 9 (SIGKILL)", result.output)
        self.assertIn("because memory ran out", result.output)
        with open(f"{run_dir}/report.json", encoding="utf-8") as file:
            report = json.load(file)
        self.assertEqual((report["kind"], report["first"]["rank"]), ("out_of_memory", 1), report)
        with open(f"{run_dir}/report.txt", encoding="utf-8") as file:
            self.assertIn("because memory ran out", file.readline())
        return report

    def greedy_rank(self, name, prefix=()):
        """The report of a job in the cgroup, of whose two ranks one takes more than the limit."""
        run_dir = f"{self.folder}/{name}"
        # Writes to each page of what it takes.
        rank = "import os, time\nif os.environ['RANK'] == '1': b'x' * (1 << 30)\ntime.sleep(1000)"
        result = self.run_program(
            ["sh", "-c", IN_GROUP, "sh", self.group, *prefix, f"{BIN}/dtrain", "launch", "--nproc-per-node", "2",
             "--run-dir", run_dir, "--", sys.executable, "-c", rank])
        return self.check_report(run_dir, result)

    def test_a_rank_that_the_kernel_kills_for_the_memory_of_the_jobs_cgroup_is_reported_so(self):
        self.assertEqual(self.greedy_rank("out-of-memory")["kernel"]["oom_kills"], 1)

    def test_in_a_container_whose_pids_the_kernels_messages_do_not_have_the_count_of_the_cgroup_tells(self):
        container = ["unshare", "--pid", "--fork", "--mount-proc"]
        tried = subprocess.run([*container, "true"], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            self.skipTest(f"LOUD SKIP: no namespaces of pids here: {tried.stderr.strip()}")
        report = self.greedy_rank("container", container)
        self.assertEqual(report["kernel"]["oom_kills"], 1)
        self.assertNotIn(report["first"]["pid"], [message.get("pid") for message in report["kernel"]["messages"]])
        self.assertIn("the kernel killed 1 process of its memory cgroup", report["what"])

    def test_a_rank_that_the_kernel_kills_for_the_memory_of_its_own_cgroup_is_told_from_those_that_lose_it(self):
        if os.readlink("/proc/self/ns/pid") != INITIAL_PIDS or not os.access("/dev/kmsg", os.R_OK):
            self.skipTest("LOUD SKIP: the kernel's messages, or the pids that they have, are not seen here")
        run_dir = f"{self.folder}/own-cgroup"
        launch, program = self.split(self.launch_command(2, run_dir, LONG))
        process = self.start([*launch, "sh", "-c", RANK_1_IN_GROUP, "sh", self.group, *program])
        self.await_step(run_dir, 3, process)
        # A neighbour in the cgroup takes what rank 1 would need, and fits in alone.
        eaten = self.run_program([sys.executable, "-c", NEIGHBOUR, self.group, str((self.LIMIT_BYTES >> 20) - 20)])
        # The kernel may kill it too, where the memory of the first one that it kills is not free at once.
        self.assertIn(eaten.code, (0, -signal.SIGKILL), eaten.output)
        report = self.check_report(run_dir, self.finish(process))
        self.assertIn("the kernel killed it because memory ran out", report["what"])
        self.assertGreaterEqual(report["first"]["step"], 1)
        self.assertIn(("out_of_memory", report["first"]["pid"]),
                      [(message["kind"], message.get("pid")) for message in report["kernel"]["messages"]])
        [other] = [end for end in report["ends"] if end["rank"] == 0]
        self.assertIn(other["role"], ("follower", "stopped"))

    @staticmethod
    def split(command):
        """The launcher's words and the ranks' command."""
        at = command.index("--") + 1
        return command[:at], command[at:]


class Threads(EndToEnd):
    def environment(self, env):
        """Without what the user of this machine has chosen for threads."""
        return {key: value for key, value in super().environment(env).items()
                if key not in CHOSEN or key in (env or {})}

    def ranks(self, name, size, prefix=(), env=None):
        """Reads the threads of each rank after 30 steps; no launcher has bound the ranks to cores."""
        token = f"{self.folder}/{name}.key"
        with open(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
            file.write("5a" * 32)
        port = free_port()
        run_dir = f"{self.folder}/{name}"
        command = [*prefix, f"{BIN}/dtrain-gpt", self.config, "--run-dir", run_dir]
        for value in [*LONG, "model.hidden_size=256", "model.intermediate_size=1024"]:
            command += ["--set", value]
        together = {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port), "DTRAIN_TOKEN_FILE": token}
        processes = []
        try:
            for rank in range(size):
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **together} if size > 1 else {}
                processes.append(self.start(command, env={**own, **(env or {})}))
            self.await_step(run_dir, 30, processes[0])
            return [threads(process.pid) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.communicate()

    @staticmethod
    def computing(of_rank):
        """How many of a rank's threads have computed: the others have next to no CPU time."""
        most = max(ticks for ticks, _ in of_rank)
        return sum(ticks > most / 5 for ticks, _ in of_rank)

    def test_a_rank_computes_with_as_many_threads_as_its_part_of_a_cpu_quota_has_cpus(self):
        cpus = len(os.sched_getaffinity(0))
        if cpus < 2:
            self.skipTest("LOUD SKIP: one CPU, of which a quota takes no thread")
        tried = subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/sys/fs/cgroup"],
                               capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            self.skipTest(f"LOUD SKIP: cannot show a rank other cgroups: {tried.stderr.strip()}")
        for name, size, quota, wanted in (("all", 1, cpus, cpus), ("one", 1, 1.5, 1),
                                          ("shared", 2, 2.5, 1)):
            prefix = ["unshare", "--mount", "sh", "-c", WITH_QUOTA, "sh"]
            env = {"QUOTA": str(int(quota * 100000))}
            for of_rank in self.ranks(f"quota-{name}", size, prefix, env):
                self.assertEqual(self.computing(of_rank), wanted, (name, of_rank))

    def test_threads_that_fill_their_cpus_sleep_while_they_wait_unless_the_user_has_chosen(self):
        pause = PAUSE.get(platform.machine())
        if pause is None or not threads(os.getpid()):
            self.skipTest("LOUD SKIP: it does not show in which system call a thread waits")
        one_cpu = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        for name, env, wanted in (("more", {"OMP_NUM_THREADS": "2"}, 1),
                                  ("one-each", {"OMP_NUM_THREADS": "1"}, 0),
                                  ("active", {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "active"}, 0),
                                  ("spins", {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "1000"}, 0)):
            for of_rank in self.ranks(f"waits-{name}", 2, one_cpu, env):
                # The thread with which a rank makes libgomp's threads sleep waits for ever.
                self.assertEqual(sum(call == pause for _, call in of_rank), wanted, (name, of_rank))


if __name__ == "__main__":
    end_to_end.main()
