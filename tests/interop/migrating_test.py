"""docs/MIGRATING.md and the datasets of docs/DATA.md keep their promises: commands start what they say, configurations
are accepted, and programs are those of examples/, which interop_accelerate_test runs."""
import glob
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest

from pages import code_blocks
from time_bounds import bound_s

BIN = os.environ["DTRAIN_BIN"]
SOURCE = os.environ["DTRAIN_SOURCE"]
CONFIG = f"{SOURCE}/examples/configs/gpt.json"


class Migrating(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="dtrain-migrating-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def run_program(self, words):
        result = subprocess.run(words, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, timeout=bound_s(30), check=False,
                                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
        self.assertEqual(result.returncode, 0, f"{shlex.join(words)}\n{result.stdout}")
        return result.stdout

    def test_commands_start_the_program_that_they_name(self):
        shutil.copy(CONFIG, f"{self.folder}/config.json")
        with open(f"{self.folder}/hosts", "w", encoding="utf-8") as file:
            file.write("localhost slots=2\n")
        blocks = code_blocks("docs/MIGRATING.md", "bash")
        commands = [shlex.split(line) for block in blocks for line in block.splitlines()]
        self.assertGreaterEqual(len(commands), 4)
        for words in commands:
            self.assertEqual(words[:2], ["dtrain", "launch"])
            shown = self.run_program([*words[:2], "--dry-run", *words[2:]])
            self.assertIn("dtrain-gpt", shown)
            self.assertIn("2 ranks", shown)
            sets = words[words.index("--set"):] if "--set" in words else []
            self.run_program(["dtrain", "config", "check", "config.json", "--world-size", "2", *sets])

    def test_calls_of_the_tables_are_public_functions(self):
        headers = ""
        for path in glob.glob(f"{SOURCE}/runtime/include/dtrain/*.h"):
            with open(path, encoding="utf-8") as file:
                headers += file.read()
        with open(f"{SOURCE}/docs/MIGRATING.md", encoding="utf-8") as file:
            calls = set(re.findall(r"(?:job\.|engine->|checkpoints->|dtrain::\w+::)(\w+)\(", file.read()))
        self.assertGreaterEqual(len(calls), 10)
        self.assertEqual([call for call in calls if not re.search(rf"\b{call}\(", headers)], [])

    def test_configurations_are_those_of_the_examples_and_accepted(self):
        for block in code_blocks("docs/MIGRATING.md", "json"):
            with open(f"{SOURCE}/examples/gan/gan.json", encoding="utf-8") as file:
                self.assertEqual(block, file.read())
        for path in glob.glob(f"{SOURCE}/examples/*/*.json"):
            if os.path.basename(os.path.dirname(path)) in ("cnn", "gan", "transformer"):
                self.run_program(["dtrain", "config", "check", path, "--world-size", "2"])

    def test_programs_are_parts_of_the_examples(self):
        examples = ""
        for path in sorted(glob.glob(f"{SOURCE}/examples/*/*.cc")):
            with open(path, encoding="utf-8") as file:
                examples += file.read()
        programs = code_blocks("docs/MIGRATING.md", "cpp") + code_blocks("docs/DATA.md", "cpp")
        self.assertEqual(len(programs), 2)
        for program in programs:
            self.assertIn(program, examples)


if __name__ == "__main__":
    unittest.main()
