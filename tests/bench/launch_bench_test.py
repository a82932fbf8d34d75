"""./dev bench launch: what it makes of measured times, and its looks at jobs and hosts. Needs no build."""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/launches"]

import fault_cluster  # noqa: E402
import launch  # noqa: E402
import launch_faults as faults  # noqa: E402
import links  # noqa: E402
import page_goals  # noqa: E402
import page_tables  # noqa: E402
import peer_faults  # noqa: E402
import provenance  # noqa: E402
import report  # noqa: E402
import ssh_hosts  # noqa: E402
from jobs import descendants  # noqa: E402

WHY_NOT = ssh_hosts.why_not()

# A launcher that writes "TIME STEP" lines for its ranks. When rank 1 dies it says so, and begins anew at
# the step of its last checkpoint. Its argument: the file of the steps.
FAKE_LAUNCHER = """
import os, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "fake-rank"],
                        env={**os.environ, "RANK": "1"})
def take(step):
    with open(sys.argv[1], "a") as file:
        file.write(f"{time.time()} {step}\\n")
    time.sleep(0.001)
step = 0
while rank.poll() is None:
    step += 1
    take(step)
print(f"rank 1 (pid {rank.pid}) was killed", flush=True)
time.sleep(0.05)
for again in range(step - step % 10 + 1, step + 5):
    take(again)
"""


def results():
    def rounds(*ways):
        return [{"dtrain": 0.4 + 0.1 * i, **{way: 4.0 + i for way in ways}} for i in range(3)]

    killed = [{"dtrain": {"seen_s": 0.01, "next_step_s": 0.2 + 0.1 * i, "new_step_s": 0.5},
               "dtrain --no-reuse": {"seen_s": 0.02, "next_step_s": 0.7, "new_step_s": 0.9},
               "torchrun": {"seen_s": 0.1, "next_step_s": 6.0}, "torchft": {"next_step_s": 3.0}} for i in range(3)]
    hang = [{"dtrain": {"seen_s": 1.1 + 0.1 * i, "next_step_s": 1.9, "limit_s": 1.0, "right_rank": True}}
            for i in range(3)]
    hang[0]["torchrun"] = {"not_within_s": 20}
    hang[1]["torchrun"], hang[2]["torchrun"] = {"next_step_s": 37.0}, {"next_step_s": 39.0}
    node = [{"dtrain": {"seen_s": 0.9, "next_step_s": 1.5, "new_step_s": 1.6}, "torchft": {"not_within_s": 120}}]
    return {"start": [{"name": "2 ranks", "rounds": rounds("torchrun", "torchrun-cpu")}],
            "hosts": [{"name": "2 hosts", "rounds": rounds("torchrun")}],
            "help": [{"name": "dtrain --help", "rounds": [{"dtrain": 0.005}, {"dtrain": 0.03}, {"dtrain": 0.006}]}],
            "killed": [{"name": "SIGKILL of rank 1", "rounds": killed}],
            "hang": [{"name": "SIGSTOP of rank 1", "rounds": hang, "limits": {"torchrun": "5 s"},
                      "peers": {"torchrun": "sees no hang", "torchft": "goes on"}}],
            "node": [{"name": "loss of a host, with a spare", "rounds": node},
                     {"name": "loss of a host, without a spare", "rounds": node}],
            "simulated": [{"name": "2,048 simulated ranks", "ranks": 2048, "rounds": [{"dtrain": 0.5}]}],
            "random": [{"name": "3600 s of random faults", "goodput": 0.96, "lost_beyond_promise": 0, "orphans": [],
                        "false_restarts": 1}]}


