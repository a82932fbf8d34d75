"""Tokens of dtrain are those of Hugging Face's tokenizers, for every kind of vocabulary, on texts of many scripts
and on random ones; a vocabulary that dtrain learned is read by tokenizers, and gives the same tokens there."""
import base64
import glob
import json
import os
import subprocess
import tempfile
import unittest

import end_to_end
from time_bounds import bound_s

try:
    import tokenizers
    import tokenizer_kinds
    from tokenizer_texts import BATCH_DOCUMENTS, encoded, long_documents
except ImportError:
    tokenizers = None
try:
    import sentencepiece
    import tiktoken
except ImportError:
    sentencepiece = tiktoken = None

BIN = os.environ["DTRAIN_BIN"]
SOURCE = os.environ["DTRAIN_SOURCE"]
SEED = 20261126
LONG = "DTRAIN_TEST_LONG" in os.environ
TEXTS = 100000 if LONG else 3000


class Tokenizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if tokenizers is None:
            raise unittest.SkipTest("Python has no tokenizers: ./dev deps test")
        # The project's own code and pages, and words of other scripts.
        paths = sorted(glob.glob(f"{SOURCE}/docs/*.md"))[:12] + sorted(glob.glob(f"{SOURCE}/base/*.cc"))
        texts = []
        for path in paths:
            with open(path, encoding="utf-8") as file:
                texts += file.read().splitlines(keepends=True)
        cls.lines = texts
        cls.corpus = texts + [text.decode(errors="replace") for text in tokenizer_kinds.hard_texts(3000, SEED + 1)]
        cls.texts = [*tokenizer_kinds.hard_texts(TEXTS, SEED), *tokenizer_kinds.all_characters(),
                     "".join(texts).encode()]
        cls.folder = tempfile.TemporaryDirectory()  # Removed by tearDownClass.

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def expect_equal(self, found, wanted, what):
        """Without a comparison line by line, which takes minutes for a long text."""
        if found != wanted:
            self.fail(f"{what[:1000]}: {str(found)[:1000]} instead of {str(wanted)[:1000]}")

    def compare(self, name, path, tokenizer, template=False):
        strings = [text.decode(errors="replace") for text in self.texts]
        wanted = [one.ids for one in tokenizer.encode_batch(strings, add_special_tokens=template)]
        rows = encoded(path, self.texts, template)
        self.assertEqual(len(rows), len(wanted))
        for text, (ids, decoded), want in zip(strings, rows, wanted):
            self.expect_equal(ids, want, f"{name} seed {SEED}: {text!r}")
            self.expect_equal(decoded, tokenizer.decode(want, skip_special_tokens=False), f"{name}: {text!r}")

    def test_tokens_of_every_kind_are_those_of_tokenizers(self):
        for name, make in tokenizer_kinds.makers(self.corpus).items():
            with self.subTest(name):
                tokenizer = make()
                path = f"{self.folder.name}/{name}.json"
                tokenizer.save(path)
                self.compare(name, path, tokenizer)

    def test_a_token_that_is_a_word_stands_beside_no_character_of_words(self):
        tokenizer = tokenizer_kinds.makers(self.corpus)["gpt2 with added tokens"]()
        path = f"{self.folder.name}/words.json"
        tokenizer.save(path)
        texts = tokenizer_kinds.in_blocks(lambda one: f"{one}the. the{one} ")
        wanted = [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        for text, (ids, _), want in zip(texts, encoded(path, [text.encode() for text in texts], False), wanted):
            self.expect_equal(ids, want, repr(text))

    def test_classes_of_characters_are_those_of_tokenizers(self):
        """Each cut shows, because a piece gets a space before it."""
        tokenizer = tokenizer_kinds.makers(self.corpus)["gpt2"]()
        path = f"{self.folder.name}/cuts.json"
        # No file has a zero byte, which the library takes for the end of a pattern's text.
        texts = tokenizer_kinds.in_blocks(lambda one: "" if one == "\0" else f"a{one}the. {one}1{one} ")
        cuts = {"words": tokenizers.pre_tokenizers.Whitespace(), "digits": tokenizers.pre_tokenizers.Digits(True)}
        for pattern in tokenizer_kinds.CLASSES[:None if LONG else 2]:
            cuts[pattern] = tokenizer_kinds.split(pattern)
        for pattern, cut in cuts.items():
            with self.subTest(pattern):
                tokenizer.pre_tokenizer = tokenizer_kinds.cuts(cut, prefix=True)
                tokenizer.save(path)
                wanted = [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
                rows = encoded(path, [text.encode() for text in texts], template=False)
                for text, (ids, _), want in zip(texts, rows, wanted):
                    self.expect_equal(ids, want, f"{pattern}: {text!r}")

    if LONG:
        def test_tokens_of_100_megabytes_are_those_of_tokenizers(self):
            documents = long_documents(SEED + 2)
            for name, make in tokenizer_kinds.makers(self.corpus).items():
                path, count = f"{self.folder.name}/{name} long.json", 0
                with self.subTest(name):
                    tokenizer = make()
                    tokenizer.save(path)
                    for at in range(0, len(documents), BATCH_DOCUMENTS):
                        batch = documents[at:at + BATCH_DOCUMENTS]
                        strings = [document.decode(errors="replace") for document in batch]
                        wanted = [one.ids for one in tokenizer.encode_batch_fast(strings, add_special_tokens=False)]
                        texts = tokenizer.decode_batch(wanted, skip_special_tokens=False)
                        rows = encoded(path, batch, template=False, mode="fast")
                        self.expect_equal([ids for ids, _ in rows], wanted, f"{name}, documents from {at}")
                        self.expect_equal([text for _, text in rows], texts, f"{name}, documents from {at}")
                        count += sum(map(len, wanted))
                    print(f"{name}: {count} tokens are equal", flush=True)

    def test_a_template_adds_the_tokens_around_a_text(self):
        tokenizer = tokenizer_kinds.makers(self.corpus)["llama2"]()
        path = f"{self.folder.name}/template.json"
        tokenizer.save(path)
        self.compare("llama2", path, tokenizer, template=True)

    def test_tokenizers_reads_what_dtrain_learned(self):
        text = f"{self.folder.name}/text.txt"
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(self.lines))
        for pattern in ("gpt2", "llama3", "qwen2", "o200k", "tekken"):
            with self.subTest(pattern):
                out = f"{self.folder.name}/{pattern}"
                command = [f"{BIN}/dtrain-data", "train-tokenizer", "--out", out, "--vocab-size", "2000", "--pattern",
                           pattern, text]
                result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=bound_s(120))
                self.assertEqual(result.returncode, 0, result.stderr)
                tokenizer = tokenizers.Tokenizer.from_file(f"{out}/tokenizer.json")
                self.assertEqual(tokenizer.get_vocab_size(), 2000)
                self.compare(pattern, out, tokenizer)
                # Learned tokens are longer than bytes, or nothing was learned.
                size = len("".join(self.lines).encode())
                self.assertLess(len(tokenizer.encode("".join(self.lines)).ids), 0.45 * size)

    @unittest.skipIf(sentencepiece is None, "Python has no sentencepiece: ./dev deps test")
    def test_models_of_sentencepiece_give_its_tokens(self):
        text = f"{self.folder.name}/sentences"
        with open(text, "w", encoding="utf-8") as file:
            file.write("".join(self.lines))
        for kind in ("bpe", "unigram"):
            with self.subTest(kind):
                os.makedirs(f"{self.folder.name}/{kind}")
                sentencepiece.SentencePieceTrainer.train(
                    input=text, model_prefix=f"{self.folder.name}/{kind}/tokenizer", model_type=kind, vocab_size=1000,
                    byte_fallback=True, num_threads=2, minloglevel=2)
                model = sentencepiece.SentencePieceProcessor(f"{self.folder.name}/{kind}/tokenizer.model")
                # Control symbols in a text are tokens of dtrain; the library takes them for text.
                texts = [text for text in self.texts if b"<s>" not in text and b"</s>" not in text]
                rows = encoded(f"{self.folder.name}/{kind}", texts, template=False)
                self.assertEqual(len(rows), len(texts))
                for one, (ids, decoded) in zip(texts, rows):
                    want = model.encode(one.decode(errors="replace"))
                    if kind == "unigram":  # Of equally likely cuts each version of the library takes its own.
                        ids, want = len(ids), len(want)
                    self.expect_equal(ids, want, f"{kind} seed {SEED}: {one!r}")
                    self.expect_equal(decoded, model.decode(model.encode(one.decode(errors="replace"))), kind)

    @unittest.skipIf(tiktoken is None, "Python has no tiktoken: ./dev deps test")
    def test_ranks_of_tiktoken_give_its_tokens(self):
        tokenizer = tokenizer_kinds.makers(self.corpus)["qwen2"]()
        letters = {chr(letter): byte for byte, letter in tokenizer_kinds.letters_of_bytes().items()}
        vocab = json.loads(tokenizer.to_str())["model"]["vocab"]
        tokens = [bytes(letters[letter] for letter in token) for token in sorted(vocab, key=vocab.get)
                  if token != "<|endoftext|>"]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        path = f"{self.folder.name}/ranks.tiktoken"
        with open(path, "wb") as file:
            file.writelines(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())
        for name, pattern in (("qwen2", tokenizer_kinds.QWEN2), ("o200k", tokenizer_kinds.O200K),
                              ("cl100k", tokenizer_kinds.CL100K)):
            peer = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
            rows = encoded(path, self.texts, template=False, pattern=name)
            self.assertEqual(len(rows), len(self.texts))
            for one, (ids, decoded) in zip(self.texts, rows):
                want = peer.encode_ordinary(one.decode(errors="replace"))
                self.expect_equal(ids, want, f"{name} seed {SEED}: {one!r}")
                self.expect_equal(decoded, one.decode(errors="replace"), name)


if __name__ == "__main__":
    end_to_end.main()
