"""dtrain-finetune trains like peft and transformers, and both open its files."""
import glob
import json
import os

import end_to_end
from published_models import TOLERANCE, TRAINING_TOLERANCE, PublishedModels

LORA = {"r": 4, "lora_alpha": 12, "target_modules": ["q_proj", "down_proj"]}


class Finetune(PublishedModels):
    def finetune(self, name, folder, finetune, ranks=1, sets=(), expect=0, steps=4):
        """The run directory of `steps` steps on the training windows, and the output."""
        config = self.run_config(name, {"pretrained": folder}, finetune=finetune)
        run_dir = f"{self.folder}/finetune-{name}"
        command = self.launch_command(ranks, run_dir, [f"train_steps={steps}", *sets], config,
                                      program="dtrain-finetune")
        result = self.run_program(command)
        self.assertEqual(result.code, expect, result.output)
        return run_dir, result.output

    def with_adapter(self, base, adapter, trainable=False):
        import peft
        return peft.PeftModel.from_pretrained(self.opened(base), adapter, is_trainable=trainable)

    def assert_same_logits(self, ours, theirs):
        import torch
        tokens = self.windows("val")[:4, :-1]
        with torch.no_grad():
            first, second = ours.eval()(tokens).logits, theirs.eval()(tokens).logits
        self.assertLessEqual((first - second).abs().max().item(),
                             TOLERANCE * max(1.0, second.abs().max().item()))

    def check_lora(self, name, lora, ranks, stage, sets=()):
        sets = [f"zero_optimization.stage={stage}", *sets]
        base, model = self.make(name, f"{name}-lora")
        options = {"method": "lora", "lora": lora}
        # With lr 0 the result is the initial adapter, for any number of ranks, from which peft then trains.
        begun, _ = self.finetune(f"{name}-begin", base, options, sets=[
            "optimizer.params.lr=0", "optimizer.params.weight_decay=0"], steps=1)
        run_dir, _ = self.finetune(f"{name}-lora", base, options, ranks, sets)
        peft_model = self.with_adapter(base, f"{begun}/export/adapter", trainable=True)
        theirs = self.losses_in_torch(peft_model, 4)
        ours = self.losses(run_dir)
        self.assertLess(theirs[3], theirs[0])
        for step, loss in enumerate(theirs, 1):
            self.assertLessEqual(abs(ours[step] - loss), TRAINING_TOLERANCE * loss, (step, ours, theirs))
        # Compares the adapter on its base with the merged model.
        adapted = self.with_adapter(base, f"{run_dir}/export/adapter")
        merged = self.opened(f"{run_dir}/export/merged")
        self.assert_same_logits(adapted, merged)
        self.assert_same_logits(peft_model, merged)
        changed = {key for key, value in model.state_dict().items()
                   if not value.equal(merged.state_dict()[key])}
        targets = tuple(f".{t}.weight" for t in lora["target_modules"])
        self.assertTrue(changed)
        self.assertTrue(all(key.endswith(targets) for key in changed), changed)
        tokens, logits, _ = self.logits(f"{name}-merged",
                                        {"pretrained": f"{run_dir}/export/merged"})
        self.assert_logits(logits, merged, tokens)
        return base, run_dir

    def test_lora_of_llama_is_pefts(self):
        base, run_dir = self.check_lora("llama", LORA, ranks=2, stage=0)
        # Checkpoints hold only the adapters.
        from safetensors.torch import load_file
        stored = {}
        for path in glob.glob(f"{run_dir}/checkpoints/step-*4.*/model/*.safetensors"):
            stored.update(load_file(path))
        adapter = load_file(f"{run_dir}/export/adapter/adapter_model.safetensors")
        self.assertEqual(set(stored), set(adapter))
        self.assertTrue(all(".lora_" in key for key in stored))
        # A run that was stopped half way resumes to the same bits.
        options = {"method": "lora", "lora": LORA}
        self.finetune("again", base, options, 2, steps=2)
        again, _ = self.finetune("again", base, options, 2, steps=4)
        for key, value in load_file(f"{again}/export/adapter/adapter_model.safetensors").items():
            self.assertTrue(value.equal(adapter[key]), key)

    def test_adapters_do_not_go_on_over_another_base(self):
        import torch
        base, model = self.make("llama", "other-base")
        options = {"method": "lora", "lora": LORA}
        self.finetune("other-base", base, options, steps=1)
        with torch.no_grad():
            model.model.layers[0].self_attn.k_proj.weight.mul_(1.5)
        model.save_pretrained(base)
        _, output = self.finetune("other-base", base, options, steps=2, expect=64)
        self.assert_one_line(output, "the base model differs from the one that the adapters were trained on: "
                             "weights_digest was ", "restore its files, or start anew with --fresh")

    def test_lora_of_gpt2_is_pefts_at_stage_3(self):
        self.check_lora("gpt2", {"r": 3, "target_modules": ["c_attn", "c_fc"], "use_rslora": True},
                        ranks=2, stage=3)

    def test_lora_of_qwen3_is_pefts_with_recomputed_layers(self):
        self.check_lora("qwen3", {**LORA, "target_modules": ["o_proj", "up_proj"]}, ranks=2, stage=2,
                        sets=["activation_checkpointing.mode=full"])

    def test_targets_by_pattern(self):
        base, _ = self.make("qwen2", "patterns")
        run_dir, _ = self.finetune("patterns", base, {"export_merged": False, "lora": {
            "r": 2, "target_modules": ["model.layers.1.self_attn.*"]}}, steps=1)
        with open(f"{run_dir}/export/adapter/adapter_config.json", encoding="utf-8") as file:
            config = json.load(file)
        names = [f"model.layers.1.self_attn.{p}_proj" for p in "qkvo"]
        self.assertEqual(sorted(config["target_modules"]), sorted(names))
        self.assertEqual(config["r"], 2)
        self.with_adapter(base, f"{run_dir}/export/adapter")
        self.assertEqual(os.listdir(f"{run_dir}/export"), ["adapter"])
        run_dir, _ = self.finetune("all-linear", base, {"lora": {
            "r": 2, "target_modules": "all-linear"}}, steps=1)
        self.assert_same_logits(self.with_adapter(base, f"{run_dir}/export/adapter"),
                                self.opened(f"{run_dir}/export/merged"))

    def test_lora_in_bf16_keeps_the_base(self):
        import torch
        base, model = self.make("llama", "lora-bf16", dtype=torch.bfloat16)
        run_dir, _ = self.finetune("bf16", base, {"lora": {"r": 4, "target_modules": ["q_proj"]}},
                                   sets=["bf16.enabled=true"])
        from safetensors.torch import load_file
        merged = load_file(f"{run_dir}/export/merged/model.safetensors")
        for key, value in model.state_dict().items():
            self.assertEqual(merged[key].dtype, torch.bfloat16)
            self.assertEqual(value.equal(merged[key]), not key.endswith("q_proj.weight"), key)

    def test_all_weights(self):
        base, model = self.make("qwen2-tied", "full")
        for name, text in (("tokenizer.json", "{}"), ("generation_config.json", "{}")):
            with open(f"{base}/{name}", "w", encoding="utf-8") as file:
                file.write(text)
        run_dir, _ = self.finetune("full", base, {"method": "full"}, ranks=2,
                                   sets=["zero_optimization.stage=3"])
        theirs = self.losses_in_torch(model, 4)
        ours = self.losses(run_dir)
        for step, loss in enumerate(theirs, 1):
            self.assertLessEqual(abs(ours[step] - loss), TRAINING_TOLERANCE * loss, (step, ours, theirs))
        self.assert_same_logits(self.opened(f"{run_dir}/export/model"), model)
        self.assertTrue(os.path.exists(f"{run_dir}/export/model/tokenizer.json"))
        # A second run to the same step writes the export again over the earlier one.
        self.finetune("full", base, {"method": "full"}, ranks=2, sets=["zero_optimization.stage=3"])
        self.opened(f"{run_dir}/export/model")

    def test_bad_input_is_named(self):
        base, _ = self.make("llama", "bad")
        cases = [
            ({"method": "qlora"}, ["finetune.method", "qlora", "full, lora"]),
            ({"method": "full", "lora": LORA}, ["finetune.lora is given"]),
            ({"method": "full", "export_merged": False}, ["finetune.export_merged is false"]),
            ({"lora": {"rank": 4}}, ["finetune.lora.rank", "unknown key"]),
            ({"lora": {"r": 0}}, ["finetune.lora.r", "allowed"]),
            ({"lora": {"r": 33, "target_modules": ["q_proj"]}}, ["finetune.lora.r 33", "1 to 32"]),
            ({"lora": {"target_modules": ["c_attn"]}}, ["c_attn", "names no projection", "q_proj"]),
            ({"lora": {"target_modules": []}}, ["target_modules", "allowed"]),
            ({"out": base}, [f"finetune.out {base} holds a model", "finetune.overwrite"]),
        ]
        for i, (options, parts) in enumerate(cases):
            _, output = self.finetune(f"bad-{i}", base, options, expect=64)
            for part in parts:
                self.assertIn(part, output)
        config = self.run_config("nothing", {})
        result = self.run_program(self.launch_command(1, f"{self.folder}/nothing", (), config,
                                                      program="dtrain-finetune"))
        self.assertEqual(result.code, 64, result.output)
        self.assertIn("model.pretrained is not set", result.output)

    def test_something_else_in_the_way_of_the_export_is_left_alone(self):
        base, _ = self.make("llama", "in-the-way")
        run_dir = f"{self.folder}/finetune-way"
        os.makedirs(f"{run_dir}/export/model")
        with open(f"{run_dir}/export/model/mine.txt", "w", encoding="utf-8") as file:
            file.write("mine")
        _, output = self.finetune("way", base, {"method": "full"}, steps=1, expect=64)
        self.assertIn("is no model folder; it is left alone", output)
        self.assertTrue(os.path.exists(f"{run_dir}/export/model/mine.txt"))


if __name__ == "__main__":
    end_to_end.main()
