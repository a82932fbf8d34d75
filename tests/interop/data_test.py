"""`dtrain data`: its files against readers of Megatron-LM, nanoGPT and llm.c that are written here from
their formats, instruction data against a straightforward packing with `tokenizers`, and the way from
a text to a training."""
import glob
import gzip
import json
import os
import random
import struct

import end_to_end
import numpy as np
from end_to_end import BIN, EndToEnd
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 600
IM_START, IM_END, END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
LLAMA3_TOKENS = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ROW = 96
# The templates that Qwen2.5 and Llama 3 are published with; Qwen's without what it does for calls of tools.
PUBLISHED = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
              "'<|im_end|>' + '\\n' }}{% endfor %}",
    "qwen": """{%- if messages[0]['role'] == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}
{%- else %}
    {{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant") %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}""",
    "llama3": "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + "
              "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}"
              "{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"}


def texts(count, seed):
    """Texts of several scripts, with blanks, code and emoji."""
    rng = random.Random(seed)
    words = ["the", "cat", "sat", "naïve", "Straße", "привет", "世界", "مرحبا", "🙂👍", "x = f(y)\n\t", "\n\n", "1234",
             "don't", "  ", "e\u0301", "<|im_end|>"]
    return [f"{i}: " + " ".join(rng.choices(words, k=rng.randint(3, 40))) for i in range(count)]


