"""`dtrain generate` writes transformers' tokens, `dtrain eval` prints its losses, and `dtrain finetune` leads from a
model folder and JSONL to a model folder that both open."""
import glob
import json
import math
import os
import shutil
import unittest

import end_to_end
import numpy as np
from end_to_end import BIN, EndToEnd
from published_models import MODELS, SEED
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizer_kinds import letters_of_bytes

try:
    import sentencepiece
except ImportError:
    sentencepiece = None

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END = 256
VOCABULARY = 256 + len(SPECIAL)
CHATML = (r"{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] }}"
          r"{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
# Their letters, U+0100 among them, are those by which byte-level vocabularies write bytes.
SCRIPTS = ["Once upon a time", "Straße, Ābols un Ġ Ċ", "Привет, мир", "世界 你好", "مرحبا بالعالم",
           "🙂 e\u0301 x\t= [1]", "two\nlines\n\n  and\r\nmore"]
# fp32 sums in another order, over some hundred tokens.
TOLERANCE = 1e-5


def save_tokenizer(folder):
    """Bytes as tokens, by the kind of tokenizer that GPT-2 and Qwen have."""
    letters = {chr(letter): byte for byte, letter in letters_of_bytes().items()}
    tokenizer = Tokenizer(models.BPE(vocab=letters, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.save(f"{folder}/tokenizer.json")
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump({"eos_token": SPECIAL[0], "tokenizer_class": "PreTrainedTokenizerFast"}, file)
    return tokenizer


class Generate(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        import torch
        print(f"seed {SEED}")
        torch.set_num_threads(1)

    def make(self, name, folder, vocabulary=VOCABULARY, ends=(END, END), **generation):
        import torch
        import transformers
        kind, changes = MODELS[name]
        torch.manual_seed(SEED)
        config = transformers.AutoConfig.for_model(
            kind, **{**changes, "vocab_size": vocabulary, "bos_token_id": ends[0], "eos_token_id": ends[1]})
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
        for key, value in generation.items():
            setattr(model.generation_config, key, value)
        path = f"{self.folder}/{folder}"
        model.save_pretrained(path)
        return path, model, save_tokenizer(path)

    def dtrain(self, *words, expect=0, env=None):
        result = self.run_program([f"{BIN}/dtrain", *words], {"OMP_NUM_THREADS": "1", **(env or {})})
        self.assertEqual(result.code, expect, result.output)
        return result.output

    def objects(self, *words):
        """The lines that are JSON objects, as they are among others on stderr."""
        return [json.loads(line) for line in self.dtrain(*words, "--json").splitlines() if line.startswith("{")]

    def write(self, name, lines):
        path = f"{self.folder}/{name}"
        with open(path, "w", encoding="utf-8") as file:
            file.write("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
        return path

    def test_greedy_tokens_are_those_of_transformers(self):
        import torch
        prompts = ["The cat", "Straße 世界 🙂"]
        file = self.write("prompts.txt", prompts)
        for name in ("gpt2", "llama-biased", "qwen2-tied", "qwen3-biased"):
            generation = {"repetition_penalty": 1.3} if name == "qwen2-tied" else {}
            folder, model, tokenizer = self.make(name, f"greedy-{name}", **generation)
            rows = self.objects("generate", folder, "--file", file, "--max-tokens", "24")
            self.assertEqual([row["prompt"] for row in rows], prompts)
            for row in rows:
                ids = tokenizer.encode(row["prompt"]).ids
                self.assertEqual(row["prompt_tokens"], ids)
                theirs = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24, pad_token_id=END)
                theirs = theirs[0, len(ids):].tolist()
                self.assertEqual(row["tokens"], theirs, (name, row["prompt"]))
                text = tokenizer.decode([t for t in theirs if t != END])
                self.assertEqual(row["text"], text)
                self.assertEqual(row["end"], "stop" if theirs[-1] == END else "length")

    @unittest.skipIf(sentencepiece is None, "Python has no sentencepiece: ./dev deps test")
    def test_a_folder_whose_tokenizer_is_sentencepieces_model_alone_generates(self):
        import torch
        prompts = ["The cat sat.", "Straße 世界 🙂"]
        file = self.write("piece-prompts.txt", prompts)
        begin, end = 1, 2  # SentencePiece numbers them so.
        for kind in ("bpe", "unigram"):
            folder, model, _ = self.make("llama", f"pieces-{kind}", vocabulary=400, ends=(begin, end))
            os.remove(f"{folder}/tokenizer.json")
            os.remove(f"{folder}/tokenizer_config.json")
            sentencepiece.SentencePieceTrainer.train(
                input=__file__, model_prefix=f"{folder}/tokenizer", model_type=kind, vocab_size=400,
                byte_fallback=True, num_threads=1, minloglevel=2)
            os.remove(f"{folder}/tokenizer.vocab")
            pieces = sentencepiece.SentencePieceProcessor(f"{folder}/tokenizer.model")
            rows = self.objects("generate", folder, "--file", file, "--max-tokens", "24")
            self.assertEqual([row["prompt"] for row in rows], prompts)
            for row in rows:
                ids = [begin, *pieces.encode(row["prompt"])]  # So transformers begins a Llama's prompt.
                self.assertEqual(row["prompt_tokens"], ids, kind)
                theirs = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24, pad_token_id=end)
                theirs = theirs[0, len(ids):].tolist()
                self.assertEqual(row["tokens"], theirs, (kind, row["prompt"]))
                self.assertEqual(row["text"], pieces.decode([t for t in theirs if t != end]), kind)
                self.assertEqual(row["end"], "stop" if theirs[-1] == end else "length")

    def train_on_bytes(self, name):
        """A corpus of bytes, and the run directory of a model that was trained on it."""
        data, run = f"{self.folder}/{name}-data", f"{self.folder}/{name}-run"
        for i, text in enumerate(SCRIPTS * 8):
            os.makedirs(f"{self.folder}/{name}", exist_ok=True)
            with open(f"{self.folder}/{name}/{i}.txt", "w", encoding="utf-8") as file:
                file.write(f"{i}: {text}")
        self.dtrain("data", "prepare", "--out", data, f"{self.folder}/{name}")
        config = self.write_config(
            f"{name}.json", train_steps=2, checkpoint={"interval": 1}, sample={"tokens": 0},
            model={"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "max_position_embeddings": 128},
            data={"train": [f"{data}/train.bin"], "validation": [f"{data}/val.bin"], "sequence_length": 16})
        output = self.dtrain("launch", "--nproc-per-node", "2", "--run-dir", run, "--", f"{BIN}/dtrain-gpt", config)
        self.assertIn(f'dtrain generate {run} "', output)
        return data, run

    def test_a_model_that_was_trained_on_bytes_writes_text(self):
        import torch
        import transformers
        data, run = self.train_on_bytes("books")
        newest, oldest = (sorted(glob.glob(f"{run}/checkpoints/step-*/model"))[i] for i in (-1, 0))
        self.assertNotEqual(newest, oldest)
        tokenizer = transformers.AutoTokenizer.from_pretrained(newest)
        self.assertEqual((len(tokenizer), tokenizer.eos_token_id), (256, 0))
        alone = Tokenizer.from_file(f"{data}/corpus.tokenizer/tokenizer.json")
        model = transformers.AutoModelForCausalLM.from_pretrained(newest, dtype=torch.float32).eval()
        prompts = [text for text in SCRIPTS if "\n" not in text]
        file = self.write("byte-prompts.txt", prompts)
        rows = self.objects("generate", run, "--file", file, "--max-tokens", "24")
        self.assertEqual([row["prompt"] for row in rows], prompts)
        for row in rows:
            ids = list(row["prompt"].encode())
            for theirs in (row["prompt_tokens"], tokenizer(row["prompt"]).input_ids, alone.encode(row["prompt"]).ids):
                self.assertEqual(theirs, ids)
            self.assertEqual(tokenizer.decode(ids), row["prompt"])
            theirs = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=24)[0, len(ids):].tolist()
            self.assertEqual(row["tokens"], theirs, row["prompt"])
            self.assertEqual(row["end"], "stop" if theirs[-1] == 0 else "length")
            self.assertEqual(row["text"], bytes(t for t in theirs if t).decode(errors="replace"))
        # An end token ends the text, which transformers learns from the same files.
        self.assertEqual(model.generation_config.eos_token_id, 0)
        # The same model by each of its names, and its loss on the tokens and on their text.
        words = [prompts[0], "--max-tokens", "24"]
        for name in (f"{run}/checkpoints", os.path.dirname(newest)):
            self.assertEqual([row["tokens"] for row in self.objects("generate", name, *words)], [rows[0]["tokens"]])
        [result] = self.objects("eval", run, "--data", f"{data}/val.bin", "--sequence-length", "32")
        tokens = np.fromfile(f"{data}/val.bin", np.uint16, offset=1024).tolist()
        expected = self.loss_in_torch(model, tokens, 32)
        self.assertLessEqual(abs(result["loss"] - expected), TOLERANCE * expected)
        # An exported model has the files too.
        out = f"{self.folder}/books-out"
        self.dtrain("checkpoint", "export", run, out)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            with open(f"{out}/{name}", "rb") as ours, open(f"{data}/corpus.tokenizer/{name}", "rb") as kept:
                self.assertEqual(ours.read(), kept.read())
        # A folder of an earlier version has no tokenizer: one line says what to add, and that works.
        shutil.copytree(newest, f"{self.folder}/books-old", ignore=shutil.ignore_patterns("*tok*", "generation*"))
        output = self.dtrain("generate", f"{self.folder}/books-old", *words, expect=64)
        self.assert_one_line(output, "has no tokenizer", "--tokenizer bytes")
        [row] = self.objects("generate", f"{self.folder}/books-old", *words, "--tokenizer", "bytes")
        self.assertEqual(row["tokens"], rows[0]["tokens"])
        # A damaged model gives way to the one before it.
        with open(glob.glob(f"{newest}/*.safetensors")[0], "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
        self.assert_one_line(self.dtrain("generate", run, *words), f"the model is {oldest}")

    def test_a_chat_prompt_is_that_of_the_template_and_text_arrives_whole(self):
        import transformers
        folder, _, _ = self.make("qwen3", "chat")
        with open(f"{folder}/chat_template.jinja", "w", encoding="utf-8") as file:
            file.write(CHATML)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]
        expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True,
                                                 return_dict=False)
        words = ["generate", folder, "--template", "chatml", "--system", "Be brief.", "--max-tokens", "5"]
        [row] = self.objects(*words, "Why?")
        self.assertEqual(row["prompt_tokens"], expected)
        # A user's text never ends the turn.
        [row] = self.objects(*words, "<|im_end|>?")
        self.assertEqual(row["prompt_tokens"].count(SPECIAL.index("<|im_end|>") + 256), 2)
        # The streamed text is the text. (Python reads a carriage return as the end of a line.)
        draw = ["--temperature", "1", "--seed", "3", "--max-tokens", "30"]
        streamed = self.dtrain("generate", folder, "Why?", "--quiet", *draw)
        [whole] = self.objects("generate", folder, "Why?", *draw)
        self.assertIn(whole["text"].replace("\r\n", "\n").replace("\r", "\n") + "\n", streamed)

    def loss_in_torch(self, model, tokens, length):
        import torch
        total = 0.0
        for begin in range(0, len(tokens) - 1, length):
            row = torch.tensor(tokens[begin:begin + length + 1])
            with torch.no_grad():
                logits = model(row[None, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum").item()
        return total / (len(tokens) - 1)

    def test_losses_are_those_of_transformers(self):
        folder, model, tokenizer = self.make("llama", "eval")
        texts = ["A first text, with é and 世界.", "A second one.\n" * 9]
        corpus = self.write("texts.jsonl", [{"text": text} for text in texts])
        tokens = [id for text in texts for id in [*tokenizer.encode(text).ids, END]]
        expected = self.loss_in_torch(model, tokens, 24)
        [result] = self.objects("eval", folder, "--data", corpus, "--sequence-length", "24")
        self.assertEqual(result["tokens"], len(tokens) - 1)
        self.assertEqual(result["windows"], -(-(len(tokens) - 1) // 24))
        self.assertLessEqual(abs(result["loss"] - expected), TOLERANCE * expected)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["loss"]), delta=1e-9 * result["perplexity"])
        # Token files, without a length: the model's 64 positions.
        self.dtrain("data", "prepare", "--out", f"{self.folder}/tokens", "--tokenizer", folder, corpus)
        tokens = np.fromfile(f"{self.folder}/tokens/val.bin", np.uint16, offset=1024).tolist()
        expected = self.loss_in_torch(model, tokens, 64)
        [result] = self.objects("eval", folder, "--data", f"{self.folder}/tokens/val.bin")
        self.assertEqual(result["tokens"], len(tokens) - 1)
        self.assertLessEqual(abs(result["loss"] - expected), TOLERANCE * expected)

    def test_finetune_makes_a_model_of_a_model_and_a_file(self):
        import transformers
        folder, model, _ = self.make("llama", "base")
        with open(f"{folder}/chat_template.jinja", "w", encoding="utf-8") as file:
            file.write(CHATML)
        samples = [{"prompt": f"{i}", "completion": "yes" if i % 2 else "no"} for i in range(40)]
        data = self.write("samples.jsonl", [*samples, {"prompt": "x", "completion": ""}])
        out, run = f"{self.folder}/tuned", f"{self.folder}/finetune-run"
        words = ["finetune", folder, data, "--out", out, "--run-dir", run, "--nproc", "2", "--epochs", "12",
                 "--lr", "1e-2", "--set", "checkpoint.interval=0"]
        output = self.dtrain(*words)
        self.assert_one_line(output, "by the template chatml")
        self.assert_one_line(output, "1 without a completion")
        self.assert_one_line(output, f"merged model: {out}")
        tuned = transformers.AutoModelForCausalLM.from_pretrained(out)
        changed = [key for key, value in tuned.state_dict().items() if not value.equal(model.state_dict()[key])]
        self.assertTrue(changed)
        loss = {}
        for name in (folder, out):
            [result] = self.objects("eval", name, "--data", data, "--template", "chatml")
            loss[name] = result["loss"]
        self.assertLess(loss[out], 0.5 * loss[folder])
        # Again with more epochs, as after a kill behind the export and before its record: the tokens are there, the run
        # goes on by a schedule of its new length, and the model is written anew.
        os.remove(f"{run}-data/finetune-output.json")
        before = self.losses(run)
        words[words.index("--epochs") + 1] = "13"
        output = self.dtrain(*words)
        self.assert_one_line(output, "are of this data; they are used again")
        self.assert_one_line(output, f"merged model: {out}")
        self.assertTrue(glob.glob(f"{out}/*.safetensors") and os.path.exists(f"{out}/tokenizer.json"))
        self.assertTrue(os.path.exists(f"{run}-data/finetune-output.json"))
        after = self.losses(run)
        self.assertGreater(len(after), len(before))
        self.assertEqual({step: after[step] for step in before}, before)

    def test_bad_input_is_named(self):
        folder, _, _ = self.make("qwen2", "bad")
        data = self.write("one.jsonl", [{"prompt": "a", "completion": "b"}])
        other, _, _ = self.make("qwen2", "bad-other")
        small, _, _ = self.make("qwen2", "bad-small", vocabulary=100, ends=(0, 0))
        self.dtrain("data", "prepare", "--out", f"{self.folder}/bytes", "--ext", "jsonl", self.folder)
        refused = [
            (["finetune", folder, data, "--out", f"{self.folder}/no"], ["has no chat template", "--template"]),
            (["finetune", folder, data, "--out", folder, "--template", "plain"], ["the model's own folder"]),
            (["finetune", folder, data, "--out", f"{self.folder}/data", "--template", "plain"],
             ["is no model folder"]),
            (["finetune", folder, data, "--out", other, "--template", "plain"],
             ["bad-other holds a model that this run has not written", "--overwrite"]),
            (["finetune", folder, data, "--out", f"{self.folder}/no", "--template", "plain", "--sequence-length",
              "65"], ["--sequence-length 65", "64 positions"]),
            (["generate", folder, "a", "--template", "nothing"], ["template \"nothing\" is unknown", "chatml"]),
            (["generate", folder, "a" * 64], ["the prompt has 64 tokens", "64 positions"]),
            (["generate", folder, "a", "--repetition-penalty", "1e-30"], ["--repetition-penalty is 1e-30", "0.01"]),
            (["generate", f"{self.folder}/nowhere", "a"], ["nowhere is no model folder", "run directory"]),
            (["eval", folder, "--data", f"{self.folder}/bytes/train.bin"],
             ["train.bin was made by a tokenizer of 256 ids", f"the tokenizer in {folder} has 259", "two models"]),
            (["eval", folder, "--tokenizer", other, "--data", f"{self.folder}/bytes/train.bin"],
             [f"but the tokenizer in {other} has 259", "two models"]),
            (["generate", small, "a", "--tokenizer", "bytes"],
             [f"the tokenizer of bytes has 256 tokens, but the model in {small} has 100"]),
            (["eval", folder, "--data", data], ["one.jsonl:1", "no member \"text\""]),
        ]
        for words, parts in refused:
            output = self.dtrain(*words, expect=64)
            self.assert_one_line(output, *parts)
        # A tokenizer of another model.
        with open(f"{folder}/tokenizer.json", encoding="utf-8") as file:
            tokenizer = Tokenizer.from_str(file.read())
        tokenizer.add_special_tokens([AddedToken("<|another|>", special=True)])
        tokenizer.save(f"{folder}/tokenizer.json")
        for words in (["generate", folder, "a"],
                      ["finetune", folder, data, "--out", f"{self.folder}/no", "--template", "plain",
                       "--run-dir", f"{self.folder}/bad-run"]):
            self.assert_one_line(self.dtrain(*words, expect=64), "260", "259", "two models")

    def test_a_training_ends_with_a_text_in_the_models_own_vocabulary(self):
        folder, _, _ = self.make("llama", "sampled")
        corpus = self.write("more.jsonl", [{"text": f"text number {i} of some"} for i in range(60)])
        self.dtrain("data", "prepare", "--out", f"{self.folder}/more", "--tokenizer", folder, corpus)
        config = self.write_config(
            "sampled.json", model={"pretrained": folder}, train_steps=1, sample={"prompt": "Once", "tokens": 4},
            data={"train": [f"{self.folder}/more/train.bin"], "validation": [f"{self.folder}/more/val.bin"],
                  "sequence_length": 16})
        output = self.dtrain("launch", "--nproc-per-node", "2", "--run-dir", f"{self.folder}/sampled-run", "--",
                             f"{BIN}/dtrain-gpt", config)
        self.assertRegex(output, r"sampled text:\s+Once")
        # A model of its own has the tokenizer of the corpus, which rank 0 alone looks for.
        config = self.write_config(
            "own.json", train_steps=1, sample={"prompt": "Once", "tokens": 4}, zero_optimization={"stage": 3},
            model={"vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
                   "num_attention_heads": 2, "max_position_embeddings": 64},
            data={"train": [f"{self.folder}/more/train.bin"], "validation": [f"{self.folder}/more/val.bin"],
                  "sequence_length": 16})
        output = self.dtrain("launch", "--nproc-per-node", "2", "--run-dir", f"{self.folder}/own-run", "--",
                             f"{BIN}/dtrain-gpt", config)
        self.assertRegex(output, r"sampled text:\s+Once")


if __name__ == "__main__":
    end_to_end.main()
