"""A googletest program in several processes runs every test once, and no failure is lost."""
import os
import stat
import subprocess
import sys
import tempfile
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "in_shards.py")
# Distributes five tests like googletest; test 3 fails, or kills its process, on request.
PROGRAM = """#!/bin/sh
for test in 0 1 2 3 4; do
  if [ $((test % GTEST_TOTAL_SHARDS)) = "$GTEST_SHARD_INDEX" ]; then
    echo "ran $test"
    if [ $test = 3 ]; then eval "$1"; fi
  fi
done
"""


class InShards(unittest.TestCase):
    def run_program(self, count, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/program"
            with open(path, "w", encoding="utf-8") as file:
                file.write(PROGRAM)
            os.chmod(path, stat.S_IRWXU)
            return subprocess.run([sys.executable, SCRIPT, str(count), path, *arguments],
                                  capture_output=True, text=True, timeout=60, check=False)

    def test_every_test_runs_once_whatever_the_number_of_processes(self):
        for count in (1, 2, 3, 7):
            done = self.run_program(count)
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertEqual(sorted(done.stdout.split("\n")[:-1]), [f"ran {i}" for i in range(5)])

    def test_a_failure_of_one_is_the_programs(self):
        done = self.run_program(2, "exit 3")
        self.assertEqual(done.returncode, 3)
        self.assertIn("ran 4", done.stdout, "the other goes on")

    def test_a_process_that_dies_is_a_failure(self):
        done = self.run_program(2, "kill -9 $$")
        self.assertEqual(done.returncode, 128 + 9)
        self.assertIn("process 2 of 2 was ended by signal 9", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
