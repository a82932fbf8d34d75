"""`dtrain bench comm` measures, checks and prints every collective as nccl-tests does."""
import json
import os
import re
import subprocess
import tempfile
import unittest

BIN = os.environ["DTRAIN_BIN"]
COLLECTIVES = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
               "send_receive", "barrier"}
TIME_BOUND_S = 170  # Generous: the machine may be busy.


def bench(*words, stderr=subprocess.STDOUT):
    return subprocess.run([f"{BIN}/dtrain", "bench", "comm", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=stderr, text=True,
                          timeout=TIME_BOUND_S, check=False)


class BenchComm(unittest.TestCase):
    def test_every_collective_is_measured_over_both_backends_with_right_results(self):
        with tempfile.TemporaryDirectory() as folder:
            result = bench("--ranks", "3", "--maxbytes", "64K", "--stepfactor", "16", "--iters", "3",
                           "--json", f"{folder}/comm.json")
            self.assertEqual(result.returncode, 0, result.stdout)
            with open(f"{folder}/comm.json", encoding="utf-8") as file:
                rows = json.load(file)["rows"]
        self.assertEqual({(r["backend"], r["collective"]) for r in rows},
                         {(b, c) for b in ("shm", "tcp") for c in COLLECTIVES})
        factor = {"all_reduce": 4 / 3, "reduce_scatter": 2 / 3, "all_gather": 2 / 3,
                  "all_to_all": 2 / 3, "broadcast": 1, "send_receive": 1, "barrier": 0}
        for row in rows:
            self.assertEqual(row["wrong"], 0, row)
            self.assertGreater(row["time_us"], 0, row)
            self.assertAlmostEqual(row["busbw_gb_s"], row["algbw_gb_s"] * factor[row["collective"]],
                                   delta=1e-9 + 1e-6 * row["algbw_gb_s"], msg=row)
        self.assertRegex(result.stdout, r"# +size +count +type +redop +root +time +algbw +busbw +#wrong")
        self.assertTrue(re.search(r"^ +32768 +8192 +float +sum +-1 ", result.stdout, re.M),
                        result.stdout)

    def test_json_without_a_file_is_all_that_standard_output_has(self):
        for words in (["--json", "-e", "64K"], ["-e", "64K", "--json"]):
            result = bench("--backend", "shm,tcp", *words, "--iters", "2", stderr=subprocess.PIPE)
            self.assertEqual(result.returncode, 0, result.stderr)
            report = json.loads(result.stdout)
            self.assertEqual({r["backend"] for r in report["rows"]}, {"shm", "tcp"})
            self.assertIn("# all_reduce over shm", result.stderr)

    def test_wrong_values_name_what_is_allowed(self):
        result = bench("--backend", "infiniband")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("tcp", result.stdout)
        result = bench("--minbytes", "1K", "--maxbytes", "8")
        self.assertEqual(result.returncode, 64, result.stdout)
        self.assertIn("from 1024 to 8 bytes", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
