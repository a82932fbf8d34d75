"""The last lines of `./dev test`: cases that programs skipped, and the time."""
import os
import subprocess
import sys
import tempfile
import unittest

import skipped_tests
import suite_budget

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


CTEST_LINES = """ 1/7 Test #12: strangers_test ......................***Skipped  90.40 sec
 2/7 Test #110: comm_group_faults_test .............   Passed    7.50 sec
 3/7 Test  #9: kernels_cuda_test ..................***Skipped   0.02 sec
 4/7 Test  #1: base_test ..........................   Passed    1.00 sec
 5/7 Test #77: engine_test ........................***Failed   12.00 sec
 6/7 Test #78: plan_test ..........................***Timeout 300.07 sec
 7/7 Test #79: gpt_test ...........................   Passed   11.00 sec
"""
SUMMARY = """100% tests passed, 0 tests failed out of 7

Total Test time (real) = 1205.30 sec
"""
CTEST = CTEST_LINES + SUMMARY


def end_of_run(text, *arguments):
    """The whole program's result for ctest's output."""
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/LastTest.log", "w", encoding="utf-8") as file:
            file.write(LOG)
        return subprocess.run(
            [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                          "skipped_tests.py"), f"{folder}/LastTest.log", *arguments],
            input=text, capture_output=True, text=True, check=False)


class SkippedTests(unittest.TestCase):
    def test_every_case_that_was_left_out_has_its_program_and_its_reason(self):
        self.assertEqual(skipped_tests.lines_of(LOG), SKIPPED)

    def test_many_cases_of_one_reason_are_counted(self):
        lines = "".join(f"test_{i} (__main__.A.test_{i}) ... skipped 'no GPU'\n" for i in range(9))
        log = f"1/1 Test: gpu_test\nOutput:\n{lines}<end of output>\n"
        self.assertEqual(skipped_tests.lines_of(log),
                         ["  gpu_test: test_0, test_1, test_2 and 6 more: no GPU"])

    def test_what_was_left_out_stands_before_ctests_summary(self):
        done = end_of_run(CTEST)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(done.stdout.startswith(" 1/7 Test #12: strangers_test"), done.stdout)
        self.assertIn("\n".join(["Left out, and why:", *SKIPPED, "", SUMMARY]), done.stdout)


class SuiteBudget(unittest.TestCase):
    def test_the_last_lines_are_the_five_slowest_and_the_time_of_all(self):
        done = end_of_run(CTEST, "--whole")
        self.assertEqual(done.returncode, 0, done.stdout)
        *_, empty, slowest, total = done.stdout.splitlines()
        self.assertEqual(empty, "")
        self.assertEqual(slowest, "slowest: plan_test 300 s, strangers_test 90 s, engine_test 12 s, "
                                  "gpt_test 11 s, comm_group_faults_test 8 s")
        self.assertRegex(total, r"^tests took 1,205 s of the [12],[24]00 s that they may take on \d+ cores$")

    def test_a_suite_over_its_budget_by_half_fails_with_one_line(self):
        tests, _ = suite_budget.times_of(CTEST.splitlines())
        limit = 1.5 * suite_budget.BUDGET_S
        for cores, total, within in ((2, limit, True), (2, limit + 1, False), (16, limit + 1, False),
                                     (1, limit + 1, True), (1, 2 * limit + 1, False)):
            shown, fits = suite_budget.end_of(tests, total, True, cores)
            self.assertEqual(fits, within, (cores, total))
            self.assertEqual(len(shown), 2 if within else 3, shown)
        slow = end_of_run(CTEST.replace("1205.30", "99999.00"), "--whole")
        self.assertEqual(slow.returncode, 1)
        self.assertIn(SUMMARY.splitlines()[0], slow.stdout)
        self.assertRegex(slow.stdout.splitlines()[-1], "^./dev test: FAILED: the tests took 99,999 s, more ")

    def test_a_part_of_the_suite_has_no_budget(self):
        done = end_of_run(CTEST.replace("1205.30", "99999.00"))
        self.assertEqual(done.returncode, 0)
        self.assertTrue(done.stdout.splitlines()[-1].startswith("slowest: "), done.stdout)

    def test_a_run_that_ctest_did_not_finish_is_not_judged(self):
        done = end_of_run(CTEST_LINES, "--whole")
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("tests took", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
