"""Checks of the Dockerfiles without a container engine: their commands are complete, and the packages,
files and programs that they name exist."""
import glob
import os
import re
import shutil
import subprocess
import unittest

import dockerfile
import end_to_end

SOURCE = os.environ["DTRAIN_SOURCE"]
FILES = sorted(glob.glob(f"{SOURCE}/docker/*.Dockerfile"))
KNOWN = {"FROM", "ARG", "RUN", "COPY", "ENV", "WORKDIR", "CMD"}


def each(name):
    for path in FILES:
        for stage in dockerfile.stages(path):
            for instruction, rest in stage:
                if instruction == name:
                    yield os.path.basename(path), rest


class Dockerfiles(unittest.TestCase):
    def test_there_is_one_for_cpus_for_gpus_and_for_rdma_hosts(self):
        self.assertEqual([os.path.basename(f) for f in FILES],
                         ["cpu.Dockerfile", "cuda.Dockerfile", "roce.Dockerfile"])

    def test_instructions_are_known_and_stages_exist(self):
        for path in FILES:
            names = set()
            for name, rest in dockerfile.instructions(path):
                self.assertIn(name, KNOWN, path)
                if name == "FROM":
                    words = rest.split()
                    names.update(words[2:] if words[1:2] == ["AS"] else [])
                if stage := re.match(r"--from=(\S+)", rest):
                    self.assertIn(stage[1], names, path)

    def test_commands_are_whole_shell(self):
        commands = list(each("RUN"))
        self.assertGreater(len(commands), 5)
        for path, command in commands:
            result = subprocess.run(["sh", "-n"], input=command, text=True, capture_output=True, check=False)
            self.assertEqual(result.returncode, 0, f"{path}: {command}: {result.stderr}")

    def test_what_is_copied_from_the_tree_is_in_the_tree(self):
        with open(f"{SOURCE}/.dockerignore", encoding="utf-8") as file:
            ignored = file.read().split()
        for path, words in each("COPY"):
            source = words.split()[0]
            if not source.startswith("--from="):
                self.assertTrue(os.path.exists(f"{SOURCE}/{source}"), f"{path}: COPY {words}")
                self.assertNotIn(source, ignored, path)

    def test_dev_has_the_commands_that_they_call(self):
        usage = subprocess.run([f"{SOURCE}/dev", "--help"], capture_output=True, text=True, check=True).stdout
        called = {m for _, command in each("RUN") for m in re.findall(r"\./dev (\w+)", command)}
        self.assertEqual(called, {"deps", "package"})
        for command in called:
            self.assertRegex(usage, rf"(?m)^  {command}\b")

    def test_what_a_build_needs_is_named_by_dev_alone(self):
        building = [stage for path in FILES for stage in dockerfile.stages(path)
                    if any("./dev deps" in rest for name, rest in stage if name == "RUN")]
        self.assertEqual(len(building), 2)
        for stage in building:
            for name, rest in stage:
                if name == "RUN":
                    self.assertEqual(dockerfile.installed_packages(rest), [], rest)

    @unittest.skipUnless(shutil.which("apt-cache"), "apt-cache is not here: package names are not checked")
    def test_debian_has_the_packages_that_they_install(self):
        packages = sorted({p for _, command in each("RUN") for p in dockerfile.installed_packages(command)})
        self.assertIn("rdma-core", packages)
        said = subprocess.run(["apt-cache", "show", "--no-all-versions", *packages], capture_output=True,
                              text=True, check=False)
        known = set(re.findall(r"^Package: (\S+)$", said.stdout, re.MULTILINE))
        self.assertEqual(sorted(set(packages) - known), [], said.stderr)


if __name__ == "__main__":
    end_to_end.main()
