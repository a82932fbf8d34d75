"""What `./dev test` says of cases that programs left out."""
import os
import subprocess
import sys
import tempfile
import unittest

import skipped_tests

LOG = """Start testing: Nov 22 21:00 UTC
----------------------------------------------------------
1/4 Testing: strangers_test
1/4 Test: strangers_test
Command: "python3" "strangers_test.py"
Output:
----------------------------------------------------------
test_a_scanner (__main__.Strangers.test_a_scanner) ... skipped 'LOUD SKIP: no nmap'
test_b (__main__.Strangers.test_b)
With a sentence about it. ... ok
test_c (__main__.Strangers.test_c) ... something printed
skipped "it's not here"
<end of output>
Test time =   1.00 sec
2/4 Testing: comm_group_faults_test
2/4 Test: comm_group_faults_test
Output:
----------------------------------------------------------
[ RUN      ] Cable.IsCut
group_faults_test.cc:444: Skipped
NOT TESTED: no namespaces

[  SKIPPED ] Cable.IsCut (0 ms)
[ RUN      ] Cable.IsThere
[       OK ] Cable.IsThere (0 ms)
[ RUN      ] Cable.Again
group_faults_test.cc:444: Skipped
NOT TESTED: no namespaces

[  SKIPPED ] Cable.Again (0 ms)
[  SKIPPED ] 2 tests, listed below:
<end of output>
3/4 Testing: kernels_cuda_test
3/4 Test: kernels_cuda_test
Output:
----------------------------------------------------------
SKIPPED: no CUDA device (count 0); no CUDA kernel was tested
<end of output>
4/4 Testing: base_test
4/4 Test: base_test
Output:
----------------------------------------------------------
train/skipped 'nothing' is a metric here
<end of output>
"""
SKIPPED = ["  strangers_test: test_a_scanner: LOUD SKIP: no nmap",
           "  strangers_test: test_c: it's not here",
           "  comm_group_faults_test: Cable.IsCut, Cable.Again: NOT TESTED: no namespaces",
           "  kernels_cuda_test: SKIPPED: no CUDA device (count 0); no CUDA kernel was tested"]


class SkippedTests(unittest.TestCase):
    def test_every_case_that_was_left_out_has_its_program_and_its_reason(self):
        self.assertEqual(skipped_tests.lines_of(LOG), SKIPPED)

    def test_many_cases_of_one_reason_are_counted(self):
        lines = "".join(f"test_{i} (__main__.A.test_{i}) ... skipped 'no GPU'\n" for i in range(9))
        log = f"1/1 Test: gpu_test\nOutput:\n{lines}<end of output>\n"
        self.assertEqual(skipped_tests.lines_of(log),
                         ["  gpu_test: test_0, test_1, test_2 and 6 more: no GPU"])

    def test_the_list_stands_before_ctests_summary_which_stays_the_last_thing(self):
        summary = "100% tests passed, 0 tests failed out of 4\n\nTotal Test time (real) = 1 sec\n"
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/LastTest.log", "w", encoding="utf-8") as file:
                file.write(LOG)
            done = subprocess.run(
                [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                              "skipped_tests.py"), f"{folder}/LastTest.log"],
                input=f"1/4 Test #1: strangers_test ... Passed\n{summary}", capture_output=True,
                text=True, check=True).stdout
        self.assertTrue(done.startswith("1/4 Test #1"), done)
        self.assertTrue(done.endswith("\n".join(["Left out, and why:", *SKIPPED, "", summary])), done)


if __name__ == "__main__":
    unittest.main(verbosity=2)
