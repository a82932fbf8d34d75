"""Programs made of several files of tests: each file is run by a test of ctest, and --file chooses.

A file that no test names would be compiled, and never run.
"""
import json
import os
import subprocess
import tempfile
import unittest

BUILD = os.environ["DTRAIN_BUILD"]
CMAKE = os.environ["DTRAIN_CMAKE"]
FILE = "--file="


def programs():
    """{path of a program: the files of it that tests name}, without programs that are run whole."""
    ctest = os.path.join(os.path.dirname(CMAKE), "ctest")
    listed = subprocess.run([ctest, "--test-dir", BUILD, "--show-only=json-v1"], capture_output=True,
                            check=True).stdout
    found, whole = {}, set()
    for test in json.loads(listed)["tests"]:
        command = test.get("command", [])
        path = next((word for word in command if word.startswith(f"{BUILD}/tests/")), None)
        files = {word.removeprefix(FILE) for word in command if word.startswith(FILE)}
        if path and files:
            found.setdefault(path, set()).update(files)
        elif path:
            whole.add(path)
    return {path: files for path, files in found.items() if path not in whole}


def files_of(program, *arguments):
    """The files of the tests that the program would run."""
    with tempfile.NamedTemporaryFile(suffix=".json") as listed:
        subprocess.run([program, "--gtest_list_tests", f"--gtest_output=json:{listed.name}", *arguments],
                       stdout=subprocess.DEVNULL, check=True)
        suites = json.load(listed)["testsuites"]
    return {os.path.basename(test["file"]) for suite in suites for test in suite["testsuite"]}


class TestPrograms(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.programs = programs()

    def test_each_file_of_a_program_is_run(self):
        self.assertIn(f"{BUILD}/tests/plan_tests", self.programs)
        for program, files in self.programs.items():
            self.assertEqual(files_of(program), files, program)

    def test_a_file_is_chosen_and_goes_with_a_filter(self):
        program = f"{BUILD}/tests/plan_tests"
        self.assertEqual(files_of(program, "--file=units_test.cc"), {"units_test.cc"})
        self.assertEqual(files_of(program, "--file=units_test.cc", "--file=layout_test.cc"),
                         {"layout_test.cc", "units_test.cc"})
        self.assertEqual(files_of(program, "--file=units_test.cc", "--gtest_filter=*:-*Nothing*"),
                         {"units_test.cc"})
        self.assertEqual(files_of(program, "--file=units_test.cc", "--gtest_filter=-*"), set())

    def test_what_it_does_not_know_is_refused(self):
        program = f"{BUILD}/tests/plan_tests"
        for argument, said in (("--file=unit_test.cc", "no test stands in --file=unit_test.cc"),
                               ("units_test.cc", 'unknown argument "units_test.cc"')):
            done = subprocess.run([program, argument], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 64)
            self.assertIn(said, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
