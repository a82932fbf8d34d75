"""A checkpoint's model/ folder, opened by transformers, is the model that dtrain trained."""
import glob
import json
import os
import struct

import end_to_end
from end_to_end import EndToEnd

os.environ["HF_HUB_OFFLINE"] = "1"  # Before transformers is read: nothing here needs a network.

WINDOWS = 16  # eval_batches x train_batch_size of end_to_end.SMALL.
SEQUENCE = end_to_end.SMALL["data"]["sequence_length"]
# fp32 sums in another order.
TOLERANCE = 1e-5


class ModelFolder(EndToEnd):
    def windows(self):
        """The validation windows that an evaluation reads: in file order, from the first one."""
        with open(f"{self.folder}/data/val.bin", "rb") as file:
            header = struct.unpack("<256i", file.read(1024))
            self.assertEqual(header[0], 20240520)
            tokens = struct.unpack(f"<{header[2]}H", file.read(2 * header[2]))
        return [tokens[i * SEQUENCE:(i + 1) * SEQUENCE + 1] for i in range(WINDOWS)]

    def loss_in_transformers(self, model, changes=None):
        """Mean cross-entropy over the windows by LlamaForCausalLM; what was loaded must fit."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        config = LlamaConfig.from_pretrained(model, **(changes or {}))
        llama, loading = LlamaForCausalLM.from_pretrained(
            model, config=config, dtype=torch.float32, output_loading_info=True)
        for problem, names in loading.items():
            self.assertFalse(names, f"{problem}: {names}")
        windows = torch.tensor(self.windows())
        with torch.no_grad():
            logits = llama.eval()(windows[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        return llama, loss.item()

    def check(self, tied):
        config = self.write_config(
            f"tied-{tied}.json", eval_interval=20,
            model={**end_to_end.SMALL["model"], "tie_word_embeddings": tied, "rms_norm_eps": 1e-3,
                   "rope_theta": 500.0, "initializer_range": 0.3})  # Attention that looks about.
        run_dir = self.train(2, f"tied-{tied}", ["train_steps=20"], config=config)
        ours = [r["m"]["eval/loss"] for r in self.records(run_dir) if r["kind"] == "eval"]
        self.assertEqual(len(ours), 1)
        model = glob.glob(f"{run_dir}/checkpoints/step-*/model")[0]
        llama, theirs = self.loss_in_transformers(model)
        self.assertLessEqual(abs(theirs - ours[0]), TOLERANCE * ours[0], (theirs, ours[0]))
        with open(f"{model}/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tie_word_embeddings"], tied)
        shared = llama.lm_head.weight.data_ptr() == llama.model.embed_tokens.weight.data_ptr()
        self.assertEqual(shared, tied)
        # The comparison would notice another model: a wrong base of the rotation shows.
        _, other = self.loss_in_transformers(
            model, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}})
        self.assertGreater(abs(other - ours[0]), 3 * TOLERANCE * ours[0])

    def test_an_untied_head(self):
        self.check(tied=False)

    def test_a_tied_head(self):
        self.check(tied=True)


if __name__ == "__main__":
    end_to_end.main()
