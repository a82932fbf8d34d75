"""The results of `./dev test long` that bench/results keeps."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import long_results

CASES = """	<testcase name="short_test" classname="short_test" time="0.00597466" status="run"/>
	<testcase name="rate_test" classname="rate_test" time="0.1" status="run"><system-out>begin
figures {"goodput": 0.5, "faults": 3}
figures {"faults": 4}
OK</system-out></testcase>
	<testcase name="broken_test" classname="broken_test" time="1.3" status="fail"><failure message=""/></testcase>
	<testcase name="no_guest_test" classname="no_guest_test" time="0.5" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>
	<testcase name="not_built_test" classname="not_built_test" time="0" status="notrun"><skipped message="Unable to find executable"/></testcase>
"""


def junit(cases):
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuite name="t">\n{cases}</testsuite>'


class LongResults(unittest.TestCase):
    def keep(self, folder, cases):
        with open(f"{folder}/long.xml", "w", encoding="utf-8") as file:
            file.write(junit(cases))
        return subprocess.run(
            [sys.executable, long_results.__file__, f"{folder}/long.xml",
             f"{folder}/results/machine/long.json", "./dev test long"], capture_output=True, text=True, check=False)

    def kept(self, folder):
        with open(f"{folder}/results/machine/long.json", encoding="utf-8") as file:
            return json.load(file)

    def test_each_test_is_kept_with_its_end_its_time_and_what_it_ran_on(self):
        with tempfile.TemporaryDirectory() as folder:
            done = self.keep(folder, CASES)
            self.assertEqual(done.returncode, 0, done.stderr)
            kept = self.kept(folder)
        self.assertEqual({name: (t["result"], t["seconds"]) for name, t in kept["tests"].items()},
                         {"short_test": ("passed", 0.0), "rate_test": ("passed", 0.1), "broken_test": ("failed", 1.3),
                          "no_guest_test": ("skipped", 0.5), "not_built_test": ("failed", 0.0)})
        self.assertIs(kept["passed"], False)
        self.assertEqual(kept["bench"], "long")
        self.assertEqual(kept["seconds"], 1.9)
        self.assertEqual(kept["tests"]["rate_test"]["figures"], {"goodput": 0.5, "faults": 4})
        self.assertNotIn("figures", kept["tests"]["short_test"])
        for row in (kept, *kept["tests"].values()):
            self.assertRegex(row["date"], r"^\d{4}-\d\d-\d\d$")
            self.assertEqual(row["cores"], os.cpu_count())
            self.assertEqual(row["command"], "./dev test long")
            self.assertIn("commit", row)

    def test_a_run_of_some_replaces_these_and_keeps_the_others_with_their_own_date(self):
        before = {"tests": {"a_test": {"result": "failed", "seconds": 2.0, "date": "2026-01-01"},
                            "b_test": {"result": "passed", "seconds": 3.0, "date": "2026-01-01"}}}
        after = long_results.merged(before, {"a_test": (2.5, "passed", {})}, {"date": "2026-02-02"})
        self.assertEqual(after["tests"]["a_test"],
                         {"result": "passed", "seconds": 2.5, "date": "2026-02-02"})
        self.assertEqual(after["tests"]["b_test"], before["tests"]["b_test"])
        self.assertEqual((after["passed"], after["seconds"], after["date"]), (True, 5.5, "2026-02-02"))

    def test_a_run_without_tests_replaces_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            self.keep(folder, CASES)
            before = self.kept(folder)
            done = self.keep(folder, "")
            self.assertEqual(done.returncode, 1)
            self.assertIn("names no test", done.stderr)
            self.assertEqual(self.kept(folder), before)


if __name__ == "__main__":
    unittest.main(verbosity=2)
