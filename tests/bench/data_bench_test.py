"""./dev bench data and ./dev bench generate: what they make of measured numbers, and the parts without peers run."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

from time_bounds import bound_s

SOURCE, BIN = os.environ["DTRAIN_SOURCE"], os.environ["DTRAIN_BIN"]
sys.path[:0] = [f"{SOURCE}/bench", f"{SOURCE}/bench/generation"]

import data  # noqa: E402
import generate  # noqa: E402
import report  # noqa: E402


class Goals(unittest.TestCase):
    def judged(self, goals):
        return {goal["name"]: (goal["measured"], goal["verdict"]) for goal in report.judged(goals)}

    def test_each_part_has_its_goals_and_a_part_that_was_not_measured_none(self):
        rounds = [{"dtrain": 50, "tokenizers": 10}, {"dtrain": 20, "tokenizers": 5}, {"dtrain": 9, "tokenizers": 3}]
        results = {"tokens": [{"kind": "gpt2", "threads": 2, "rounds": rounds}],
                   "memory": [{"source": "JSONL", "threads": 2, "peak_mb": 512}],
                   "reading": [{"corpus": "mixture of both", "rates": [9e8, 2e9, 1e9]}]}
        self.assertEqual(self.judged(data.all_goals(results)), {
            "data.gpt2_vs_tokenizers_2_threads": (4, "short"), "data.memory_mb_2_threads": (512, "ok"),
            "data.reading_tokens_per_s_mixture_of_both": (1e9, "ok")})
        self.assertEqual(data.all_goals({}), [])

    def test_generation_is_set_against_transformers_in_each_round(self):
        rounds = [{"dtrain": {"prompt": 2, "written": 3}, "transformers": {"prompt": 1, "written": 4}}]
        self.assertEqual(self.judged(generate.all_goals({"speed": [{"model": "m", "rounds": rounds}]})), {
            "generate.m_prompt_vs_transformers": (2, "ok"), "generate.m_written_vs_transformers": (0.75, "short")})


class Driver(unittest.TestCase):
    def test_memory_and_reading_are_measured_by_the_programs(self):
        with tempfile.TemporaryDirectory(prefix="dtrain-bench-test-") as folder:
            done = subprocess.run(
                [sys.executable, f"{SOURCE}/bench/data.py", "--bin", BIN, "--json", f"{folder}/data.json", "--parts",
                 "memory", "reading", "--rounds", "1", "--threads", "1", "--megabytes", "0.2", "--jsonl-megabytes", "1",
                 "--reading-megatokens", "0.5"], cwd=SOURCE, capture_output=True, text=True, timeout=bound_s(60),
                check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(f"{folder}/data.json", encoding="utf-8") as file:
                written = json.load(file)
        [memory] = written["memory"]
        self.assertGreaterEqual(memory["bytes"], 1e6)
        self.assertGreater(memory["peak_mb"], 1)
        self.assertEqual([row["corpus"] for row in written["reading"]], ["u16", "u32", "mixture of both"])
        for row in written["reading"]:
            self.assertGreater(row["rates"][0], 1e6)
        self.assertEqual(len(written["goals"]), 4)


if __name__ == "__main__":
    unittest.main()
