"""The real program under limits of the system: how it ends at each, and how many threads it has where
a cgroup gives it less CPU time than the machine has, or where its threads fill their CPUs."""
import glob
import os
import platform
import subprocess

import end_to_end
from end_to_end import BIN, EndToEnd
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
