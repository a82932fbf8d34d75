"""Models of transformers in dtrain and back: the same logits, the same next losses, and folders that
do not fit are refused by name; and what dtrain trained itself, opened by transformers.

The cases of interop_finetune_test.py run here too: to import torch and transformers takes as long as
several of them.
"""
import glob
import json
import os
import shutil
import struct

import end_to_end
from end_to_end import EndToEnd
from interop_finetune_test import Finetune  # noqa: F401
from published_models import MODELS, TOLERANCE, TRAINING_TOLERANCE, PublishedModels

EVALUATED = 16  # Number of windows: eval_batches x train_batch_size of end_to_end.SMALL.
LENGTH = end_to_end.SMALL["data"]["sequence_length"]
WRITTEN_AGAIN = ("gpt2", "llama-biased", "qwen2-tied", "qwen3")  # One model of each kind.


class Import(PublishedModels):
    def check_both_ways(self, name):
        folder, model = self.make(name)
        tokens, ours, exported = self.logits(name, {"pretrained": folder})
        self.assert_logits(ours, model, tokens)
        again = self.opened(exported)
        self.assert_logits(ours, again, tokens)
        for key, value in model.state_dict().items():
            self.assertTrue(value.equal(again.state_dict()[key]), key)
        if name in WRITTEN_AGAIN:  # After transformers has written it again, it must be the same model.
            again.save_pretrained(f"{exported}-again")
            _, once_more, _ = self.logits(f"{name}-again", {"pretrained": f"{exported}-again"})
            self.assertTrue(once_more.equal(ours))

    def check_training(self, name, ranks, sets):
        """Trains in both from transformers' folder, then in both from dtrain's."""
        folder, model = self.make(name, f"{name}-train")
        for round_ in ("first", "second"):
            config = self.run_config(f"{name}-{round_}", {"pretrained": folder})
            run_dir = self.train(ranks, f"{name}-{round_}", ["train_steps=4", *sets], config=config)
            ours = self.losses(run_dir)
            theirs = self.losses_in_torch(model, 4)
            self.assertLess(theirs[3], theirs[0])
            for step, loss in enumerate(theirs, 1):
                self.assertLessEqual(abs(ours[step] - loss), TRAINING_TOLERANCE * loss, (step, ours, theirs))
            folder = glob.glob(f"{run_dir}/checkpoints/step-*/model")[0]
            model = self.opened(folder)

    def refused(self, folder, *parts, changes=None):
        config = self.run_config("refused", {"pretrained": folder, **(changes or {})})
        run_dir = f"{self.folder}/refused"
        shutil.rmtree(run_dir, ignore_errors=True)
        result = self.run_program(self.launch_command(1, run_dir, (), config))
        self.assertEqual(result.code, 64, result.output)
        for part in parts:
            self.assertIn(part, result.output)

    def test_every_preset_of_a_shape_is_read(self):
        presets = glob.glob(f"{end_to_end.SOURCE}/examples/configs/models/*.json")
        self.assertGreaterEqual(len(presets), 12)
        import transformers
        for path in presets:  # The presets must also be valid configurations of transformers.
            with open(path, encoding="utf-8") as file:
                config = json.load(file)
            kind = config.pop("model_type")
            self.assertEqual(transformers.AutoConfig.for_model(kind, **config).model_type, kind)

    def test_a_model_in_shards(self):
        folder, model = self.make("qwen2", "sharded", max_shard_size="30KB")
        self.assertGreater(len(glob.glob(f"{folder}/*.safetensors")), 2)
        tokens, ours, exported = self.logits("sharded", {"pretrained": folder},
                                             sets=["checkpoint.max_shard_size=30000"])
        self.assert_logits(ours, model, tokens)
        self.assertGreater(len(glob.glob(f"{exported}/*.safetensors")), 2)
        self.assertTrue(os.path.exists(f"{exported}/model.safetensors.index.json"))
        self.assert_logits(ours, self.opened(exported), tokens)

    def test_a_model_in_bf16(self):
        import torch
        folder, _ = self.make("llama", "bf16", dtype=torch.bfloat16)
        tokens, ours, _ = self.logits("bf16", {"pretrained": folder})
        self.assert_logits(ours, self.opened(folder), tokens)
        _, _, exported = self.logits("bf16-kept", {"pretrained": folder}, sets=["bf16.enabled=true"])
        with open(f"{exported}/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["dtype"], "bfloat16")
        ours, theirs = self.opened(exported).state_dict(), self.opened(folder).state_dict()
        for key, value in theirs.items():
            self.assertTrue(value.equal(ours[key]), key)

    def test_two_ranks_read_and_write_the_same_model_whole_and_shared_out(self):
        # Trainings at stages 1 and 2 go on in either below.
        folder, model = self.make("qwen3", "stages")
        expected = None
        for stage in (0, 3):
            tokens, ours, exported = self.logits(f"stage-{stage}", {"pretrained": folder}, ranks=2,
                                                 sets=[f"zero_optimization.stage={stage}"])
            self.assert_logits(ours, model, tokens)
            expected = ours if expected is None else expected
            self.assertTrue(ours.equal(expected), stage)
            for key, value in self.opened(exported).state_dict().items():
                self.assertTrue(value.equal(model.state_dict()[key]), (stage, key))

    def test_names_of_gpt2s_first_files(self):
        from safetensors.torch import load_file, save_file
        folder, model = self.make("gpt2", "old-names")
        tensors = load_file(f"{folder}/model.safetensors")
        tensors = {key.removeprefix("transformer."): value for key, value in tensors.items()}
        for layer in range(2):  # The causal mask, which those files hold.
            tensors[f"h.{layer}.attn.bias"] = tensors["wte.weight"].new_ones(1, 1, 64, 64)
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        tokens, ours, _ = self.logits("old-names", {"pretrained": folder})
        self.assert_logits(ours, model, tokens)

    def test_a_head_of_its_own_in_a_folder_that_says_tied(self):
        """Like transformers, keeps the head, with one warning; a tied pair may have either name."""
        from safetensors.torch import load_file, save_file
        for name, embedding in (("qwen2", "model.embed_tokens.weight"),
                                ("gpt2-untied", "transformer.wte.weight")):
            folder, _ = self.make(name, f"{name}-says-tied")
            with open(f"{folder}/config.json", encoding="utf-8") as file:
                config = json.load(file)
            config["tie_word_embeddings"] = True
            with open(f"{folder}/config.json", "w", encoding="utf-8") as file:
                json.dump(config, file)
            theirs = self.opened(folder)
            self.assertFalse(theirs.lm_head.weight.equal(theirs.get_input_embeddings().weight))
            tokens, ours, exported = self.logits(f"{name}-says-tied", {"pretrained": folder})
            self.assert_logits(ours, theirs, tokens)
            again = self.opened(exported)
            self.assert_logits(ours, again, tokens)
            self.assertTrue(again.lm_head.weight.equal(theirs.lm_head.weight))
            if name == "qwen2":
                result = self.run_program(self.launch_command(
                    1, f"{self.folder}/{name}-says-tied", ["train_steps=1"],
                    self.run_config(f"{name}-says-tied", {"pretrained": folder})))
                self.assertEqual(result.code, 0, result.output)
                self.assertEqual(result.output.count("tie_word_embeddings is true"), 1, result.output)

            tensors = load_file(f"{folder}/model.safetensors")
            del tensors[embedding]
            save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
            tokens, ours, _ = self.logits(f"{name}-by-head", {"pretrained": folder})
            self.assert_logits(ours, self.opened(folder), tokens)

    def test_tensors_that_do_not_fit_are_listed(self):
        import torch
        from safetensors.torch import load_file, save_file
        folder, _ = self.make("llama", "wrong")
        tensors = load_file(f"{folder}/model.safetensors")
        del tensors["model.norm.weight"]
        tensors["model.rotary"] = torch.zeros(3, 2)
        tensors["model.layers.1.self_attn.k_proj.weight"] = torch.zeros(32, 16)
        save_file(tensors, f"{folder}/model.safetensors", metadata={"format": "pt"})
        self.refused(folder, "lack 1 tensor: model.norm.weight [32]",
                     "another shape of 1 tensor: model.layers.1.self_attn.k_proj.weight is [32, 16] "
                     "in the files and [16, 32] in the model",
                     "lacks 1 tensor: model.rotary [3, 2]")

    def test_what_is_not_supported_is_named(self):
        # gpt_options_test covers every shape that is refused.
        folder, _ = self.make("llama", "unsupported")
        self.refused(folder, "model_type", "mistral", changes={"model_type": "mistral"})
        self.refused(folder, "model.config and model.pretrained are both given",
                     changes={"config": "x.json"})
        self.refused(f"{folder}-none", "unsupported-none")
        with open(f"{folder}/model.safetensors", "r+b") as file:
            file.truncate(1000)
        self.refused(folder, "model.safetensors", "header")


class ModelFolder(EndToEnd):
    """A checkpoint's model/ folder, opened by transformers, is the model that dtrain trained."""

    def windows(self):
        """The validation windows that an evaluation reads, in file order from the first one."""
        with open(f"{self.folder}/data/val.bin", "rb") as file:
            header = struct.unpack("<256i", file.read(1024))
            self.assertEqual(header[0], 20240520)
            tokens = struct.unpack(f"<{header[2]}H", file.read(2 * header[2]))
        return [tokens[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(EVALUATED)]

    def loss_in_transformers(self, model, changes=None):
        """Mean cross-entropy over the windows by LlamaForCausalLM, which must load all tensors."""
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

    def check(self, tied, ranks):
        config = self.write_config(
            f"tied-{tied}.json", eval_interval=20,
            model={**end_to_end.SMALL["model"], "tie_word_embeddings": tied, "rms_norm_eps": 1e-3,
                   "rope_theta": 500.0, "initializer_range": 0.3})  # Large weights, so that attention is not uniform.
        run_dir = self.train(ranks, f"tied-{tied}", ["train_steps=20"], config=config)
        ours = [r["m"]["eval/loss"] for r in self.records(run_dir) if r["kind"] == "eval"]
        self.assertEqual(len(ours), 1)
        model = glob.glob(f"{run_dir}/checkpoints/step-*/model")[0]
        llama, theirs = self.loss_in_transformers(model)
        self.assertLessEqual(abs(theirs - ours[0]), TOLERANCE * ours[0], (theirs, ours[0]))
        with open(f"{model}/config.json", encoding="utf-8") as file:
            self.assertEqual(json.load(file)["tie_word_embeddings"], tied)
        shared = llama.lm_head.weight.data_ptr() == llama.model.embed_tokens.weight.data_ptr()
        self.assertEqual(shared, tied)
        # Shows that the comparison notices another model: a wrong base of the rotation changes the loss.
        _, other = self.loss_in_transformers(
            model, {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}})
        self.assertGreater(abs(other - ours[0]), 3 * TOLERANCE * ours[0])

    def test_an_untied_head(self):
        self.check(tied=False, ranks=2)

    def test_a_tied_head(self):
        self.check(tied=True, ranks=1)


def add_cases():
    for name in MODELS:
        setattr(Import, f"test_both_ways_{name.replace('-', '_')}",
                lambda self, name=name: self.check_both_ways(name))
    for name, ranks, stage in (("gpt2", 2, 1), ("llama-biased", 2, 3), ("qwen2", 1, 0),
                               ("qwen3", 2, 2)):
        setattr(Import, f"test_training_goes_on_in_either_{name.replace('-', '_')}",
                lambda self, name=name, ranks=ranks, stage=stage: self.check_training(
                    name, ranks, [f"zero_optimization.stage={stage}"]))


add_cases()

if __name__ == "__main__":
    end_to_end.main()
