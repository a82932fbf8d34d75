"""The targets that `./dev test NAME` builds."""
import unittest

import programs_of

PROGRAM = {"command": ["/b/tests/runtime_tests", "--file=engine_test.cc"]}
SHARDED = {"command": ["/usr/bin/python3", "/s/tests/testing/in_shards.py", "5", "/b/tests/comm_tests",
                       "--file=missing_rank_test.cc"]}
PYTHON = {"command": ["/usr/bin/python3", "/s/tests/faults/faults_test.py"]}
NOT_BUILT = {"name": "a test whose program CMake does not know"}


class ProgramsOf(unittest.TestCase):
    def test_a_program_is_built_once_for_all_of_its_tests(self):
        self.assertEqual(programs_of.targets_of([SHARDED, PROGRAM, PROGRAM], "/b"),
                         ["comm_tests", "runtime_tests"])

    def test_everything_is_built_for_a_test_that_starts_what_only_it_knows(self):
        for other in (PYTHON, NOT_BUILT, {"command": ["/b/bin/dtrain", "--help"]}):
            self.assertEqual(programs_of.targets_of([PROGRAM, other], "/b"), [], other)
        self.assertEqual(programs_of.targets_of([], "/b"), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