def train_tokenizer(path):
    """A byte-level BPE by `tokenizers`, in the folder of a model."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=[AddedToken(token, special=True)
                        for token in (END, IM_START, IM_END, *LLAMA3_TOKENS)])
    tokenizer.train_from_iterator(texts(500, 1), trainer)
    os.makedirs(path)
    tokenizer.save(f"{path}/tokenizer.json")
    with open(f"{path}/tokenizer_config.json", "w", encoding="utf-8") as file:
        json.dump({"eos_token": END}, file)
    return tokenizer


def read_llmc(path):
    header = np.fromfile(path, np.int32, 256)
    width = {(20240520, 1): np.uint16, (20240801, 7): np.uint32}[header[0], header[1]]
    tokens = np.fromfile(path, width, offset=1024)
    assert header[2] == len(tokens)
    return tokens


def read_megatron(prefix):
    """The sequences, as IndexedDataset of Megatron-LM reads them."""
    with open(f"{prefix}.idx", "rb") as file:
        assert file.read(9) == b"MMIDIDX\x00\x00"
        version, code, sequences, documents = struct.unpack("<QBQQ", file.read(25))
        assert version == 1
        dtype = {4: np.int32, 8: np.uint16}[code]
        lengths = np.frombuffer(file.read(4 * sequences), np.int32)
        pointers = np.frombuffer(file.read(8 * sequences), np.int64)
        document_indices = np.frombuffer(file.read(8 * documents), np.int64)
        assert file.read() == b""
    assert document_indices[0] == 0 and document_indices[-1] == sequences
    data = np.fromfile(f"{prefix}.bin", np.uint8)
    return [data[p:p + n * np.dtype(dtype).itemsize].view(dtype) for p, n in zip(pointers, lengths, strict=True)]


def write_megatron(prefix, sequences, code, dtype):
    lengths = np.array([len(s) for s in sequences], np.int32)
    pointers = np.concatenate([[0], np.cumsum(lengths[:-1], dtype=np.int64) * np.dtype(dtype).itemsize])
    with open(f"{prefix}.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(sequences), len(sequences) + 1))
        file.write(lengths.tobytes() + pointers.astype(np.int64).tobytes())
        file.write(np.arange(len(sequences) + 1, dtype=np.int64).tobytes())
    np.concatenate(sequences).astype(dtype).tofile(f"{prefix}.bin")


def encode_pieces(tokenizer, pieces):
    """Tokens and whether each is trained on; pieces are (text or special token, trained)."""
    ids, trained = [], []
    for text, learns in pieces:
        special = tokenizer.token_to_id(text) if text in (IM_START, IM_END, END) else None
        tokenizer.encode_special_tokens = True  # Special tokens in the text stay text.
        more = [special] if special is not None else tokenizer.encode(text, add_special_tokens=False).ids
        ids += more
        trained += [learns] * len(more)
    return ids, trained


def chatml(turns):
    """Neighbouring texts that are not trained on are one piece, as in the whole text."""
    pieces = []
    for number, (role, content) in enumerate(turns):
        learns = role == "assistant"
        if number > 0:
            pieces.append(("\n", False))
        pieces.append((IM_START, False))
        if learns:
            pieces += [(f"{role}\n", False), (content, True)]
        else:
            pieces.append((f"{role}\n{content}", False))
        pieces.append((IM_END, learns))
    return [*pieces, ("\n", False)]


def pack(lengths, row):
    """Best fit decreasing, by a search through all rows."""
    rows, left = [], []
    for sample in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        fitting = [(left[r], r) for r in range(len(rows)) if left[r] >= lengths[sample]]
        if fitting:
            _, r = min(fitting)
        else:
            r = len(rows)
            rows.append([])
            left.append(row)
        rows[r].append(sample)
        left[r] -= lengths[sample]
    return rows


class Data(EndToEnd):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = f"{cls.folder}/model"
        cls.tokenizer = train_tokenizer(cls.model)

    def data(self, *words, code=0):
        result = self.run_program([f"{BIN}/dtrain", "data", *words])
        self.assertEqual(result.code, code, result.output)
        return result.output

    def write_lines(self, name, records, opened=open):
        path = f"{self.folder}/{name}"
        with opened(path, "wt", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=len(records) % 2 == 0) + "\n")
        return path

    def expected_documents(self, some):
        end = self.tokenizer.token_to_id(END)
        self.tokenizer.encode_special_tokens = True
        return [[*self.tokenizer.encode(text, add_special_tokens=False).ids, end] for text in some]

    def test_tokens_equal_those_of_tokenizers_in_both_formats(self):
        some = texts(400, 2)
        path = self.write_lines("text.jsonl.gz", [{"text": t} for t in some], gzip.open)
        out = f"{self.folder}/text"
        printed = self.data("prepare", "--out", out, "--tokenizer", self.model, path)
        self.assertIn("data.document_token=", printed)
        documents = self.expected_documents(some)
        split = {}
        for name in ("train", "val"):
            tokens = read_llmc(f"{out}/{name}.bin").tolist()
            split[name] = [d for d in documents if any(tokens[i:i + len(d)] == d for i in range(len(tokens)))]
            self.assertEqual(tokens, [token for d in split[name] for token in d], "in the order of the file")
        self.assertEqual(len(split["train"]) + len(split["val"]), 400)
        megatron = f"{self.folder}/megatron"
        self.data("prepare", "--out", megatron, "--tokenizer", self.model, "--format", "megatron", path)
        self.assertEqual([s.tolist() for s in read_megatron(f"{megatron}/train")], split["train"])
        with open(f"{out}/corpus.json", encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual(manifest["vocabulary"], self.tokenizer.get_vocab_size())
        self.assertEqual(manifest["document_token"], self.tokenizer.token_to_id(END))

    def test_files_of_megatron_and_nanogpt_are_shown(self):
        prefix = f"{self.folder}/theirs"
        for code, dtype in ((4, np.int32), (8, np.uint16)):
            write_megatron(prefix, [np.array([5, 6, 7]), np.array([8, 9])], code, dtype)
            shown = self.data("show", f"{prefix}.bin")
            self.assertIn("format      Megatron", shown)
            self.assertIn("head        5 6 7 8 9\n", shown)
        np.array([300, 301, 302], np.uint16).tofile(f"{self.folder}/nano.bin")
        self.assertIn("head        300 301 302\n",
                      self.data("show", "--format", "nanogpt-u16", f"{self.folder}/nano.bin"))

    def conversations(self):
        rng = random.Random(4)
        said = texts(160, 5)
        chats = [[("user", said[4 * i][:60]), ("assistant", said[4 * i + 1][:60] + "x")] for i in range(40)]
        for i in range(0, 40, 3):
            chats[i] += [("user", said[4 * i + 2][:30]), ("assistant", said[4 * i + 3][:30] + "y")]
        rng.shuffle(chats)
        return chats

    def test_packed_samples_equal_a_straightforward_packing(self):
        chats = self.conversations()
        path = self.write_lines("chats.jsonl", [
            {"messages": [{"role": role, "content": content} for role, content in chat]} for chat in chats])
        out = f"{self.folder}/chats"
        self.data("prepare", "--out", out, "--tokenizer", self.model, "--template", "chatml",
                  "--sequence-length", str(ROW), "--long-samples", "cut", "--validation-percent", "20", path)
        samples = []
        for chat in chats:
            ids, trained = encode_pieces(self.tokenizer, chatml(chat))
            samples.append((ids[:ROW], trained[:ROW]))
        samples = [s for s in samples if any(s[1])]
        found = 0
        for name in ("train", "val"):
            tokens = read_llmc(f"{out}/{name}.bin").tolist()
            mask = np.fromfile(f"{out}/{name}.bin.mask", np.uint8, offset=64)
            mine = [s for s in samples if any(tokens[i:i + len(s[0])] == s[0] for i in range(len(tokens)))]
            expected_tokens, expected_mask = [], []
            end = self.tokenizer.token_to_id(END)
            for row in pack([len(ids) for ids, _ in mine], ROW):
                for ids, trained in (mine[s] for s in row):
                    expected_tokens += ids
                    expected_mask += [int(t) | (2 if i == 0 else 0) for i, t in enumerate(trained)]
                padding = -len(expected_tokens) % ROW
                expected_tokens += [end] * padding
                expected_mask += [2 if i == 0 else 0 for i in range(padding)]
            self.assertEqual(tokens, [*expected_tokens, end])
            self.assertEqual(mask.tolist(), [*expected_mask, 2])
            found += len(mine)
        self.assertEqual(found, len(samples))
        shown = self.data("show", f"{out}/train.bin", "--tokenizer", self.model, "--samples", "2")
        self.assertIn("\n  - <|im_start|>user\\n", shown)
        self.assertIn("<|im_end|>\n", shown)
        self.assertEqual(shown.count("\nsample "), 2)

    def test_conversations_are_written_as_by_the_models_own_templates(self):
        import transformers
        said = [text.replace(IM_END, "") for text in texts(60, 9)]
        blanks = ["", " ", "\n", "\u3000", "\u00a0\x1f", "\u200b"]
        chats = []
        for i in range(0, 60, 4):
            system, user, tool, assistant = (
                {"role": role, "content": blanks[(i + j) % 6] + text + blanks[(i // 4 + j) % 6]}
                for j, (role, text) in enumerate(zip(("system", "user", "tool", "assistant"), said[i:i + 4])))
            chats.append([*[system] * (i % 3 == 0), user, *[tool] * (i % 5 % 3), assistant, user, assistant])
        for name, template in PUBLISHED.items():
            some = [[turn for turn in chat if name != "llama3" or turn["role"] != "tool"] for chat in chats]
            theirs = transformers.PreTrainedTokenizerFast(
                tokenizer_object=self.tokenizer, bos_token=LLAMA3_TOKENS[0], chat_template=template)
            expected = [theirs.apply_chat_template(chat, tokenize=False) for chat in some]
            out = f"{self.folder}/own-{name}"
            path = self.write_lines(f"{name}.jsonl", [{"messages": chat} for chat in some])
            self.data("prepare", "--out", out, "--tokenizer", self.model, "--template", name, "--sequence-length",
                      "4096", path)
            written = []
            for split in ("train", "val"):
                tokens = read_llmc(f"{out}/{split}.bin").tolist()
                mask = np.fromfile(f"{out}/{split}.bin.mask", np.uint8, offset=64)
                starts = [*np.flatnonzero(mask & 2).tolist(), len(tokens)]
                samples = (tokens[begin:end] for begin, end in zip(starts, starts[1:]))
                written += [self.tokenizer.decode(sample, skip_special_tokens=False) for sample in samples
                            if set(sample) != {self.tokenizer.token_to_id(END)}]
            self.assertEqual(sorted(written), sorted(expected), name)

    def test_from_a_text_to_a_training_in_its_own_vocabulary(self):
        path = self.write_lines("corpus.jsonl", [{"content": t} for t in texts(3000, 6)])
        folder = f"{self.folder}/own"
        with open(f"{self.folder}/corpus.txt", "w", encoding="utf-8") as file:
            file.write("\n".join(texts(300, 7)))
        os.makedirs(folder)
        self.data("train-tokenizer", "--out", folder, "--vocab-size", "400", f"{self.folder}/corpus.txt")
        out = f"{self.folder}/own-data"
        self.data("prepare", "--out", out, "--tokenizer", folder, "--text-key", "content", path)
        with open(f"{out}/corpus.json", encoding="utf-8") as file:
            manifest = json.load(file)
        settings = ["--set", f'data.train=[{{"files": "{out}/train.bin", "weight": 3}}, '
                             f'{{"files": "{out}/val.bin", "weight": 1}}]',
                    "--set", f'data.validation=["{out}/val.bin"]', "--set", "train_steps=40",
                    "--set", f"data.document_token={manifest['document_token']}"]
        run = f"{self.folder}/own-run"
        small = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", run, *settings])
        self.assertEqual(small.code, 64, small.output)
        self.assertIn("model.vocab_size is 256", small.output)
        settings += ["--set", f"model.vocab_size={manifest['vocabulary']}"]
        trained = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", run, *settings])
        self.assertEqual(trained.code, 0, trained.output)
        losses = self.losses(run)
        self.assertEqual(len(losses), 40)
        self.assertLess(losses[40], losses[1] - 0.4)

    def test_a_training_counts_completions_alone(self):
        chats = self.conversations()
        path = self.write_lines("learn.jsonl", [
            {"prompt": chat[0][1], "completion": chat[1][1]} for chat in chats])
        out = f"{self.folder}/learn"
        self.data("prepare", "--out", out, "--tokenizer", self.model, "--template", "chatml",
                  "--sequence-length", "128", path)
        run = f"{self.folder}/learn-run"
        common = ["--set", f'data.train=["{out}/train.bin"]', "--set", f'data.validation=["{out}/val.bin"]',
                  "--set", f"model.vocab_size={VOCABULARY}", "--set", "train_steps=2",
                  "--set", "model.max_position_embeddings=128"]
        wrong = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", run, *common])
        self.assertEqual(wrong.code, 64, wrong.output)
        self.assertIn("rows of 128 tokens, but data.sequence_length is 32", wrong.output)
        result = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", run, *common,
                                   "--set", "data.sequence_length=128"])
        self.assertEqual(result.code, 0, result.output)
        # An untrained model is as wrong as a guess, whatever part of the targets counts.
        self.assertAlmostEqual(self.losses(run)[1], np.log(VOCABULARY), delta=0.3)
        self.check_other_model(run)

    def check_other_model(self, run):
        """Files of a larger vocabulary than the weights' are refused, and both sizes are named."""
        [weights] = glob.glob(f"{run}/checkpoints/step-*2.*/model")
        header = np.zeros(256, np.int32)
        header[:4] = 20240520, 1, 4000, 700
        path = f"{self.folder}/other.bin"
        with open(path, "wb") as file:
            file.write(header.tobytes() + np.zeros(4000, np.uint16).tobytes())
        config = self.write_config("pretrained.json", model={"pretrained": weights})
        result = self.run_program([f"{BIN}/dtrain-gpt", config, "--run-dir", f"{self.folder}/other-run",
                                   "--set", f'data.train=["{path}"]'])
        self.assertEqual(result.code, 64, result.output)
        self.assertIn("was made by a tokenizer of 700 ids, but the model in", result.output)
        self.assertIn("has a vocabulary of 600: they are of two models", result.output)

    def test_bad_records_and_weights_end_with_64_and_one_line(self):
        path = self.write_lines("bad.jsonl", [{"text": "a"}, {"txt": "b"}, {"text": "c"}])
        out = f"{self.folder}/bad"
        output = self.data("prepare", "--out", out, "--tokenizer", self.model, path, code=64)
        self.assert_one_line(output, "bad.jsonl:2: it has no member \"text\" (it has: txt)", "--skip-bad N")
        self.assertIn("1 bad", self.data("prepare", "--out", out, "--tokenizer", self.model, "--skip-bad", "1", path))
        with open(f"{self.model}/config.json", "w", encoding="utf-8") as file:
            json.dump({"vocab_size": 320}, file)
        try:
            output = self.data("prepare", "--out", out, "--tokenizer", self.model, path, code=64)
        finally:
            os.remove(f"{self.model}/config.json")
        self.assert_one_line(output, "has 600 tokens, but its config.json says that the model has 320")
        result = self.run_program([f"{BIN}/dtrain-gpt", self.config, "--run-dir", f"{self.folder}/zero", "--set",
                                   'data.train=[{"files": "a", "weight": 0}, {"files": "b", "weight": 0}]'])
        self.assertEqual(result.code, 64)
        self.assertIn("the weights of its 2 parts sum to 0", result.output)


if __name__ == "__main__":
    end_to_end.main()
