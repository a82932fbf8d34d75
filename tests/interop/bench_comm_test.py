"""`dtrain bench comm` measures, checks and prints every collective as nccl-tests does."""
import json
import os
import re
import subprocess
import tempfile
import unittest

from time_bounds import bound_s

BIN = os.environ["DTRAIN_BIN"]
COLLECTIVES = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
               "send_receive", "barrier"}
IN_PLACE = {"all_reduce", "reduce_scatter", "all_gather", "broadcast"}
TIME_BOUND_S = bound_s(170)  # Generous: the machine may be busy.


def bench(*words, stderr=subprocess.STDOUT):
    return subprocess.run([f"{BIN}/dtrain", "bench", "comm", *words], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=stderr, text=True,
                          timeout=TIME_BOUND_S, check=False)


class BenchComm(unittest.TestCase):
    def measure(self, *words):
        """(printed text, JSON)."""
        with tempfile.TemporaryDirectory() as folder:
            result = bench(*words, "--json", f"{folder}/comm.json")
            self.assertEqual(result.returncode, 0, result.stdout)
            with open(f"{folder}/comm.json", encoding="utf-8") as file:
                return result.stdout, json.load(file)

    def test_every_collective_is_measured_over_both_backends_with_right_results(self):
        text, report = self.measure("--ranks", "3", "--maxbytes", "64K", "--stepfactor", "16",
                                    "--iters", "3")
        rows = report["rows"]
        self.assertEqual({(r["backend"], r["collective"]) for r in rows},
                         {(b, c) for b in ("shm", "tcp") for c in COLLECTIVES})
        factor = {"all_reduce": 4 / 3, "reduce_scatter": 2 / 3, "all_gather": 2 / 3,
                  "all_to_all": 2 / 3, "broadcast": 1, "send_receive": 1, "barrier": 0}
        for row in rows:
            self.assertEqual(row["in_place"] is not None, row["collective"] in IN_PLACE, row)
            for time in filter(None, (row["out_of_place"], row["in_place"])):
                self.assertEqual(time["wrong"], 0, row)
                self.assertGreater(time["time_us"], 0, row)
                self.assertAlmostEqual(time["busbw_gb_s"],
                                       time["algbw_gb_s"] * factor[row["collective"]],
                                       delta=1e-9 + 1e-6 * time["algbw_gb_s"], msg=row)
                self.assertAlmostEqual(time["of_limit"], time["busbw_gb_s"] / row["limit_gb_s"])
        self.assertRegex(text, r"# +size +count +type +redop +root( +time +algbw +busbw +#wrong){2}")
        self.assertRegex(text, r"out-of-place +in-place +%limit")
        self.assertTrue(re.search(r"^ +32768 +8192 +float +sum +-1 ", text, re.M), text)
        self.assertEqual(sorted({r["size"] for r in rows if r["collective"] == "broadcast"}),
                         [8, 128, 2048, 32768, 65536])

    def test_the_report_says_when_on_what_and_how(self):
        _, report = self.measure("--collective", "broadcast,all_reduce", "-e", "4K", "-f", "1024",
                                 "--iters", "2", "--registered", "-d", "half", "-o", "max",
                                 "--root", "1", "--backend", "shm")
        self.assertRegex(report["date"], r"^20\d\d-\d\d-\d\d$")
        self.assertTrue(report["cpu"])
        for fact in ("version", "commit", "cores", "load_average"):  # bench/provenance.py has the same.
            self.assertIn(fact, report)
        self.assertTrue(report["registered"])
        rows = {row["collective"]: row for row in report["rows"]}
        self.assertEqual([rows["broadcast"][key] for key in ("redop", "root", "type")],
                         ["none", 1, "half"])
        self.assertEqual([rows["all_reduce"][key] for key in ("redop", "root", "transport")],
                         ["max", -1, "shm"])
        self.assertEqual(rows["all_reduce"]["limit"], "memory copy")

    def test_nodes_that_one_host_pretends_to_be_go_through_memory_first(self):
        _, report = self.measure("--ranks", "4", "--backend", "shm+tcp", "-e", "16K", "-f", "64",
                                 "--iters", "2", "-d", "bfloat16", "-o", "avg")
        self.assertEqual({row["transport"] for row in report["rows"]}, {"shm+tcp"})
        self.assertEqual({row["collective"] for row in report["rows"]}, COLLECTIVES)

    def test_a_backend_that_this_host_does_not_have_is_refused_by_name(self):
        for backend, why in (("rdma", "RDMA device"), ("nccl", "GPU|CUDA"), ("staged", "GPU|CUDA")):
            result = bench("--backend", f"shm,{backend}", "-e", "4K")
            if result.returncode == 0:
                continue  # The backend exists on this machine.
            self.assertEqual(result.returncode, 64, result.stdout)
            self.assertEqual(result.stdout.count("\n"), 1, result.stdout)
            self.assertRegex(result.stdout, f"--backend {backend} does not work on this machine: .*({why})")

    def test_sizes_that_memory_does_not_hold_are_left_out_or_refused(self):
        result = bench("--backend", "shm", "-b", "64T", "-e", "64T")
        self.assertEqual(result.returncode, 75, result.stdout)
        self.assertIn("are available: use fewer --ranks", result.stdout)
        text, report = self.measure("--backend", "shm", "--collective", "barrier", "-b", "4K",
                                    "-e", "64T", "-f", "1024", "--iters", "2")
        self.assertIn("leaving out sizes above", text)
        self.assertGreater(report["left_out_above"], 0)

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
        result = bench("--dtype", "fp12")
        self.assertEqual(result.returncode, 64, result.stdout)
        self.assertIn("bfloat16", result.stdout)
        for words, why in ((["--root", "2"], "--root is 2; with 2 ranks, allowed: 0 to 1"),
                           (["--op", "avg", "-d", "int32"], "--op avg does not work with integers"),
                           (["--ranks", "1"], "--backend shm needs --ranks 2 or more"),
                           (["--backend", "shm+tcp"], "--ranks 4")):
            result = bench(*words)
            self.assertEqual(result.returncode, 64, result.stdout)
            self.assertIn(why, result.stdout)
        result = bench("--minbytes", "1K", "--maxbytes", "8")
        self.assertEqual(result.returncode, 64, result.stdout)
        self.assertIn("--minbytes is 1024 and --maxbytes 8", result.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