class Goals(unittest.TestCase):
    def test_ratios_are_of_rounds_and_a_twin_without_cuda_counts_where_there_is_one(self):
        goals = {goal["name"]: goal for goal in report.judged(launch.all_goals(results()))}
        for name, value in (("launch.first_forward_s", 0.5),
                            ("launch.first_forward_vs_torchrun_without_cuda", 0.1),
                            ("launch.two_hosts_first_forward_vs_torchrun", 0.1), ("launch.help_s", 0.006),
                            ("launch.killed_rank_seen_s", 0.01),
                            ("launch.killed_rank_next_step_after_seen_s", 0.29), ("launch.hang_seen_s", 1.2),
                            ("launch.hang_right_rank", 1), ("launch.lost_node_seen_s.with_spare", 0.9),
                            ("launch.lost_node_next_step_s.with_spare", 1.5),
                            ("launch.lost_node_seen_s.without_spare", 0.9),
                            ("launch.lost_node_next_step_s.without_spare", 1.5),
                            ("launch.simulated_2048_ranks_s", 0.5), ("launch.random_faults_goodput", 0.96),
                            ("launch.random_faults_lost_steps", 0), ("launch.random_faults_orphans", 0),
                            ("launch.random_faults_false_restarts", 1)):
            self.assertAlmostEqual(goals.pop(name)["measured"], value, msg=name)
        self.assertEqual(goals, {})

    def test_a_hang_is_named_in_time_if_its_limit_was_not_passed_and_the_rank_is_the_right_one(self):
        found = results()
        self.assertEqual({goal["name"]: goal["verdict"] for goal in report.judged(launch.all_goals(
            {"hang": found["hang"]}))}, {"launch.hang_seen_s": "short", "launch.hang_right_rank": "ok"})
        found["hang"][0]["rounds"][1]["dtrain"].update(limit_s=2.0, right_rank=False)
        found["hang"][0]["rounds"][2]["dtrain"]["limit_s"] = 2.0
        self.assertEqual({goal["name"]: goal["verdict"] for goal in report.judged(launch.all_goals(
            {"hang": found["hang"]}))}, {"launch.hang_seen_s": "ok", "launch.hang_right_rank": "short"})

    def test_parts_that_were_not_measured_have_no_goals(self):
        self.assertEqual([goal[0] for goal in launch.all_goals({"help": results()["help"]})], ["launch.help_s"])

    def test_the_page_shows_each_way_beside_its_goals(self):
        found = {**results(), "goals": report.judged(launch.all_goals(results()))}
        lines = page_tables.TABLES["launch"]({"a/launch.json": found})
        for line in ("| ms | dtrain | dtrain with `--no-reuse` | torchrun | torchrun without CUDA's libraries "
                     "| torchft | goals | |",
                     "| 2 ranks: to the first forward | 500 | | 5,000 | 5,000 | | 0.5 (at most 0.5); "
                     "0.1 (at most 0.125) | ok; ok |",
                     "| SIGKILL of rank 1, until the next step has ended | 300 | 700 | 6,000 | | 3,000 | "
                     "0.29 (at most 0.3) | ok |",
                     "| SIGKILL of rank 1, until the first new step has ended | 500 | 900 | | | | | |",
                     "| SIGSTOP of rank 1, until the next step has ended | 1,900 | | 38,000; over 20,000 in 1 of 3 "
                     "| | | | |",
                     "| loss of a host, with a spare, until the next step has ended | 1,500 | | | | over 120,000 "
                     "| 1.5 (at most 2) | ok |",
                     "| 2,048 simulated ranks are ready | 500 | | | | | 0.5 (at most 1) | ok |"):
            self.assertIn(line, lines)
        rows = 2 + 6 + 2 + 4 + 1 + 1
        self.assertEqual({line.count("|") for line in lines[:rows]}, {8 + 1}, "each row has all columns")
        self.assertEqual(lines[rows:][-2:], ["- torchrun: 5 s.", "- SIGSTOP of rank 1: torchrun sees no hang; torchft "
                                             "goes on."])

    def test_results_that_do_not_say_how_the_peers_got_over_a_fault_have_the_table_alone(self):
        found = {**results(), "goals": []}
        del found["hang"][0]["peers"]
        self.assertTrue(all(line.startswith("|") for line in page_tables.TABLES["launch"]({"a/launch.json": found})))

    def test_every_goal_is_in_a_row_of_the_page_of_all_goals(self):
        found = {**results(), "bench": "launch", "marks": [], "goals": report.judged(launch.all_goals(results()))}
        groups = [group for group in page_goals.GROUPS if group.bench == "launch"]
        shown = [goal["name"] for group in groups for goal in group.found(found)]
        self.assertEqual(sorted(shown), sorted(goal["name"] for goal in found["goals"]))

    def test_every_way_that_is_measured_has_a_column(self):
        with open(f"{SOURCE}/bench/launch.py", encoding="utf-8") as file:
            measured = set(re.findall(r'"((?:dtrain|torch)[a-z]*(?:-cpu| --no-reuse)?)"', file.read()))
        self.assertEqual(measured, set(launch.WAYS))


