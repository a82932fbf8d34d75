"""Bounds of trainings grow with those that CTest sets for the whole test."""
import os
import subprocess
import sys
import unittest

import end_to_end


def bound_of_trainings(environment):
    said = subprocess.run([sys.executable, "-c", "import end_to_end; print(end_to_end.TIME_BOUND_S)"],
                          capture_output=True, text=True, check=True, env=environment)
    return int(said.stdout)


class TimeBounds(unittest.TestCase):
    def test_sanitized_builds_get_the_factor_of_ctest(self):
        plain = {name: value for name, value in os.environ.items() if name != "DTRAIN_TEST_TIME_FACTOR"}
        once = bound_of_trainings(plain)
        self.assertEqual(bound_of_trainings({**plain, "DTRAIN_TEST_TIME_FACTOR": "5"}), 5 * once)


if __name__ == "__main__":
    end_to_end.main()
