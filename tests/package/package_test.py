"""The installed package: a separate project finds it after a move, and trains with its launcher."""
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from installed import PROGRAM
from time_bounds import bound_s

BUILD = os.environ["DTRAIN_BUILD"]
SOURCE = os.environ["DTRAIN_SOURCE"]
CMAKE = os.environ["DTRAIN_CMAKE"]
FLAGS = os.environ["DTRAIN_CXX_FLAGS"]  # Flags of a sanitizer build, which all parts of a program must share.
PUBLIC = f"{SOURCE}/runtime/include/dtrain"
TOOLS = ["dtrain", "dtrain-bench-comm", "dtrain-bench-kernels", "dtrain-bench-mfu", "dtrain-checkpoint",
         "dtrain-config", "dtrain-data", "dtrain-eval", "dtrain-finetune", "dtrain-generate", "dtrain-gpt",
         "dtrain-minimal", "dtrain-plan"]
if glob.glob(f"{BUILD}/lib/*.so"):  # The CUDA plugin was built, because nvcc was found.
    TOOLS = sorted([*TOOLS, "dtrain-bench-kernels-cuda"])


def files_below(folder):
    return sorted(os.path.relpath(f"{path}/{name}", folder)
                  for path, _, names in os.walk(folder) for name in names)


class Package(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-package-")
        cls.folder = cls.folder_object.name
        subprocess.run([CMAKE, "--install", BUILD, "--prefix", f"{cls.folder}/first"], check=True,
                       stdout=subprocess.DEVNULL)
        os.mkdir(f"{cls.folder}/moved")
        cls.prefix = f"{cls.folder}/moved/dtrain"
        os.rename(f"{cls.folder}/first", cls.prefix)
        cls.project = f"{cls.folder}/project"
        shutil.copytree(f"{SOURCE}/examples/minimal", cls.project)

    @classmethod
    def tearDownClass(cls):
        cls.folder_object.cleanup()

    def run_program(self, command, expect=0, **variables):
        # The environment of this test must not help the package.
        environment = {**{k: v for k, v in os.environ.items()
                          if not k.startswith(("DTRAIN_", "CMAKE_", "LD_", "PYTHON", "PKG_CONFIG"))}, **variables}
        result = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=bound_s(600),
                                cwd=self.folder, env=environment, check=False)
        if expect is not None:
            self.assertEqual(result.returncode, expect, result.stdout)
        return result

    def configure(self, build, *words, expect=0):
        return self.run_program(
            [CMAKE, "-G", "Ninja", "-S", self.project, "-B", f"{self.folder}/{build}",
             f"-DCMAKE_PREFIX_PATH={self.prefix}", f"-DCMAKE_CXX_FLAGS={FLAGS}",
             "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *words], expect)

    def test_the_tree_holds_programs_libraries_and_public_headers_only(self):
        self.assertEqual(sorted(os.listdir(f"{self.prefix}/bin")), TOOLS)
        for name in os.listdir(f"{self.prefix}/lib"):
            self.assertRegex(name, r"^(libdtrain_[a-z_]+\.(a|so)|cmake|pkgconfig|dtrain)$")
        self.assertEqual(sorted(os.listdir(f"{self.prefix}/lib/dtrain")),
                         ["dtrain-bench-mfu", "dtrain-eval", "dtrain-finetune", "dtrain-generate", "dtrain-gpt",
                          "dtrain-minimal", "torch"])
        for plugin in glob.glob(f"{BUILD}/lib/*.so"):  # CUDA's, where nvcc was found.
            self.assertIn(os.path.basename(plugin), os.listdir(f"{self.prefix}/lib"))
        headers = [f"dtrain/{name}" for name in files_below(PUBLIC)]
        headers += ["dtrain/base/json.h", "dtrain/base/status.h"]
        self.assertEqual(files_below(f"{self.prefix}/include"), sorted(headers))
        self.assertEqual(sorted(os.listdir(f"{self.prefix}/share/dtrain")), ["configs", "examples", "tools"])
        self.assertEqual(os.listdir(f"{self.prefix}/share/dtrain/tools"), ["convert_checkpoint.py"])

    def test_manual_pages_and_completions_know_each_program(self):
        pages = os.listdir(f"{self.prefix}/share/man/man1")
        self.assertEqual([name for name in TOOLS if f"{name}.1" not in pages], [])
        self.assertIn("dtrain-checkpoint-list.1", pages)
        with open(f"{self.prefix}/share/man/man1/dtrain-launch.1", encoding="utf-8") as file:
            self.assertIn("\\-\\-nproc\\-per\\-node N\n", file.read())
        for command in ("train", "gpt"):
            offered = self.run_program([f"{self.prefix}/bin/dtrain", "complete", "--", command, "--a"]).stdout
            self.assertEqual(offered, "--accept-change\n")
        for name in ("bash-completion/completions/dtrain", "zsh/site-functions/_dtrain"):
            with open(f"{self.prefix}/share/{name}", encoding="utf-8") as file:
                self.assertIn("complete -- ", file.read())

    def test_cmake_and_pkg_config_files_name_no_folder_of_the_source_or_of_the_first_place(self):
        for name in files_below(f"{self.prefix}/lib"):
            if name.endswith((".cmake", ".pc")):
                with open(f"{self.prefix}/lib/{name}", encoding="utf-8") as file:
                    text = file.read()
                self.assertNotIn(f"{self.folder}/first", text, name)
                self.assertNotIn(SOURCE, text, name)

    def test_dtrain_says_where_it_is_and_which_libtorch_it_finds(self):
        dtrain = f"{self.prefix}/bin/dtrain"
        self.assertEqual(self.run_program([dtrain, "env", "--prefix"]).stdout.strip(), self.prefix)
        torch = self.run_program([dtrain, "env", "--torch"]).stdout.strip()
        self.assertEqual(torch, os.path.realpath(f"{BUILD}/lib/dtrain/torch"))
        wrong = self.run_program([dtrain, "env", "--nothing"], expect=64)
        self.assertIn("dtrain env: unknown option --nothing; see dtrain env --help", wrong.stdout)

    def test_a_project_outside_is_given_the_headers_of_the_package_and_of_libtorch_alone(self):
        # wheel_test compiles a program against them, and clean_root_test the example.
        self.configure("build")
        with open(f"{self.folder}/build/compile_commands.json", encoding="utf-8") as file:
            command = json.load(file)[0]["command"]
        includes = re.findall(r"-(?:I|isystem) ?(\S+)", command)
        self.assertIn(f"{self.prefix}/include", includes)
        for include in includes:
            self.assertTrue(include.startswith(self.prefix) or "/torch" in include, command)

    def test_the_installed_programs_find_libtorch(self):
        self.run_program([f"{self.prefix}/bin/dtrain-gpt", "--help"])
        self.assertIn("data", self.run_program([f"{self.prefix}/bin/dtrain", "--help"]).stdout)

    def test_the_installed_converter_starts_with_any_python(self):
        # -I: no package of this tree helps. torch is needed only once a file is read.
        converter = f"{self.prefix}/share/dtrain/tools/convert_checkpoint.py"
        said = self.run_program([sys.executable, "-I", "-B", converter, "--help"]).stdout
        self.assertIn("dtrain checkpoint import OUT", said)

    def test_a_missing_libtorch_is_refused_in_one_line(self):
        result = self.configure("no-torch", "-DDTRAIN_TORCH=/nowhere", expect=None)
        self.assertNotEqual(result.returncode, 0)
        text = " ".join(result.stdout.split())  # CMake wraps lines.
        self.assertIn('LibTorch not found (DTRAIN_TORCH="/nowhere"): set DTRAIN_TORCH to', text)

    def test_another_release_of_libtorch_is_refused_in_an_archive_that_has_no_python(self):
        headers = "include/torch/csrc/api/include/torch"
        archive = f"{self.folder}/libtorch"
        os.makedirs(f"{archive}/{headers}")
        os.makedirs(f"{archive}/lib")
        for name, text in (("lib/libtorch_cpu.so", ""), ("build-version", "1.13.1+cpu\n"), (f"{headers}/version.h", """
                #define TORCH_VERSION_MAJOR 1
                #define TORCH_VERSION_MINOR 13
                #define TORCH_VERSION_PATCH 1
                """)):
            with open(f"{archive}/{name}", "w", encoding="utf-8") as file:
                file.write(re.sub("(?m)^ +", "", text))
        result = self.configure("other-torch", f"-DDTRAIN_TORCH={archive}", expect=None)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn(f"LibTorch in {archive} is release 1.13.1, but this dtrain is built with",
                      " ".join(result.stdout.split()))

    @unittest.skipUnless(shutil.which("pkg-config"), "pkg-config is not here")
    def test_pkg_config_compiles_and_links_a_program_that_runs(self):
        source, program = f"{self.folder}/program.cc", f"{self.folder}/program"
        with open(source, "w", encoding="utf-8") as file:
            file.write(PROGRAM)
        flags = [self.run_program(["pkg-config", wanted, "dtrain"],
                                  PKG_CONFIG_PATH=f"{self.prefix}/lib/pkgconfig").stdout.split()
                 for wanted in ("--cflags", "--libs")]
        self.run_program(["c++", *FLAGS.split(), *flags[0], source, *flags[1], "-o", program])
        with open(f"{self.folder}/program.json", "w", encoding="utf-8") as file:
            json.dump({"train_batch_size": 1, "train_steps": 7, "device": "cpu"}, file)
        said = self.run_program([program, f"{self.folder}/program.json"]).stdout
        self.assertIn("steps 7 on cpu", said)


if __name__ == "__main__":
    unittest.main(verbosity=2)
