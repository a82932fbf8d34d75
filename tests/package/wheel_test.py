"""The wheel in a clean virtual environment: install it, train, build against it and uninstall it."""
import glob
import os
import re
import shutil
import subprocess
import tempfile
import unittest
import zipfile

import end_to_end
from installed import BUILD, CMAKE, SOURCE, TORCH, losses, make_environment, make_packages, run

# Libraries of a system without Debian's packages (PEP 600: those that every manylinux system has).
OF_THE_SYSTEM = re.compile(r"^(lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|resolv|z)\.so\.\d+|ld-linux.*)$")
OF_TORCH = re.compile(r"^lib(torch(_cpu|_cuda)?|c10(_cuda)?)\.so$|^lib(gomp|cudart)\.so\.")


def readelf(flags, path):
    return subprocess.run(["readelf", "-W", flags, path], capture_output=True, text=True, check=True).stdout


def programs_below(folder):
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            with open(f"{where}/{name}", "rb") as file:
                if file.read(4) == b"\x7fELF":
                    found.append(f"{where}/{name}")
    return sorted(found)


def files_below(folder):
    return {os.path.relpath(f"{where}/{name}", folder)
            for where, _, names in os.walk(folder) for name in names}


class Wheel(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        if not os.path.exists(f"{TORCH}/version.py"):
            raise unittest.SkipTest(f"{TORCH} is no torch package: a wheel depends on one")
        cls.folder_object = tempfile.TemporaryDirectory(prefix="dtrain-wheel-")
        cls.folder = os.path.realpath(cls.folder_object.name)
        cls.said = make_packages(f"{cls.folder}/dist", "--only", "wheel")
        [cls.wheel] = glob.glob(f"{cls.folder}/dist/*")
        with zipfile.ZipFile(cls.wheel) as file:
            file.extractall(f"{cls.folder}/content")
        [cls.data] = glob.glob(f"{cls.folder}/content/*.data")
        [cls.info] = glob.glob(f"{cls.folder}/content/*.dist-info")
        cls.venv = f"{cls.folder}/venv"
        cls.site_packages = make_environment(cls(), cls.venv)
        cls.without_dtrain = files_below(cls.venv)
        # Installed as by a user, with its dependencies, but without the network, which is not needed.
        run(cls(), [f"{cls.venv}/bin/python", "-m", "pip", "install", "--no-index", cls.wheel])

    @classmethod
    def tearDownClass(cls):
        cls.folder_object.cleanup()

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def test_it_depends_on_the_torch_that_it_was_built_with(self):
        metadata = self.read(f"{self.info}/METADATA")
        release = re.search(r"__version__ = '([\d.]+)", self.read(f"{TORCH}/version.py"))[1]
        self.assertIn(f"\nRequires-Dist: torch=={release}\n", metadata)
        self.assertIn("Tag: py3-none-manylinux_", self.read(f"{self.info}/WHEEL"))

    def test_it_is_said_whether_it_has_the_cuda_half(self):
        cuda = os.path.exists(f"{self.data}/data/lib/libdtrain_cuda.so")
        self.assertRegex(self.said.splitlines()[-1], "the CPU half and the CUDA half, because" if cuda
                         else "the CPU half alone, because .*; DTRAIN_CUDA=ON ./dev package adds")

    def test_its_tag_is_the_oldest_system_that_has_the_glibc_and_libstdcxx_it_asks_for(self):
        tag = re.search(r"-manylinux_2_(\d+)_(\w+)\.whl$", self.wheel)
        self.assertEqual(tag[2], os.uname().machine)
        glibc, libstdcxx = 0, 0
        for path in programs_below(self.data):
            needs = readelf("-V", path).partition("Version needs section")[2]
            glibc = max([glibc, *(int(n) for n in re.findall(r"\bGLIBC_2\.(\d+)", needs))])
            libstdcxx = max([libstdcxx, *(int(n) for n in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", needs))])
        self.assertGreaterEqual(int(tag[1]), glibc)
        # Systems with glibc 2.35 have g++ 12's libstdc++ (3.4.30), those with 2.34 have 3.4.29.
        self.assertEqual(int(tag[1]), max(glibc, {30: 35, 29: 34}.get(libstdcxx, glibc)))

    def test_it_brings_every_library_that_is_not_of_the_system_or_of_torch(self):
        brought = {os.path.basename(path) for path in programs_below(f"{self.data}/data/lib")}
        for path in programs_below(self.data):
            dynamic = readelf("-d", path)
            for name in re.findall(r"NEEDED.*\[(.+)\]", dynamic):
                known = OF_THE_SYSTEM.match(name) or OF_TORCH.match(name) or name in brought
                self.assertTrue(known, f"{path} needs {name}")
            for place in re.findall(r"(?:RPATH|RUNPATH).*\[(.+)\]", dynamic):
                for folder in place.split(":"):
                    self.assertTrue(folder.startswith("$ORIGIN"), f"{path} looks in {folder}")
        for name in ("libtorch", "libc10", "libgomp"):
            self.assertFalse([b for b in brought if b.startswith(name)], "torch's own")

    def test_nothing_in_it_names_the_folders_of_the_build(self):
        for where, _, names in os.walk(f"{self.folder}/content"):
            for name in names:
                with open(f"{where}/{name}", "rb") as file:
                    text = file.read()
                for folder in (SOURCE, BUILD, os.path.realpath(f"{SOURCE}/.deps")):
                    self.assertFalse(folder.encode() in text, f"{where}/{name} names {folder}")

    def test_every_program_starts(self):
        for path in sorted(glob.glob(f"{self.venv}/bin/dtrain*")):
            self.assertIn("dtrain", run(self, [path, "--help"]), path)
        release = run(self, [f"{self.venv}/bin/dtrain", "--version"])
        self.assertIn(re.search(r"dtrain-([\d.]+)-", self.wheel)[1], release)
        doctor = run(self, [f"{self.venv}/bin/dtrain", "doctor"], expect=None)
        self.assertRegex(doctor, r"LibTorch.*2\.\d+\.\d+.* in ")

    def test_it_has_the_pages_for_users(self):
        pages = os.listdir(f"{self.venv}/share/doc/dtrain")
        self.assertIn("MODELS.md", pages)  # The help of dtrain-gpt names it.
        self.assertIn("TUTORIAL.md", pages)
        self.assertNotIn("ARCHITECTURE.md", pages)

    def test_it_trains_from_an_empty_folder(self):
        empty = f"{self.folder}/empty"
        os.mkdir(empty)
        sets = ["train_steps=12", "eval_interval=0", "sample.bytes=0", "data.sequence_length=64",
                "model.num_hidden_layers=2"]  # A smaller model and shorter samples than the default.
        output = run(self, [f"{self.venv}/bin/dtrain", "train",
                            *(word for value in sets for word in ("--set", value))], cwd=empty)
        [records] = glob.glob(f"{empty}/**/metrics/rank-0.jsonl", recursive=True)
        found = losses(os.path.dirname(os.path.dirname(records)))
        self.assertEqual(len(found), 12, output)
        self.assertLess(found[-1], found[0] - 0.5, "it learns")

    def test_a_program_outside_is_built_by_cmake_and_by_pkg_config_and_runs(self):
        # clean_root_test builds the example, which takes three times as long, and trains with it.
        dtrain = f"{self.venv}/bin/dtrain"
        prefix = run(self, [dtrain, "env", "--prefix"]).strip()
        self.assertEqual(prefix, self.venv)
        project = f"{self.folder}/project"
        shutil.copytree(f"{prefix}/share/dtrain/examples/minimal", project)
        # It names the public functions, so all that their headers name is in the package.
        shutil.copy(f"{SOURCE}/tests/package/public_calls.cc", f"{project}/minimal.cc")
        run(self, [CMAKE, "-G", "Ninja", "-S", project, "-B", f"{project}/build",
                   f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON",
                   "-DCMAKE_BUILD_TYPE=None"])
        includes = re.findall(r"-(?:I|isystem) ?(\S+)", self.read(f"{project}/build/compile_commands.json"))
        self.assertTrue(includes)
        for folder in includes:
            self.assertTrue(folder.startswith((prefix, os.path.dirname(TORCH))), folder)
        run(self, [CMAKE, "--build", f"{project}/build"])
        # pkg-config's flags link the compiled program, and compile one that includes LibTorch's headers.
        pkg_config = {"PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig"}
        flags = run(self, ["pkg-config", "--cflags", "dtrain"], **pkg_config).split()
        with open(f"{project}/try.cc", "w", encoding="utf-8") as file:
            file.write("#include <dtrain/config.h>\n#include <c10/core/Device.h>\n"
                       "int main() { return static_cast<int>(c10::Device(\"cpu\").type()); }\n")
        run(self, ["c++", *flags, "-fsyntax-only", f"{project}/try.cc"])
        [compiled] = glob.glob(f"{project}/build/**/minimal.cc.o", recursive=True)
        libraries = run(self, ["pkg-config", "--libs", "dtrain"], **pkg_config).split()
        run(self, ["c++", compiled, *libraries, "-o", f"{project}/linked"])
        config = f"{project}/config.json"
        with open(config, "w", encoding="utf-8") as file:
            file.write('{"train_batch_size": 1, "train_steps": 7, "device": "cpu"}')
        for program in (f"{project}/build/minimal", f"{project}/linked"):
            self.assertIn("steps 7 on cpu", run(self, [program, config], cwd=project))

    def test_without_torch_or_with_another_release_a_program_says_so_in_one_line(self):
        # The same programs in an environment whose Python has no packages.
        bare = f"{self.folder}/bare"
        shutil.copytree(f"{self.data}/data", bare, symlinks=True)
        os.makedirs(f"{bare}/bin")
        for path in glob.glob(f"{self.data}/scripts/*"):
            shutil.copy(path, f"{bare}/bin")
            os.chmod(f"{bare}/bin/{os.path.basename(path)}", 0o755)
        gpt = f"{bare}/bin/dtrain-gpt"
        for path in glob.glob(f"{bare}/lib/dtrain/dtrain-*"):
            os.chmod(path, 0o755)
        self.one_line(run(self, [gpt, "config.json"], expect=64), "LibTorch not found", "torch==")
        self.one_line(run(self, [gpt, "config.json"], expect=64, DTRAIN_TORCH="/nowhere"), "/nowhere")
        other = f"{bare}/lib/python3.12/site-packages/torch"
        os.makedirs(f"{other}/lib")
        shutil.copy(f"{TORCH}/lib/libc10.so", f"{other}/lib/libtorch_cpu.so")
        with open(f"{other}/version.py", "w", encoding="utf-8") as file:
            file.write("__version__ = '2.9.1+cpu'\n")
        self.one_line(run(self, [gpt, "config.json"], expect=64), "2.9.1+cpu", "is built with")
        self.one_line(run(self, [f"{bare}/bin/dtrain", "train"], expect=None, cwd=bare), "2.9.1+cpu")
        self.assertFalse(os.path.exists(f"{bare}/data"), "refused before anything is written")
        # The variable can name a LibTorch in any folder.
        self.assertIn("config", run(self, [gpt, "--help"], DTRAIN_TORCH=TORCH))
        # CMake reports the same from the headers, before it compiles for minutes.
        headers = f"{other}/include/torch/csrc/api/include/torch"
        os.makedirs(headers)
        with open(f"{headers}/version.h", "w", encoding="utf-8") as file:
            file.write("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n"
                       "#define TORCH_VERSION_PATCH 1\n")
        shutil.copytree(f"{bare}/share/dtrain/examples/minimal", f"{bare}/project")
        said = run(self, [CMAKE, "-G", "Ninja", "-S", f"{bare}/project", "-B", f"{bare}/build",
                          f"-DCMAKE_PREFIX_PATH={bare}", f"-DDTRAIN_TORCH={other}"], expect=1)
        self.assertIn("is release 2.9.1, but this dtrain is built with", " ".join(said.split()))

    def one_line(self, output, *words):
        self.assertEqual(len(output.strip().splitlines()), 1, output)
        for word in words:
            self.assertIn(word, output)

    def test_what_cannot_be_packaged_is_refused_in_one_line(self):
        nowhere = make_packages(f"{self.folder}/none", "--build", self.folder, expect=64)
        self.one_line(nowhere, "is no build folder", "./dev build release")
        with open(f"{self.folder}/file", "w", encoding="utf-8"):
            pass
        refused = make_packages(f"{self.folder}/file/dist", expect=66)
        self.one_line(refused, f"{self.folder}/file")

    def test_uninstalling_leaves_nothing(self):
        venv = f"{self.folder}/second"  # A copy, because other tests use the first.
        shutil.copytree(self.venv, venv, symlinks=True)
        site_packages = os.path.join(venv, os.path.relpath(self.site_packages, self.venv))
        self.assertTrue(glob.glob(f"{site_packages}/dtrain-*.dist-info"))
        run(self, [f"{venv}/bin/python", "-m", "pip", "uninstall", "--yes", "dtrain"])
        left = files_below(venv) - self.without_dtrain
        self.assertEqual(sorted(path for path in left if not path.endswith(".pyc")), [])
        self.assertTrue(glob.glob(f"{self.site_packages}/dtrain-*.dist-info"), "the first is left alone")


if __name__ == "__main__":
    end_to_end.main()
