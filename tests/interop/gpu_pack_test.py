"""The pack of ./dev gpu: small, complete, and honest where there is no GPU."""
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BUILD"]
sys.path.insert(0, f"{SOURCE}/bench/gpu")

import pack  # noqa: E402
import run  # noqa: E402
import summary  # noqa: E402


def has_gpu():
    return run.no_gpu_here() is None


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = f"{cls.folder.name}/gpu-pack"
        cls.done = subprocess.run([sys.executable, f"{SOURCE}/bench/gpu/pack.py", "--build", BUILD,
                                   "--out", cls.out], capture_output=True, text=True, check=False)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)

    def programs(self):
        return [f"{self.out}/{where}/{name}" for where in ("bin", "tests")
                for name in os.listdir(f"{self.out}/{where}")]

    def test_it_is_below_64_mb_and_says_its_size(self):
        self.assertLess(pack.folder_bytes(self.out), 64_000_000)
        self.assertIn(" MB,", self.done.stdout)

    def test_it_has_the_tests_the_benchmarks_and_the_plugin(self):
        names = {os.path.basename(path) for path in self.programs()}
        self.assertLessEqual({"dtrain", "dtrain-bench-mfu", "dtrain-bench-kernels-cuda",
                              "dtrain-bench-comm", "kernels_cuda_test", "nccl_gpu_test", "cuda_plugin_test"}, names)
        for name in pack.PLUGINS:
            self.assertTrue(os.path.exists(f"{self.out}/lib/{name}"), name)
        with open(f"{self.out}/pack.json", encoding="utf-8") as file:
            listed = json.load(file)
        for test in listed["tests"]:
            self.assertTrue(os.access(f"{self.out}/{test['program']}", os.X_OK), test)

    def test_no_library_is_missing_but_torchs_and_cudas(self):
        # As on a machine that has none of this one's packages: only the pack's folder is searched.
        for path in self.programs():
            for name, where in pack.libraries(path).items():
                if pack.OF_THE_SYSTEM.match(name) or pack.OF_TORCH_OR_CUDA.match(name):
                    continue
                in_torch = where and where.startswith(os.path.realpath(pack.torch_folder(BUILD)))
                self.assertTrue(in_torch or os.path.exists(f"{self.out}/lib/{name}"),
                                f"{path} needs {name}")

    def test_everything_is_stripped(self):
        for path in self.programs():
            sections = subprocess.run(["readelf", "-S", path], capture_output=True, text=True,
                                      check=True).stdout
            self.assertNotIn(".debug_info", sections, path)

    def test_programs_start_from_the_pack(self):
        environment = {**os.environ, "LD_LIBRARY_PATH":
                       f"{pack.torch_folder(BUILD)}:{self.out}/lib"}
        for name in pack.PROGRAMS:
            done = subprocess.run([f"{self.out}/bin/{name}", "--help"], env=environment, check=False,
                                  capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, f"{name}: {done.stderr}")

    @unittest.skipIf(has_gpu(), "this machine has a GPU")
    def test_without_a_gpu_it_says_so_in_one_line_and_ends_with_64(self):
        done = subprocess.run([f"{self.out}/run"], capture_output=True, text=True, check=False,
                              env={**os.environ, "DTRAIN_PYTHON": sys.executable}, timeout=120)
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("not yet measured on a GPU", done.stderr)

    @unittest.skipIf(has_gpu(), "this machine has a GPU")
    def test_benchmarks_of_the_gpu_end_with_64_and_the_reason(self):
        environment = {**os.environ, "LD_LIBRARY_PATH":
                       f"{pack.torch_folder(BUILD)}:{self.out}/lib"}
        for command in (["dtrain-bench-kernels-cuda"], ["dtrain-bench-mfu", "--device", "cuda"],
                        ["dtrain-bench-comm", "--backend", "nccl"],
                        ["dtrain-bench-comm", "--backend", "staged"]):
            done = subprocess.run([f"{self.out}/bin/{command[0]}", *command[1:]], env=environment,
                                  capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual(done.returncode, 64, f"{command}: {done.stderr}")
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    @unittest.skipIf(has_gpu(), "this machine has a GPU")
    def test_a_gpu_that_cuda_cannot_use_fails_the_run_and_is_said_in_its_summary(self):
        fake = f"{self.folder.name}/fake"
        os.makedirs(fake)
        with open(f"{fake}/nvidia-smi", "w", encoding="utf-8") as file:
            file.write('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: A" || echo "A, 1.2, 3 MiB"\n')
        os.chmod(f"{fake}/nvidia-smi", 0o755)
        results = f"{self.folder.name}/results"
        done = subprocess.run([f"{self.out}/run", "--results", results, "--parts", "tests", "kernels"],
                              capture_output=True, text=True, check=False, timeout=200,
                              env={**os.environ, "PATH": f"{fake}:{os.environ['PATH']}",
                                   "DTRAIN_PYTHON": sys.executable,
                                   "DTRAIN_TORCH": os.path.dirname(pack.torch_folder(BUILD))})
        self.assertEqual(done.returncode, 1, done.stderr)
        with open(f"{results}/a/SUMMARY.md", encoding="utf-8") as file:
            text = file.read()
        self.assertIn("Kernels: exit 64", text)
        self.assertIn("kernels_cuda_test | skipped", text)
        self.assertIn(f"mfu: {summary.NOT_YET}", text)


class Summary(unittest.TestCase):
    FACTS = {"gpu": "A GPU", "driver": "1", "memory": "80 GB"}

    def write(self, folder, part, results):
        with open(f"{folder}/{part}.json", "w", encoding="utf-8") as file:
            json.dump({**self.FACTS, "part": part, "results": results}, file)

    def test_without_results_every_figure_is_not_yet_measured(self):
        with tempfile.TemporaryDirectory() as results:
            self.assertIn(summary.NOT_YET, summary.overview(results))
            self.assertIsNone(summary.page(results))

    def test_the_committed_overview_is_what_the_results_say(self):
        with open(f"{SOURCE}/bench/results/GPU.md", encoding="utf-8") as file:
            self.assertEqual(file.read(), summary.overview(f"{SOURCE}/bench/results"))

    def test_a_page_shows_peers_as_ratios_and_says_what_is_missing(self):
        with tempfile.TemporaryDirectory() as results:
            folder = f"{results}/a-gpu"
            os.mkdir(folder)
            self.write(folder, "tests", [{"name": "t", "state": "passed", "s": 1.0}])
            self.write(folder, "kernels", {"elements": 8, "results": [
                {"name": "op", "us": 10.0, "gb_per_s": 100.0, "copy_fraction": 0.5, "ok": False}]})
            self.write(folder, "kernel_peers", {"peers": {"torch": "2"}, "results": [
                {"name": "op", "way": "eager", "us": 25.0},
                {"name": "op", "way": "liger", "missing": "ImportError"}]})
            text = summary.write_summary(folder)
            self.assertIn("| op | 10.0 | 100 | 50.0 | short | 2.50 | - |", text)
            self.assertIn("1 passed", text)
            self.assertIn(f"mfu: {summary.NOT_YET}", text)
            self.assertIn("a-gpu/SUMMARY.md", summary.overview(results))

    def test_collectives_of_the_largest_size_stand_beside_what_limits_them(self):
        time = {"time_us": 9.6, "algbw_gb_s": 5.0, "busbw_gb_s": 7.5, "of_limit": 0.75}
        row = {"collective": "all_reduce", "limit": "one link", "out_of_place": time, "in_place": time}
        lines = "\n".join(summary.comm_lines(
            [{"backend": "nccl", "ranks": 4, "rows": [{**row, "size": 8}, {**row, "size": 16}]},
             {"backend": "staged", "ranks": 2, "error": "exit 64"}]))
        self.assertIn("| all_reduce, nccl, 4 ranks | 16 | 10 | 5.0 | 7.5 | 75 of one link |", lines)
        self.assertIn("| staged, 2 ranks | exit 64 |", lines)
        self.assertNotIn("| 8 |", lines)

    def test_fp8_is_a_line_of_its_own_beside_its_ratio_to_bf16(self):
        run = {"model": "m", "mfu_strict": 0.5, "mfu_palm": 0.6, "gemm_fraction": 0.7}
        lines = "\n".join(summary.mfu_lines(
            [{**run, "model": "other", "dtype": "bf16", "tokens_per_s": 1.0},
             {**run, "dtype": "bf16", "tokens_per_s": 100.0},
             {**run, "dtype": "fp8", "tokens_per_s": 140.0}],
            [{"model": "m", "way": "eager", "tokens_per_s": 50.0}]))
        self.assertIn("FP8 over bf16, tokens/s: 1.40", lines)
        self.assertIn("| m, fp8 | 140 | 50.0 | 60.0 | 70.0 | 2.80 | - |", lines)

    def test_a_run_that_was_cut_off_is_named(self):
        lines = summary.mfu_lines([{"model": "m", "error": "cut off"}], [])
        self.assertIn("| m | cut off |", "\n".join(lines))


class Shares(unittest.TestCase):
    def test_a_part_that_is_cut_off_takes_nothing_from_the_next(self):
        budget = run.Budget(4, (("a", 0.5), ("b", 0.5)))
        budget.begin("a")
        done = run.run_command(["sh", "-c", "sleep 60 & wait"], budget.left())
        self.assertIsNone(done["code"])
        self.assertLess(done["s"], 3)  # Though the inner sleep holds the pipe.
        budget.begin("b")
        self.assertGreater(budget.left(), 1)
        self.assertLessEqual(budget.left(), 2)

    def test_what_a_part_leaves_goes_to_the_next(self):
        budget = run.Budget(40, (("a", 0.5), ("b", 0.5)))
        budget.begin("a")
        self.assertEqual(run.run_command(["sleep", "0"], budget.left())["code"], 0)
        budget.begin("b")
        self.assertGreater(budget.left(), 25)
        self.assertEqual(run.run_command(["sleep", "9"], 0.5)["output"], "no time left")

    def test_the_shares_are_the_whole_and_trainings_fit_theirs(self):
        shares = dict(run.SHARES)
        self.assertAlmostEqual(sum(shares.values()), 1)
        first = run.TRAININGS[:2]  # What is asked for on every card; others take what is left.
        self.assertLess(sum(training.limit_s for training in first), shares["mfu"] * run.BUDGET_S)
        for training in run.TRAININGS:
            self.assertEqual(training.micro_batch * training.accumulation * run.SEQUENCE, 524288)

    def test_trainings_and_their_peer_are_presets_of_the_program(self):
        said = subprocess.run([f"{BUILD}/bin/dtrain-bench-mfu", "--preset", "none"], check=False,
                              capture_output=True, text=True).stderr
        presets = re.search("there are: ([^;]*);", said)[1].split(", ")
        for training in run.TRAININGS:
            self.assertIn(training.model, presets)
        self.assertIn(run.PEER_MODEL, presets)
        self.assertEqual(len({training.name for training in run.TRAININGS}), len(run.TRAININGS))

    def test_what_does_not_fit_the_card_is_named(self):
        small = run.Run.__new__(run.Run)
        small.facts = {"memory": "81559 MiB"}
        self.assertIsNone(small.too_small(72))
        self.assertEqual(small.too_small(130)["skipped"],
                         "it needs about 130 GB of memory, this GPU has 86")
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            run.print_skipped({"mfu": [{"model": "m", "dtype": "bf16", **small.too_small(130)}]})
        self.assertIn("mfu of m in bf16: it needs about 130 GB", out.getvalue())

    def test_goals_are_those_that_were_measured(self):
        measured = {"mfu_strict": 0.61, "tokens_per_s": 100.0}
        goals = run.goals_of({
            "kernels": {"results": [{"name": "rope_bf16", "copy_fraction": 0.96, "goal": 0.95}]},
            "mfu": [{"model": "qwen2.5-3b", "dtype": "bf16", **measured},
                    {"model": "qwen2.5-3b", "dtype": "fp8", **measured, "tokens_per_s": 140.0},
                    {"model": "qwen2.5-7b", "dtype": "bf16", "skipped": "too big"}]})
        self.assertEqual(goals, [("kernels.rope_bf16.copy_fraction", 0.96, ">=", 0.95),
                                 ("mfu.qwen2.5-3b", 61.0, ">=", 60),
                                 ("fp8.qwen2.5-3b.over_bf16", 1.4, ">=", 1.35)])


class Classes(unittest.TestCase):
    def test_what_is_carried_is_neither_the_systems_nor_torchs(self):
        for name in ("libc.so.6", "ld-linux-x86-64.so.2", "libm.so.6"):
            self.assertRegex(name, pack.OF_THE_SYSTEM)
        for name in ("libtorch_cpu.so", "libc10.so", "libcudart.so.13", "libgomp.so.1"):
            self.assertRegex(name, pack.OF_TORCH_OR_CUDA)
        for name in ("libabsl_strings.so.20220623", "libssl.so.3", "libstdc++.so.6", "libcrypto.so.3"):
            self.assertNotRegex(name, pack.OF_THE_SYSTEM)
            self.assertNotRegex(name, pack.OF_TORCH_OR_CUDA)

    def test_a_program_that_asks_for_a_newer_glibc_is_known_before_it_runs(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"\0GLIBC_2.2.5\0GLIBC_2.38\0GLIBC_2.4\0")
            file.flush()
            self.assertEqual(run.newest_glibc(file.name), (2, 38))


if __name__ == "__main__":
    unittest.main(verbosity=2)
