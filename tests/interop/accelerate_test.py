"""Programs of examples/ that stand beside one with Accelerate have its losses, step by step, and about its length."""
import importlib
import json
import os
import subprocess
import sys

import end_to_end
from end_to_end import SOURCE, TIME_BOUND_S, EndToEnd, fp32_tolerance

STEPS = 20
RANKS = 2
LINES_OVER_PEER_MAX = 1.3
LINES_BESIDE_MODEL_MAX = 40
# Gradients are means over a batch of 32, of sums over at most 144 products in each of three layers.
TOLERANCE = fp32_tolerance(32 * 3 * 144)
# The makers of a program's nets, by the folders of their weights.
NETS = {"cnn": {"": lambda nets: nets.Net()},
        "gan": {"generator": lambda nets: nets.Mlp(4, 2), "discriminator": lambda nets: nets.Mlp(2, 1)},
        "transformer": {"": lambda nets: nets.Decoder()}}
MODULES = {"cnn": "net", "gan": "nets", "transformer": "decoder"}


def lines(path):
    """Lines of code: no blank ones, and none that only explain."""
    with open(f"{SOURCE}/examples/{path}", encoding="utf-8") as file:
        return sum(1 for line in file if line.strip() and not line.strip().startswith(("//", "# ", '"""')))


class Accelerate(EndToEnd):
    def write_weights(self, example):
        import torch
        from safetensors.torch import save_file
        sys.path.insert(0, f"{SOURCE}/examples/{example}")
        nets = importlib.import_module(MODULES[example])
        sys.path.pop(0)
        torch.manual_seed(5)
        for folder, make in NETS[example].items():
            os.makedirs(f"{self.folder}/{example}-weights/{folder}")
            save_file(make(nets).state_dict(), f"{self.folder}/{example}-weights/{folder}/model.safetensors")
        return f"{self.folder}/{example}-weights"

    def run_peer(self, example, config, weights):
        result = subprocess.run([sys.executable, f"{SOURCE}/examples/{example}/{example}.py", config, weights],
                                cwd=self.folder, capture_output=True, text=True, timeout=TIME_BOUND_S, check=False,
                                env=self.environment({"OMP_NUM_THREADS": "1"}))
        self.assertEqual(result.returncode, 0, result.stderr)
        return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]

    def compare(self, example, names):
        """The metrics `names`, by the names that the program with Accelerate prints, over all steps."""
        weights = self.write_weights(example)
        config = f"{SOURCE}/examples/{example}/{example}.json"
        peer = self.run_peer(example, config, weights)
        self.assertEqual([record["step"] for record in peer], list(range(1, STEPS + 1)))
        run_dir = f"{self.folder}/{example}"
        result = self.run_program(self.launch_command(RANKS, run_dir, [f"model.weights={weights}"], config,
                                                      f"../tests/example-{example}"))
        self.assertEqual(result.code, 0, result.output)
        for theirs, ours in names.items():
            values = {r["step"]: r["m"][ours] for r in self.records(run_dir) if ours in r.get("m", {})}
            self.assertEqual(sorted(values), list(range(1, STEPS + 1)))
            for record in peer:
                self.assertAlmostEqual(values[record["step"]] / record[theirs], 1, delta=TOLERANCE,
                                       msg=f"{example}, {ours}, step {record['step']}")

    def test_an_image_classifier_has_the_losses_of_accelerate(self):
        self.compare("cnn", {"loss": "train/loss"})

    def test_a_gan_has_the_losses_of_accelerate_in_both_engines(self):
        self.compare("gan", {"loss": "train/loss", "discriminator_loss": "train/discriminator_loss"})

    def test_a_transformer_has_the_losses_of_accelerate(self):
        self.compare("transformer", {"loss": "train/loss"})

    def test_the_programs_are_about_as_long_as_those_with_accelerate(self):
        for example in NETS:
            ours, theirs = lines(f"{example}/{example}.cc"), lines(f"{example}/{example}.py")
            self.assertLessEqual(ours, LINES_OVER_PEER_MAX * theirs, f"{example}: {ours} and {theirs} lines")
            ours += lines(f"{example}/{MODULES[example]}.h")
            theirs += lines(f"{example}/{MODULES[example]}.py")
            self.assertLessEqual(ours, LINES_OVER_PEER_MAX * theirs, f"{example} with its nets: {ours} and {theirs}")

    def test_an_image_classifier_needs_few_lines_beside_its_model(self):
        self.assertLessEqual(lines("cnn/cnn.cc"), LINES_BESIDE_MODEL_MAX)


if __name__ == "__main__":
    end_to_end.main()
