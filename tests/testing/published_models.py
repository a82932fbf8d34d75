"""Common parts of the tests of imported models: small random models of transformers in folders, and runs
that train on a few windows."""
import os
import struct

import end_to_end
from end_to_end import EndToEnd

os.environ["HF_HUB_OFFLINE"] = "1"  # Before transformers is read: nothing here needs a network.
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

SEED = 5
SEQUENCE = 24
WINDOWS = 8  # Windows of the training file, all of which each step reads.
# fp32 sums in another order; logits are of the order of 1.
TOLERANCE = 1e-5
# Tolerance of training losses: rounding of the sums over tokens in forward and in backward.
TRAINING_TOLERANCE = 2 * end_to_end.fp32_tolerance(WINDOWS * SEQUENCE)
SHAPE = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "initializer_range": 0.2, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {"vocab_size": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "initializer_range": 0.2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
          "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-untied": ("gpt2", {**GPT2, "tie_word_embeddings": False, "n_inner": 80}),
    "llama": ("llama", SHAPE),
    "llama-biased": ("llama", {**SHAPE, "attention_bias": True, "mlp_bias": True, "head_dim": 12,
                               "rope_parameters": LLAMA3}),
    "llama-linear": ("llama", {**SHAPE, "tie_word_embeddings": True, "rope_parameters": {
        "rope_type": "linear", "rope_theta": 100.0, "factor": 2.0}}),
    "qwen2": ("qwen2", SHAPE),
    "qwen2-tied": ("qwen2", {**SHAPE, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {**SHAPE, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3-biased": ("qwen3", {**SHAPE, "head_dim": 10, "attention_bias": True}),
}
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


class PublishedModels(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import torch
        print(f"seed {SEED}")
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        for split in ("train", "val"):  # Each file has as many windows as a step or a batch reads.
            with open(f"{cls.folder}/data/{split}.bin", "rb") as file:
                file.seek(1024)
                tokens = file.read(2 * (WINDOWS * SEQUENCE + 1))
            header = struct.pack("<256i", 20240520, 1, len(tokens) // 2, *([0] * 253))
            with open(f"{cls.folder}/{split}.bin", "wb") as file:
                file.write(header + tokens)

    def make(self, name, folder=None, dtype=None, **save):
        """Saves a random model of transformers in a folder, and returns it."""
        import torch
        import transformers
        kind, changes = MODELS[name]
        torch.manual_seed(SEED)
        config = transformers.AutoConfig.for_model(kind, **changes)
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for key, parameter in model.named_parameters():
            if parameter.dim() == 1:  # Biases and norms get values other than the initial ones.
                torch.nn.init.normal_(parameter, 0.0 if key.endswith("bias") else 1.0, 0.2)
        model = model.to(dtype or torch.float32)
        path = f"{self.folder}/models/{folder or name}"
        model.save_pretrained(path, **save)
        return path, model

    def run_config(self, name, model, **changes):
        return self.write_config(
            f"{name}.json", train_batch_size=WINDOWS,
            train_micro_batch_size_per_gpu=4, scheduler={}, gradient_clipping=1.0,
            optimizer={"type": "AdamW", "params": ADAMW}, model=model,
            data={"train": [f"{self.folder}/train.bin"], "validation": [f"{self.folder}/val.bin"],
                  "sequence_length": SEQUENCE}, **changes)

    def windows(self, split):
        import torch
        with open(f"{self.folder}/{split}.bin", "rb") as file:
            file.seek(1024)
            tokens = torch.tensor(struct.unpack(f"<{WINDOWS * SEQUENCE + 1}H", file.read()))
        return torch.stack([tokens[i * SEQUENCE:(i + 1) * SEQUENCE + 1] for i in range(WINDOWS)])

    def logits(self, name, model, ranks=1, sets=()):
        """(tokens, logits, folder of the exported model) by dtrain."""
        from safetensors.torch import load_file
        config = self.run_config(f"{name}-logits", model)
        run_dir = f"{self.folder}/logits-{name}"
        command = self.launch_command(ranks, run_dir, sets, config)
        command[command.index("--") + 1] = os.environ["DTRAIN_MODEL_LOGITS"]
        result = self.run_program(command)
        self.assertEqual(result.code, 0, result.output)
        tensors = load_file(f"{run_dir}/logits/logits.safetensors")
        return tensors["tokens"], tensors["logits"], f"{run_dir}/export"

    def opened(self, folder):
        import torch
        import transformers
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True)
        for problem, names in loading.items():
            self.assertFalse(names, f"{problem}: {names}")
        return model.eval()

    def assert_logits(self, ours, model, tokens):
        import torch
        with torch.no_grad():
            theirs = model(tokens).logits
        self.assertGreater(theirs.std().item(), 0.1)
        self.assertLessEqual((ours - theirs).abs().max().item(),
                             TOLERANCE * max(1.0, theirs.abs().max().item()))

    def losses_in_torch(self, model, steps):
        """Mean losses of AdamW on all training windows, as dtrain trains."""
        import torch
        windows = self.windows("train")
        model.train()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=ADAMW["lr"], betas=ADAMW["betas"],
                                      eps=ADAMW["eps"], weight_decay=ADAMW["weight_decay"])
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            logits = model(windows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses
