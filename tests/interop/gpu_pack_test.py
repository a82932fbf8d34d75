"""The pack of ./dev gpu: small, complete, and with clear errors if there is no GPU."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE, BUILD = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BUILD"]
sys.path.insert(0, f"{SOURCE}/bench/gpu")

import machine  # noqa: E402
import pack  # noqa: E402
import programs  # noqa: E402
import summary  # noqa: E402
import torch_release  # noqa: E402
from torch_release import TorchRelease  # noqa: E402

sys.path.insert(0, f"{SOURCE}/tests/testing")

from gpu_fakes import fake_nvidia_smi, write_program  # noqa: E402


def has_gpu():
    return machine.no_gpu_here() is None


class Pack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.out = f"{cls.folder.name}/gpu-pack"
        cls.done = subprocess.run([sys.executable, f"{SOURCE}/bench/gpu/pack.py", "--build", BUILD,
                                   "--out", cls.out], capture_output=True, text=True, check=False)
        cls.bytes = pack.folder_bytes(cls.out) if cls.done.returncode == 0 else 0
        programs.unpack(cls.out)  # On a machine with a GPU `run` unpacks it.

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.assertEqual(self.done.returncode, 0, self.done.stderr)

    def programs(self):
        return [f"{self.out}/{where}/{name}" for where in programs.FOLDERS
                for name in os.listdir(f"{self.out}/{where}") if not name.endswith(programs.SUFFIX)]

    def test_it_is_below_64_mb_and_says_its_size(self):
        self.assertLess(self.bytes, 64_000_000)
        self.assertIn(" MB,", self.done.stdout)

    def test_it_has_the_tests_the_benchmarks_and_the_plugin(self):
        names = {os.path.basename(path) for path in self.programs()}
        self.assertLessEqual({"dtrain", "dtrain-bench-mfu", "dtrain-bench-kernels-cuda",
                              "dtrain-bench-comm", "dtrain-gpt", "dtrain-plan", "kernels_cuda_test",
                              "nccl_gpu_test", "cuda_plugin_test"}, names)
        for name in pack.PLUGINS:
            self.assertTrue(os.path.exists(f"{self.out}/lib/{name}"), name)
        with open(f"{self.out}/pack.json", encoding="utf-8") as file:
            listed = json.load(file)
        for test in listed["tests"]:
            self.assertTrue(os.access(f"{self.out}/{test['program']}", os.X_OK), test)

    def test_no_library_is_missing_but_torchs_and_cudas(self):
        # Searches only the pack's folder, like a machine without this one's packages.
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
        fake_nvidia_smi(fake)
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

    def test_it_names_the_libtorch_that_it_was_built_with(self):
        with open(f"{self.out}/pack.json", encoding="utf-8") as file:
            named = json.load(file)["torch"]
        version, cuda = subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda)"],
            capture_output=True, text=True, check=True).stdout.split()
        self.assertEqual(named, {"version": version.split("+")[0], "cuda": cuda})

    def run_with_torch(self, text):
        """The pack's run on a machine with a GPU whose Python has a module torch of this `text`."""
        with tempfile.TemporaryDirectory() as folder:
            fake_nvidia_smi(f"{folder}/bin")
            os.makedirs(f"{folder}/python/torch")
            with open(f"{folder}/python/torch/__init__.py", "w", encoding="utf-8") as file:
                file.write(text)
            environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}",
                           "PYTHONPATH": f"{folder}/python", "DTRAIN_PYTHON": sys.executable}
            environment.pop("DTRAIN_TORCH", None)
            done = subprocess.run([f"{self.out}/run", "--results", f"{folder}/results"], check=False,
                                  capture_output=True, text=True, timeout=120, env=environment)
            self.assertFalse(os.path.exists(f"{folder}/results"), "something was measured")
        return done

    def test_another_libtorch_ends_it_with_64_and_a_line_of_what_is_there_and_what_is_needed(self):
        with open(f"{self.out}/pack.json", encoding="utf-8") as file:
            needed = TorchRelease(**json.load(file)["torch"])
        for version, cuda, said in (("1.2.3+cu99", needed.cuda, f"torch 1.2.3 (CUDA {needed.cuda})"),
                                    (needed.version, "9.1", f"torch {needed.version} (CUDA 9.1)"),
                                    (needed.version, None, f"torch {needed.version} (without CUDA)")):
            done = self.run_with_torch(f"class version:\n    cuda = {cuda!r}\n"
                                       f"__version__ = {version!r}\n")
            self.assertEqual(done.returncode, 64, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(said, done.stderr)
            self.assertIn(f"needs {needed.version} for CUDA {needed.cuda.split('.')[0]}", done.stderr)
            self.assertIn(f"pip install torch=={needed.version}", done.stderr)

    def test_a_python_without_torch_ends_it_with_64_and_what_to_install(self):
        done = self.run_with_torch("raise ImportError('libcudart.so.13: no such file')\n")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("no torch that can be imported (ImportError: libcudart.so.13", done.stderr)
        self.assertIn("pip install torch==", done.stderr)


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
            self.assertEqual(machine.newest_glibc(file.name), (2, 38))


class Release(unittest.TestCase):
    def test_a_libtorch_says_its_own_in_a_wheel_and_in_an_archive(self):
        for name, text, expected in (
                ("version.py", "__version__ = '2.11.0+cu130'\ncuda: Optional[str] = '13.0'\n",
                 TorchRelease("2.11.0", "13.0")),
                ("version.py", "__version__ = '2.11.0+cpu'\ncuda: Optional[str] = None\n",
                 TorchRelease("2.11.0", "")),
                ("build-version", "2.9.1+cu128\n", TorchRelease("2.9.1", "12.8")),
                ("build-version", "2.9.1+cpu\n", TorchRelease("2.9.1", "")),
                ("README", "none", None)):
            with tempfile.TemporaryDirectory() as folder:
                with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                    file.write(text)
                self.assertEqual(torch_release.release_in(folder), expected)

    def test_a_newer_cuda_of_the_same_major_version_will_do(self):
        needed = TorchRelease("2.11.0", "13.0")
        for found, will_do in ((("2.11.0", "13.2"), True), (("2.11.0", "12.9"), False),
                               (("2.11.1", "13.0"), False), (("2.11.0", ""), False)):
            self.assertEqual(TorchRelease(*found).will_do_for(needed), will_do, found)


class Dev(unittest.TestCase):
    """The entry in a clone that holds nothing else, on a host whose programs print their names."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.clone = folder.name
        shutil.copy(f"{SOURCE}/dev", f"{self.clone}/dev")
        os.makedirs(f"{self.clone}/libtorch/lib")
        open(f"{self.clone}/libtorch/lib/libtorch_cpu.so", "wb").close()
        write_program(f"{self.clone}/host/dpkg-query", "echo deps >>calls; echo install ok installed")
        write_program(f"{self.clone}/host/nvidia-smi", "exit 9")
        for name in ("cmake", "ninja", "python3"):
            write_program(f"{self.clone}/host/{name}", f'echo {name} "$@" >>calls')

    def dev(self, *words):
        return subprocess.run(["./dev", *words], cwd=self.clone, capture_output=True, text=True,
                              check=False, timeout=60,
                              env={**os.environ, "DTRAIN_TORCH": f"{self.clone}/libtorch",
                                   "PATH": f"{self.clone}/host:{os.environ['PATH']}"})

    def calls(self):
        try:
            with open(f"{self.clone}/calls", encoding="utf-8") as file:
                return list(dict.fromkeys(line.split()[0] for line in file))
        except FileNotFoundError:
            return []

    def test_run_without_a_gpu_ends_with_64_before_anything_is_installed_or_built(self):
        done = self.dev("gpu", "run")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("no GPU here", done.stderr)
        self.assertIn("not yet measured on a GPU", done.stderr)
        self.assertEqual(self.calls(), [])

    def test_pack_of_a_fresh_clone_installs_builds_and_then_packs(self):
        done = self.dev("gpu", "pack")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.calls(), ["deps", "cmake", "ninja", "python3"])

    def test_help_of_a_command_explains_and_does_nothing(self):
        os.makedirs(f"{self.clone}/build")
        for command in ("clean", "train", "deps", "package"):
            done = self.dev(command, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("usage: ./dev COMMAND", done.stdout)
        self.assertTrue(os.path.isdir(f"{self.clone}/build"))
        self.assertEqual(self.calls(), [])

    def test_help_says_what_the_nine_minutes_leave_out(self):
        text = " ".join(self.dev("--help").stdout.split())
        self.assertIn("within 9 minutes; deps and build come on top", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
