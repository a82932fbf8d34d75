"""./dev bench checkpoint: what it makes of measured times, and its looks at disks and processes."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/checkpoints"]

import checkpoint  # noqa: E402
import checkpoint_disk  # noqa: E402
import checkpoint_memory  # noqa: E402
import checkpoint_ours as ours  # noqa: E402
import report  # noqa: E402


def way(step_s, *saves, skipped=0):
    return {"step_s": step_s, "compute_s": 0.1, "skipped": skipped,
            "saves": [{"step": 10 * i, "blocked_s": b, "durable_s": d, "bytes": 2 * 10**8}
                      for i, (b, d) in enumerate(saves, 1)]}


def turn(step_of_none=1.0, copy_s=0.01):
    restored = {"restore_s": 0.2, "growth_bytes": 21 * 10**7, "of_read": 1.25}
    return {"dtrain": way(0.1), "dtrain-sync": way(0.12, (0.2, 0.2), (0.4, 0.4), (0.2, 0.2)),
            "dtrain-async": way(0.1 * step_of_none, (0.001, 0.5), (0.0002, 0.5), (0.0002, 0.5), skipped=1),
            "dtrain-journal": {**way(0.1005), "journal": {"bytes": 1e7, "bytes_per_parameter": 2.05,
                                                          "blocked_s": 0.0001, "write_s": 0.03}},
            "ddp": {"step_s": 0.2},
            "dcp-async": {"step_s": 0.22, "saves": [{"step": 10, "blocked_s": 0.01, "done_s": 1.0}],
                          "bytes": 10**8, "durable_s": 0.5, "restore_s": 0.4, "growth_bytes": 10**8},
            "restores": {"bytes": 2 * 10**8, "restore": restored, "plain": {"restore_s": 0.1, "growth_bytes": 0},
                         "reshard": {"restore_s": 0.11, "growth_bytes": 0}},
            "direct": {"write_bytes_per_s": 1.25e9, "read_bytes_per_s": 8e8}, "copy_s": copy_s}


class Goals(unittest.TestCase):
    def judged(self, turns):
        goals = checkpoint.goals_of("5M", checkpoint.summary(turns))
        return {goal["name"].removeprefix("checkpoint.5M."): goal for goal in report.judged(goals)}

    def test_each_ratio_is_of_medians_of_one_turn(self):
        goals = self.judged([turn()])
        for name, value in (("async_blocked_ms_per_gb", 1.0), ("async_blocked_of_dcp_async", 0.02),
                            ("dtrain-async_step_of_none", 1.0), ("write_of_direct", 0.8),
                            ("restore_of_direct", 1.25), ("restore_peak_over_state_mb", 10.0),
                            ("reshard_of_restore", 1.1)):
            self.assertAlmostEqual(goals[name]["measured"], value, msg=name)
        verdicts = {name: goal["verdict"] for name, goal in goals.items()}
        self.assertEqual(verdicts["write_of_direct"], "short")
        self.assertEqual(verdicts["restore_of_direct"], "no bound")
        self.assertEqual(verdicts["async_blocked_ms_per_gb"], "ok")

    def test_the_median_turn_counts(self):
        goals = self.judged([turn(1.05), turn(1.0), turn(1.02)])
        self.assertAlmostEqual(goals["dtrain-async_step_of_none"]["measured"], 1.02)
        self.assertEqual(goals["dtrain-async_step_of_none"]["verdict"], "short")

    def test_a_copy_that_is_longer_than_forward_and_backward_bounds_nothing(self):
        self.assertEqual(self.judged([turn(copy_s=0.2)])["async_blocked_ms_per_gb"]["verdict"], "no bound")

    def test_a_journal_costs_a_step_little_and_two_bytes_a_parameter(self):
        goals = self.judged([turn()])
        self.assertAlmostEqual(goals["dtrain-journal_step_of_none"]["measured"], 1.005)
        self.assertEqual(goals["journal_bytes_per_parameter"]["verdict"], "ok")
        heavy = turn()
        heavy["dtrain-journal"]["journal"]["bytes_per_parameter"] = 2.2
        self.assertEqual(self.judged([heavy])["journal_bytes_per_parameter"]["verdict"], "short")

    def test_a_journal_that_the_disk_cannot_take_bounds_no_step(self):
        slow = turn()
        slow["direct"]["write_bytes_per_s"] = 1.2e8  # 1e7 bytes in steps of 0.1 s are five sixths of it.
        self.assertEqual(self.judged([slow])["dtrain-journal_step_of_none"]["verdict"], "no bound")

    def test_a_run_without_peers_has_the_other_goals(self):
        alone = turn()
        del alone["dcp-async"], alone["ddp"]
        goals = self.judged([alone])
        self.assertNotIn("async_blocked_of_dcp_async", goals)
        self.assertIn("reshard_of_restore", goals)

    def test_every_way_has_a_row(self):
        rows = {row["way"]: row for row in checkpoint.summary([turn()])["ways"]}
        self.assertEqual(list(rows), ["dtrain", "dtrain-sync", "dtrain-async", "dtrain-journal", "ddp", "dcp-async"])
        self.assertAlmostEqual(rows["dtrain-journal"]["blocked_ms"], 0.1)
        self.assertEqual(rows["dtrain-async"]["skipped"], 1)
        self.assertAlmostEqual(rows["dcp-async"]["step_of_none"]["median"], 1.1)
        self.assertNotIn("blocked_ms", rows["ddp"])


class Records(unittest.TestCase):
    def test_a_period_is_the_steps_from_one_save_to_the_next(self):
        ends = {step: float(step) for step in range(1, 31)}
        ends.update({step: ends[step] + 5 for step in range(21, 31)})  # 15 s, with a save.
        self.assertEqual(ours.periods_of(ends), [10.0, 15.0])

    def test_a_save_is_as_slow_as_its_slowest_rank_and_the_one_at_the_end_is_left_out(self):
        def record(step, blocked, **more):
            return {"kind": "ckpt", "step": step, "durable": True, **more,
                    "m": {"time/checkpoint_s": blocked, "ckpt/seconds": 1.0, "ckpt/bytes": 7}}

        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(f"{folder}/metrics")
            for rank, blocked in ((0, 0.1), (1, 0.3)):
                lines = [{"kind": "ckpt", "step": 0, "restored": 0}, record(10, blocked),
                         {"kind": "ckpt", "step": 20, "skipped": True, "m": {}}, record(30, 9.0)]
                with open(f"{folder}/metrics/rank-{rank}.jsonl", "w", encoding="utf-8") as file:
                    file.writelines(json.dumps(line) + "\n" for line in lines)
            saves, skipped = ours.saves_of(folder, 2)
        self.assertEqual([(save["step"], save["blocked_s"]) for save in saves], [(10, 0.3)])
        self.assertEqual(skipped, 1)


class Restores(unittest.TestCase):
    def test_a_restore_is_compared_with_the_reads_beside_it_and_the_median_round_counts(self):
        # The disk is slow in the second round, for the read and for the restore alike.
        rounds = [{"restore_s": 0.5, "growth_bytes": 7, "read_s": 0.4},
                  {"restore_s": 2.0, "growth_bytes": 9, "read_s": 1.8},
                  {"restore_s": 0.4, "growth_bytes": 8, "read_s": 0.4}]
        found = ours.summed_up(rounds)
        self.assertAlmostEqual(found["restore_s"], 0.5)
        self.assertEqual(found["growth_bytes"], 8)
        self.assertAlmostEqual(found["of_read"], 0.9)

    def test_rounds_take_turns_and_each_restore_stands_between_two_reads_of_its_files(self):
        calls = []
        seconds = iter([9, 9, 1, 3, 5, 7, 2, 2, 4, 4])

        def read(folder, readers):
            calls.append(("read", folder, readers))
            return next(seconds)

        def restore(_args, sets, run_dir, ranks):
            calls.append(("restore", sets, run_dir, ranks))
            return {"restore_s": 2.0, "growth_bytes": 1}

        cases = {"plain": (("a",), "x/3", 3), "reshard": (("b",), "x/4", 3)}
        with mock.patch.object(ours, "read_s", read), mock.patch.object(ours, "restore", restore):
            found = ours.restore_rounds(argparse.Namespace(restores=2), cases)
        plain = [("read", "x/3/checkpoints", 3), ("restore", ("a",), "x/3", 3), ("read", "x/3/checkpoints", 3)]
        reshard = [("read", "x/4/checkpoints", 3), ("restore", ("b",), "x/4", 3), ("read", "x/4/checkpoints", 3)]
        self.assertEqual(calls, [plain[0], reshard[0], *plain, *reshard, *reshard, *plain])
        self.assertEqual([one["read_s"] for one in found["plain"]["rounds"]], [2, 4])
        self.assertAlmostEqual(found["plain"]["of_read"], 1.5)


class Journals(unittest.TestCase):
    def write(self, folder, *lines):
        os.makedirs(f"{folder}/metrics", exist_ok=True)
        os.makedirs(f"{folder}/checkpoints/step-000000000004.e1", exist_ok=True)
        with open(f"{folder}/checkpoints/step-000000000004.e1/MANIFEST.json", "w", encoding="utf-8") as file:
            json.dump({"engine": {"total_elements": 1000}}, file)
        for rank in (0, 1):
            with open(f"{folder}/metrics/rank-{rank}.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps({"kind": "event", "step": 1, **line}) + "\n" for line in lines)

    def test_a_journal_is_as_slow_as_its_slowest_rank_and_as_large_as_all(self):
        part = {"name": "journal", "steps": 2,
                "m": {"journal/bytes": 2000, "journal/seconds": 0.1, "time/journal_s": 0.002}}
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, part, part)
            self.assertEqual(ours.journal_of(folder, 2), {"bytes": 2000, "bytes_per_parameter": 2.0,
                                                          "blocked_s": 0.001, "write_s": 0.05})

    def test_one_that_has_switched_itself_off_is_no_measure(self):
        with tempfile.TemporaryDirectory() as folder:
            self.write(folder, {"name": "journal_off", "why": "the disk is slow", "m": {}})
            with self.assertRaisesRegex(SystemExit, "the disk is slow"):
                ours.journal_of(folder, 2)


class Looks(unittest.TestCase):
    def test_the_first_look_into_a_folder_is_noted(self):
        with tempfile.TemporaryDirectory() as folder:
            unseen = checkpoint_disk.FirstLook(folder)
            unseen.start()
            self.assertIsNone(unseen.end())
            called = []
            look = checkpoint_disk.FirstLook(folder, lambda: called.append(1))
            look.start()
            os.listdir(folder)
            look.join()
            self.assertIsNotNone(look.end())
        self.assertEqual(called, [1])

    def test_both_probes_move_the_bytes(self):
        # On the disk of the source: a temporary folder may be in memory, which has no O_DIRECT.
        os.makedirs(f"{SOURCE}/build", exist_ok=True)
        probes = [checkpoint_disk._threads] + ([checkpoint_disk._fio] if checkpoint_disk.shutil.which("fio") else [])
        for probe in probes:
            with tempfile.TemporaryDirectory(dir=f"{SOURCE}/build") as folder:
                for what in ("write", "read"):
                    self.assertGreater(probe(folder, what, 2, 2), 1e5, probe)
                self.assertEqual(checkpoint_disk.bytes_of(folder), 4 * checkpoint_disk.BLOCK_BYTES)

    def test_a_read_takes_every_byte_around_the_cache(self):
        with tempfile.TemporaryDirectory(dir=f"{SOURCE}/build") as folder:
            os.makedirs(f"{folder}/sub")
            for name, size in (("sub/large", 2 * checkpoint_disk.BLOCK_BYTES + 777), ("small", 5), ("empty", 0)):
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(os.urandom(size))
            checkpoint_disk.drop_cache(folder)
            with mock.patch.object(os, "preadv", wraps=os.preadv) as reads:
                self.assertGreater(checkpoint_disk.read_s(folder, 2), 0)
            self.assertEqual(sorted(call.args[2] for call in reads.call_args_list),
                             [0, 0, checkpoint_disk.BLOCK_BYTES, 2 * checkpoint_disk.BLOCK_BYTES])

    def test_a_peak_counts_from_the_moment_on_which_it_was_forgotten(self):
        script = ("import sys\nb = bytearray(60 << 20)\nb[::4096] = b'x' * len(b[::4096])\ndel b\n"
                  "print('ready', flush=True)\nsys.stdin.readline()\n"
                  "c = bytearray(30 << 20)\nc[::4096] = b'x' * len(c[::4096])\n"
                  "print('grown', flush=True)\nsys.stdin.readline()\n")
        with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as process:
            self.assertEqual(process.stdout.readline(), "ready\n")
            self.assertGreater(checkpoint_memory.memory_of(process.pid)["VmHWM"], 60 << 20)
            before = checkpoint_memory.forget_peak(process.pid)
            process.stdin.write("\n")
            process.stdin.flush()
            self.assertEqual(process.stdout.readline(), "grown\n")
            growth = checkpoint_memory.memory_of(process.pid)["VmHWM"] - before
            process.stdin.write("\n")
        self.assertGreater(growth, 29 << 20)
        self.assertLess(growth, 40 << 20)
        self.assertEqual(checkpoint_memory.memory_of(process.pid), {})


if __name__ == "__main__":
    unittest.main(verbosity=2)
