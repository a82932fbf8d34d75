"""`dtrain bench mfu` as a user starts it: its figures are consistent, and bad input ends with 64."""
import json
import math
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

from time_bounds import bound_s

BIN = os.environ["DTRAIN_BIN"]
SHAPE = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
# Parameters of attention's four projections (two with half as many heads), the MLP's three, two norms.
LAYER = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 128 + 2 * 64
TABLE = 96 * 64
STRICT = 2 * LAYER + 64 + TABLE  # With the last norm and the head; the embedding is only looked up, not multiplied.
PALM = STRICT + TABLE
WIDTH = 2 * 64
SEQUENCE = 32


def run(*words, launch=()):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [f"{BIN}/dtrain", *launch, *(() if launch else ("bench", "mfu")), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=bound_s(170), check=False,
                          env=environment)


class BenchMfu(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.config = cls.path("config.json")
        with open(cls.config, "w", encoding="utf-8") as file:
            json.dump(SHAPE, file)
        # Most tests read this result.
        cls.facts, cls.said = cls.measure("--svg", cls.path("roof.svg"))

    @classmethod
    def path(cls, name):
        return f"{cls.folder.name}/{name}"

    @classmethod
    def measure(cls, *words, launch=()):
        """(facts, standard output) of three steps."""
        done = run("--hf", cls.config, "--seq", str(SEQUENCE), "--micro-batch", "2", "--steps", "3",
                   "--warm-up", "1", "--json", cls.path("mfu.json"), *words, launch=launch)
        if done.returncode != 0:
            raise AssertionError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        with open(cls.path("mfu.json"), encoding="utf-8") as file:
            return json.load(file), done.stdout

    def test_flop_counts_are_those_of_the_formulas(self):
        facts = self.facts
        self.assertEqual(facts["parameters"], PALM)
        self.assertEqual(facts["strict_parameters"], STRICT)
        self.assertAlmostEqual(facts["flop_per_token_strict"], 6 * STRICT + 12 * WIDTH * SEQUENCE / 2)
        self.assertAlmostEqual(facts["flop_per_token_palm"], 6 * PALM + 12 * WIDTH * SEQUENCE)

    def test_figures_follow_from_each_other(self):
        facts = self.facts
        tokens_per_s = 2 * SEQUENCE / sorted(facts["step_seconds"])[1]
        self.assertAlmostEqual(facts["tokens_per_s"] / tokens_per_s, 1)
        self.assertAlmostEqual(facts["mfu_strict"], facts["flop_per_token_strict"] * tokens_per_s
                               / facts["peak_flops_per_s"])
        self.assertEqual(facts["peak_flops_per_s"], facts["gemm_flops_per_s"])
        self.assertIn("GEMM", facts["peak_source"])
        self.assertEqual(facts["hfu"], facts["mfu_strict"])
        self.assertAlmostEqual(sum(part["share"] for part in facts["breakdown"].values()), 1)
        self.assertGreater(facts["breakdown"]["GEMM"]["share"], 0)
        self.assertGreater(facts["breakdown"]["attention"]["share"], 0)
        self.assertGreater(facts["copy_bytes_per_s"], 1e8)
        self.assertGreater(facts["memory_peak_bytes"], 1e7)
        self.assertLess(abs(facts["loss"] - math.log(SHAPE["vocab_size"])), 1)
        for fact in ("date", "version", "commit", "cpu", "cores", "load_average"):
            self.assertIn(fact, facts)
        self.assertIn("MFU (strict)", self.said)
        self.assertNotIn("train_steps", self.said)  # The engine's log is not part of the result.

    def test_products_of_the_profile_are_those_of_the_model(self):
        products = sum(row["calls"] * row["flop_per_call"] for row in self.facts["operations"]
                       if row["kind"] == "GEMM")
        # 6 FLOP for each token and each parameter that is multiplied, that is, all but norms.
        multiplied = STRICT - (2 * 2 + 1) * 64
        self.assertAlmostEqual(products / (6 * multiplied * 2 * SEQUENCE), 1, places=6)

    def test_what_is_computed_twice_counts_for_hfu_alone_and_a_given_peak_is_the_peak(self):
        facts, _ = self.measure("--recompute", "full", "--peak-tflops", "2.5")
        again = 2 * 2 * LAYER + 4 * WIDTH * SEQUENCE / 2
        self.assertAlmostEqual(facts["hfu"] / facts["mfu_strict"],
                               1 + again / facts["flop_per_token_strict"])
        self.assertEqual(facts["peak_flops_per_s"], 2.5e12)
        self.assertEqual(facts["peak_source"], "--peak-tflops")

    def test_the_roofline_is_sound_xml(self):
        root = xml.etree.ElementTree.parse(self.path("roof.svg")).getroot()
        self.assertTrue(root.tag.endswith("svg"))
        self.assertGreater(len(list(root.iter("{http://www.w3.org/2000/svg}circle"))), 4)

    def test_json_alone_goes_to_standard_output_when_asked(self):
        done = run("--hf", self.config, "--seq", "16", "--steps", "1", "--warm-up", "1", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr[-2000:])
        self.assertEqual(json.loads(done.stdout)["bench"], "mfu")

    def test_several_ranks_share_the_work_and_their_rates(self):
        facts, _ = self.measure("--zero", "2", "--dtype", "bf16",
                                launch=("launch", "--nproc-per-node", "2", "--run-dir",
                                        self.path("run"), "--", f"{BIN}/dtrain-bench-mfu"))
        self.assertEqual(facts["ranks"], 2)
        self.assertEqual(facts["zero_stage"], 2)
        step = sorted(facts["step_seconds"])[1]
        self.assertAlmostEqual(facts["tokens_per_s"] * step, 2 * 2 * SEQUENCE)


class BadInput(unittest.TestCase):
    def expect_64(self, text, *words):
        done = run(*words)
        self.assertEqual(done.returncode, 64, f"{words}: {done.stderr}")
        self.assertIn(text, done.stderr)
        return done

    def with_config(self, config):
        file = tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8")
        self.addCleanup(file.close)
        json.dump(config, file)
        file.flush()
        return file.name

    def test_a_sequence_longer_than_the_models(self):
        self.expect_64("65 is longer than the model's 64 positions", "--hf", self.with_config(SHAPE),
                       "--seq", "65")

    def test_a_shape_that_cannot_be(self):
        self.expect_64("num_attention_heads", "--hf",
                       self.with_config({**SHAPE, "num_key_value_heads": 3}))

    def test_a_file_that_is_not_there_or_no_json(self):
        self.expect_64("/no/such.json", "--hf", "/no/such.json")
        self.expect_64("dtrain bench mfu", "--hf", __file__)

    def test_an_unknown_preset_names_those_that_there_are(self):
        self.expect_64("there are:", "--preset", "gpt5")

    def test_fp8_on_a_cpu(self):
        self.expect_64("--dtype fp8 needs a GPU", "--hf", self.with_config(SHAPE), "--dtype", "fp8")

    def test_a_device_that_is_not_there_is_one_line(self):
        if os.path.exists("/dev/nvidia0"):
            self.skipTest("this machine has a GPU")
        done = self.expect_64("--device cuda: ", "--hf", self.with_config(SHAPE), "--device", "cuda")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
