"""A model folder that `dtrain checkpoint import` has made a checkpoint of is where a run begins: with its
weights, at step 0, at any ZeRO stage and precision."""
import glob
import json

import end_to_end
import torch
from end_to_end import BIN, EndToEnd
from safetensors.torch import load_file

# Updates that change nothing: what is saved at the end are the weights with which the run began.
STILL = ["optimizer.params.lr=0", "optimizer.params.weight_decay=0", "train_steps=2"]


class Import(EndToEnd):
    def weights(self, run_dir):
        newest = sorted(glob.glob(f"{run_dir}/checkpoints/step-*"))[-1]
        return {name: tensor for path in glob.glob(f"{newest}/model/*.safetensors")
                for name, tensor in load_file(path).items()}

    def test_a_run_begins_with_the_weights_of_an_import(self):
        trained = self.train(2, "trained", ["train_steps=6"])
        folder = f"{self.folder}/model"
        done = self.run_program([f"{BIN}/dtrain", "checkpoint", "export", trained, folder])
        self.assertEqual(done.code, 0, done.output)
        wanted = self.weights(trained)
        for way, dtype in (("zero_optimization.stage=0", "fp32"), ("zero_optimization.stage=3", "bf16"),
                           ("bf16.enabled=true", "fp32")):
            with self.subTest(way=way):
                run = f"{self.folder}/run-{way.replace('=', '-')}"
                done = self.run_program([f"{BIN}/dtrain", "checkpoint", "import", folder, run, "--dtype", dtype])
                self.assertEqual(done.code, 0, done.output)
                result = self.run_program(self.launch_command(2, run, [*STILL, way]))
                self.assertEqual(result.code, 0, result.output)
                with open(f"{run}/metrics/rank-0.jsonl", encoding="utf-8") as file:
                    [note] = [record["note"] for record in map(json.loads, file) if "restored" in record]
                self.assertIn("weights alone", note)
                trains = "bf16" if "bf16" in way else "fp32"
                self.assertEqual(f"converted from {dtype} to {trains}" in note, dtype != trains, note)
                found = self.weights(run)
                self.assertEqual(sorted(found), sorted(wanted))
                for name, tensor in found.items():
                    stored = wanted[name].to(torch.bfloat16) if dtype == "bf16" else wanted[name]
                    self.assertTrue(tensor.equal(stored.to(tensor.dtype)), name)


if __name__ == "__main__":
    end_to_end.main()
