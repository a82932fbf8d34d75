"""Messages of ./dev and packaging/ that need no build: wrong values, the halves of a package, a full
disk; and the names of the systems on which packages are tested."""
import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

import clean_root
import end_to_end

SOURCE = os.environ["DTRAIN_SOURCE"]
sys.path.insert(0, f"{SOURCE}/packaging")  # In front of other modules with these names, such as wheel.

import package
import tree


class Folder(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-refusals-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def replace(self, owner, name, value):
        """Keeps the setting until the end of the test."""
        self.addCleanup(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)


class Dev(Folder):
    """./dev in a folder without a tree: commands that are not refused at once fail there."""

    def dev(self, *words, **variables):
        shutil.copy(f"{SOURCE}/dev", self.folder)
        return subprocess.run([f"{self.folder}/dev", *words], capture_output=True, text=True, check=False,
                              timeout=60, env={**os.environ, **variables})

    def test_a_wrong_number_of_jobs_is_refused_before_anything_is_done(self):
        for value in ("0", "-1", "abc", "08", "2.5", "1 2"):
            result = self.dev("build", DTRAIN_JOBS=value)
            self.assertEqual(result.returncode, 64, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(f'DTRAIN_JOBS="{value}"', result.stderr)
            self.assertIn("an integer of 1 or more", result.stderr)
            self.assertEqual(os.listdir(self.folder), ["dev"])
        self.assertEqual(self.dev("--help", DTRAIN_JOBS="0").returncode, 0)


class Halves(Folder):
    def configured(self, *words):
        """The CMake cache of a project that decides on CUDA as dtrain does."""
        with open(f"{self.folder}/CMakeLists.txt", "w", encoding="utf-8") as file:
            file.write(f"cmake_minimum_required(VERSION 3.25)\nproject(decides LANGUAGES NONE)\n"
                       f"include({SOURCE}/cmake/DtrainCuda.cmake)\n")
        subprocess.run(["cmake", "-S", self.folder, "-B", f"{self.folder}/build", *words],
                       check=True, capture_output=True)
        with open(f"{self.folder}/build/CMakeCache.txt", encoding="utf-8") as file:
            return dict(re.findall(r"^([\w.-]+):\w+=(.*)$", file.read(), re.MULTILINE))

    def test_a_package_without_cuda_says_why_and_how_to_get_it(self):
        said = tree.halves(types.SimpleNamespace(cache=self.configured("-DDTRAIN_CUDA=OFF")), self.folder)
        self.assertEqual(said, "the packages hold the CPU half alone, because DTRAIN_CUDA=OFF; DTRAIN_CUDA=ON ./dev "
                         "package adds the CUDA half, for which nvcc must be installed")

    @unittest.skipIf(os.path.exists("/proc/driver/nvidia/gpus"), "this machine has a GPU: CUDA is not left out")
    def test_a_machine_without_a_gpu_is_named_as_the_reason(self):
        cache = self.configured("-DDTRAIN_NVCC=/bin/true")
        self.assertEqual(cache.get("DTRAIN_CUDA_REASON"), "this machine has no NVIDIA GPU")

    def test_a_package_with_cuda_says_how_to_leave_it_out(self):
        os.makedirs(f"{self.folder}/lib")
        with open(f"{self.folder}/lib/libdtrain_cuda.so", "w", encoding="utf-8"):
            pass
        said = tree.halves(types.SimpleNamespace(cache=dict(DTRAIN_CUDA_REASON="DTRAIN_CUDA=ON")), self.folder)
        self.assertIn("the CPU half and the CUDA half, because DTRAIN_CUDA=ON; DTRAIN_CUDA=OFF ./dev package", said)


class FullDisk(Folder):
    def setUp(self):
        super().setUp()
        os.makedirs(f"{self.folder}/out")
        self.replace(package, "check_tools", lambda kinds: None)
        self.replace(package, "check_space", lambda folder: None)
        self.replace(tree, "Build", lambda folder: types.SimpleNamespace(version="1.0", cache={}))
        self.replace(tree, "install", lambda build, prefix: os.makedirs(prefix))
        self.replace(tempfile, "tempdir", self.folder)
        self.replace(sys, "argv", ["package.py", "--out", f"{self.folder}/out", "--only", "archive"])

    def said(self):
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            self.assertEqual(package.main(), 66)
        self.assertEqual(len(stderr.getvalue().splitlines()), 1, stderr.getvalue())
        return stderr.getvalue()

    def test_that_of_the_output_is_named_and_not_the_file_that_is_copied_to_it(self):
        def make(build, plain, work, kind):
            del build, plain, kind
            with open(f"{work}/made.tar.gz", "w", encoding="utf-8") as file:
                file.write("made")
            os.symlink("/dev/full", f"{self.folder}/out/made.tar.gz.partial")
            return f"{work}/made.tar.gz"
        self.replace(package, "MAKERS", {"archive": make})
        self.assertRegex(self.said(), rf"^./dev package: No space left on device: {self.folder}/out; free some")
        self.assertEqual(os.listdir(f"{self.folder}/out"), [])

    def test_that_of_temporary_files_is_named_when_a_tree_does_not_fit(self):
        def make(build, plain, work, kind):
            del build, kind
            os.symlink("/dev/full", f"{work}/there")
            with open(f"{plain}/content", "w", encoding="utf-8") as file:
                file.write("content")
            shutil.copytree(plain, f"{work}/tree",
                            copy_function=lambda source, target: shutil.copy(source, f"{work}/there"))
        self.replace(package, "MAKERS", {"archive": make})
        self.assertRegex(self.said(), rf"No space left on device: {self.folder}/dtrain-package-\w+; free some")

    def test_other_errors_keep_the_file_that_they_name(self):
        shutil.rmtree(f"{self.folder}/out")
        with open(f"{self.folder}/out", "w", encoding="utf-8"):
            pass
        self.assertRegex(self.said(), f"File exists: {self.folder}/out; choose another folder")


class CleanRoots(Folder):
    def test_a_root_is_used_only_for_the_packages_that_it_was_made_from(self):
        before = [clean_root.name_of(kind) for kind in clean_root.CONTENTS]
        self.replace(clean_root, "CONTENTS", {"bare": "bookworm python3", "compiler": "bookworm python3 g++"})
        self.assertFalse(set(before) & {clean_root.name_of(kind) for kind in clean_root.CONTENTS})
        self.replace(clean_root, "KEPT", self.folder)
        current = clean_root.name_of("bare")
        for name in (*before, "bookworm-bare", "bullseye-compiler-0123abcd", current, "tmpabc", "bookworm-other"):
            os.makedirs(f"{self.folder}/{name}/etc")
        clean_root.remove_older()
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([current, "tmpabc", "bookworm-other"]))


if __name__ == "__main__":
    end_to_end.main()