class Faults(unittest.TestCase):
    def test_a_step_that_was_nearly_done_when_the_rank_died_is_not_the_next_one(self):
        steps = [(1.0, 50), (1.1, 51), (1.21, 52), (3.0, 51), (3.1, 52), (3.2, 53)]
        found = faults.after_kill(1.2, 1.25, steps)
        for key, value in (("seen_s", 0.05), ("next_step_s", 1.8), ("new_step_s", 2.0)):
            self.assertAlmostEqual(found[key], value)
        self.assertIsNone(faults.after_kill(1.2, 1.25, steps[:-1]), "no step is new yet")

    def test_the_step_behind_a_hang_is_the_first_of_the_next_start(self):
        lines = [{"kind": "step", "ts": 9.9}, {"kind": "step", "ts": 11.1},  # The one that was under way.
                 {"kind": "event", "restored": 50, "ts": 11.5}, {"kind": "step", "ts": 11.75}]
        hang = {"event": "hang", "ts": 11.0, "limit_s": 1.0, "ranks": [1]}
        found = faults.after_hang(10.0, [{"event": "start", "ts": 1.0}, hang], lines)
        self.assertEqual(found, {"seen_s": 1.0, "next_step_s": 1.75, "limit_s": 1.0, "right_rank": True})
        self.assertFalse(faults.after_hang(10.0, [{**hang, "ranks": [0]}], lines)["right_rank"])

    def test_each_peer_says_its_limits_and_its_way_over_each_fault(self):
        for peer, text in peer_faults.LIMITS.items():
            self.assertIn(f"fail after {peer_faults.COLLECTIVE_S} s", text, peer)
        for fault, notes in peer_faults.NOTES.items():
            self.assertEqual(set(notes), set(peer_faults.LIMITS), fault)

    def test_a_peers_next_step_is_the_first_that_began_after_the_fault(self):
        def step(ts, seconds, ranks):
            return json.dumps({"kind": "step", "ts": ts, "step": 1, "seconds": seconds, "ranks": ranks}) + "\n"

        with tempfile.TemporaryDirectory() as folder:
            steps = peer_faults.Steps(f"{folder}/facts")
            self.assertEqual(steps.new(), [], "the twin has not begun")
            with open(f"{folder}/facts", "a", encoding="utf-8", buffering=1) as file:
                file.write('{"kind": "first_forward"}\n' + step(10.0, 0.5, 1) + step(10.5, 0.5, 2) + step(11, 1, 2)[:9])
                file.flush()
                self.assertEqual(steps.taken_by(ranks=2), [(10.5, 1)], "one rank was alone; half a line does not count")
                file.write(step(11, 1, 2)[9:])
                self.assertIsNone(steps.begun_after(10.2), "it was under way")
                file.write(step(15.0, 4.0, 1) + step(15.5, 0.25, 1))
                self.assertEqual(steps.begun_after(10.2), 15.0)
                self.assertEqual(steps.new(), [], "each is looked at once")

    def test_a_host_is_connected_to_a_port_when_the_connection_stands(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self.assertFalse(fault_cluster.is_connected(os.getpid(), port))
            with socket.create_connection(("127.0.0.1", port)):
                self.assertTrue(fault_cluster.is_connected(os.getpid(), port))
        self.assertFalse(fault_cluster.is_connected(2**31 - 1, port), "there is no such process")

    def test_a_job_is_ended_with_all_that_it_has_started(self):
        command = ["sh", "-c", "sh -c 'sleep 600 & sleep 600' & wait"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        faults.first_within(lambda: True if len(descendants(process.pid)) == 3 else None, 30)
        found = descendants(process.pid)
        self.assertEqual(len(found), 3)
        faults.end_job(process)
        with process.stdout:
            self.assertEqual(process.stdout.read(), b"", "nothing holds the pipe")
        faults.end_job(process)  # It has ended.

    def test_a_killed_rank_is_found_and_the_run_ends(self):
        def steps_of():
            with open(path, encoding="utf-8") as file:
                return [(float(moment), int(step)) for moment, step in
                        (line.split() for line in file if line.endswith("\n"))]

        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/steps"
            open(path, "w", encoding="utf-8").close()
            found = faults.kill_a_rank([sys.executable, "-c", FAKE_LAUNCHER, path], None,
                                       lambda command: "fake-rank" in command, steps_of)
            steps = [step for _, step in steps_of()]
        self.assertGreaterEqual(max(steps), faults.KILL_AT_STEP + 4)
        self.assertGreater(found["seen_s"], 0)
        self.assertGreaterEqual(found["next_step_s"], 0.05)  # The fake launcher waits for so long.
        self.assertGreaterEqual(found["new_step_s"], found["next_step_s"])

    def test_a_loss_that_differs_after_the_fault_ends_the_benchmark(self):
        right = {1: 2.0, 2: 1.5, 3: 1.25}
        for taken, good in (([(1, 2.0), (2, 1.5), (2, 1.5), (3, 1.25)], True), ([(1, 2.0), (2, 1.5)], False),
                            ([(1, 2.0), (2, 1.5), (2, 1.6), (3, 1.25)], False)):
            with mock.patch.object(faults, "losses_of", lambda _, taken=taken: taken):
                if good:
                    faults.check_losses("run", right)
                else:
                    self.assertRaises(SystemExit, faults.check_losses, "run", right)


class Program(unittest.TestCase):
    def test_a_part_is_measured_anew_and_the_others_stay(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/dtrain", "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\necho usage\n")
            os.chmod(f"{folder}/dtrain", 0o755)
            before = {**results(), "bench": "launch", "cpu": provenance.cpu_name(), "cores": os.cpu_count()}
            report.write_json(f"{folder}/launch.json", before)
            said = subprocess.run([sys.executable, f"{SOURCE}/bench/launch.py", "--bin", folder, "--parts", "help",
                                   "--json", f"{folder}/launch.json"], capture_output=True, text=True, check=True,
                                  timeout=60).stdout
            with open(f"{folder}/launch.json", encoding="utf-8") as file:
                after = json.load(file)
        self.assertEqual({part: after[part] for part in launch.PARTS if part != "help"},
                         {part: before[part] for part in launch.PARTS if part != "help"})
        [row] = after["help"]
        self.assertEqual(len(row["rounds"]), launch.HELP_RUNS)
        self.assertEqual(row["command"], "./dev bench launch --parts help")
        self.assertRegex(said, r"(?m)^goal launch\.help_s measured \S+ target <= 0\.02 ")
        self.assertEqual([goal["name"] for goal in after["goals"]],
                         [goal["name"] for goal in report.judged(launch.all_goals(after))])


@unittest.skipIf(WHY_NOT, f"LOUD SKIP: no hosts with sshd here: {WHY_NOT}")
class Hosts(unittest.TestCase):
    def test_a_command_goes_to_each_host_over_ssh_with_its_words_and_variables(self):
        script = 'echo "$SSH_CONNECTION" "$PWD" "$WORD" "$1"'
        with links.Link() as link, ssh_hosts.SshHosts(link) as hosts:
            for address, name in zip(links.ADDRESSES, ssh_hosts.NAMES):
                command = hosts.over_ssh(name, ["sh", "-c", script, "sh", "it's $(true)"], {"WORD": "a b"})
                said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
                self.assertRegex(said, rf"^10\.77\.0\.1 \d+ {address} 2222 {os.getcwd()} a b it's \$\(true\)\n$")
        self.assertEqual([server.returncode for server in hosts.servers if server.returncode is None], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
