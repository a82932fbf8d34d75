"""Normalizers, pre-tokenizers, models, added tokens and decoders that are put together at random give the tokens and
texts of tokenizers, or are refused by name. No model is published with most of them; each is a place where a rule that
looks the same could be another one."""
import collections
import json
import os
import random
import tempfile
import unittest

import end_to_end

try:
    import tokenizer_kinds
    import tokenizers
    from tokenizer_texts import encoded
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError:
    tokenizers = None

SEED = 20261127
PIPELINES = 4000 if "DTRAIN_TEST_LONG" in os.environ else 60
REFUSED_MAX = 0.25  # The share of pipelines that may be refused, or say nothing of dtrain.
MARK = "\u2581"
BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")
STRINGS = (" ", "x", "a", "  ", ".", MARK, "the")
PATTERNS = (r"\s+", r" {2,}", r"\d", r"[a-z]+", r"\p{L}+", r"\p{N}{1,3}", r"[^\s\p{L}\p{N}]+", r"\s+(?!\S)|\s+",
            r"'s|'t", r"\w+|[^\w\s]+", r"\p{Han}+", r"(?i:the|x+)", r"[\r\n]+", r"\b.", r"(?<=a)b|(?<!a)c",
            r"a{2,3}?", r"^.", r".$", r"[\p{P}]", r"(?:x|xx)x*y?")
ADDED = ("<a>", "the", "  ", "ab", "abc", "x", MARK, "<A>", "The", " b", "\u4f60", "e\u0301", "\u00e9", ".")
BITS = (" ", "  ", "a", "ab", "abc", "x", "xx", "the", "The", "<a>", "<A>", ".", "!", "1", "12", MARK, "\n", "\u0301",
        "e\u0301", "\u4f60", "b", "'s", "\u00e9", "y", "\U00011de7")
DECODERS = ({"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "ByteLevel", "add_prefix_space": True,
                                                         "trim_offsets": True, "use_regex": True},
            {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True},
            {"type": "WordPiece", "prefix": "##", "cleanup": True})


def model_of(tokenizer):
    return json.loads(tokenizer.to_str())["model"]


def bpe_model(corpus, unknown, fuse, bytes_too):
    model = models.BPE(unk_token=unknown, byte_fallback=bytes_too, fuse_unk=fuse) if unknown else models.BPE()
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=700, show_progress=False, limit_alphabet=120,
        special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256) if bytes_too)]))
    return model_of(tokenizer)


def all_models(corpus):
    """{name: the "model" of a tokenizer.json}"""
    gpt2 = tokenizer_kinds.learn(corpus, pre_tokenizers.ByteLevel(add_prefix_space=False), 500)
    metaspace = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return {
        "bytes": model_of(gpt2), "whole words of bytes": {**model_of(gpt2), "ignore_merges": True},
        "fallback": bpe_model(corpus, "<unk>", True, True), "fallback alone": bpe_model(corpus, "<unk>", False, True),
        "unknown": bpe_model(corpus, "<unk>", True, False), "unknown each": bpe_model(corpus, "<unk>", False, False),
        "without unknown": bpe_model(corpus, None, False, False),
        "unigram": model_of(tokenizer_kinds.unigram(corpus, 600, None, *metaspace)),
        "unigram with bytes": model_of(tokenizer_kinds.unigram(corpus, 600, None, *metaspace, True)),
        "pieces of words": model_of(tokenizer_kinds.word_piece(corpus, 600))}


class Maker:
    """Puts pipelines and texts together."""
    def __init__(self, source, corpus):
        self.source, self.models = source, all_models(corpus)
        self.precompiled = {"type": "NFKC"}
        if tokenizer_kinds.sentencepiece is not None:
            self.precompiled = json.loads(tokenizer_kinds.precompiled("nmt_nfkc").__getstate__())

    def chance(self, share):
        return self.source.random() < share

    def pattern(self):
        return self.source.choice([{"String": self.source.choice(STRINGS)}, {"Regex": self.source.choice(PATTERNS)}])

    def normalizer(self):
        one = self.source.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend",
                                  "Replace", "Replace", "BertNormalizer", "Precompiled", "Sequence"])
        fields = {"Strip": lambda: {"strip_left": self.chance(0.5), "strip_right": self.chance(0.5)},
                  "Prepend": lambda: {"prepend": self.source.choice([MARK, "x ", " "])},
                  "Replace": lambda: {"pattern": self.pattern(),
                                      "content": self.source.choice(["", MARK, " ", "yy", "x"])},
                  "BertNormalizer": lambda: {
                      "clean_text": self.chance(0.5), "handle_chinese_chars": self.chance(0.5),
                      "strip_accents": self.source.choice([None, True, False]), "lowercase": self.chance(0.5)},
                  "Precompiled": lambda: self.precompiled,
                  "Sequence": lambda: {"normalizers": [self.normalizer() for _ in range(self.source.randint(0, 2))]}}
        return {"type": one, **fields.get(one, dict)()}

    def pre_tokenizer(self):
        one = self.source.choice(["Split", "Split", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit",
                                  "BertPreTokenizer", "Metaspace", "Sequence"])
        fields = {"Split": lambda: {"pattern": self.pattern(), "behavior": self.source.choice(BEHAVIORS),
                                    "invert": self.chance(0.4)},
                  "Digits": lambda: {"individual_digits": self.chance(0.5)},
                  "Punctuation": lambda: {"behavior": self.source.choice(BEHAVIORS)},
                  "Metaspace": lambda: {"replacement": self.source.choice([MARK, "_"]), "split": self.chance(0.5),
                                        "prepend_scheme": self.source.choice(["always", "first", "never"])},
                  "Sequence": lambda: {"pretokenizers": [self.pre_tokenizer()
                                                         for _ in range(self.source.randint(0, 2))]}}
        return {"type": one, **fields.get(one, dict)()}

    def document(self):
        """A tokenizer.json without added tokens."""
        name = self.source.choice(sorted(self.models))
        stages = [self.pre_tokenizer() for _ in range(self.source.randint(0, 2))]
        if "bytes" in name and "unigram" not in name:
            stages.append({"type": "ByteLevel", "add_prefix_space": self.chance(0.4), "trim_offsets": True,
                           "use_regex": self.chance(0.5)})
        steps = [self.normalizer() for _ in range(self.source.randint(0, 2))]
        chosen = self.source.sample(DECODERS, self.source.randint(0, 3))
        return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
                "normalizer": {"type": "Sequence", "normalizers": steps} if steps else None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages} if stages else None,
                "post_processor": None, "decoder": {"type": "Sequence", "decoders": chosen} if chosen else None,
                "model": self.models[name]}

    def added_tokens(self):
        return [AddedToken(text, single_word=self.chance(0.3), lstrip=self.chance(0.3), rstrip=self.chance(0.3),
                           normalized=self.chance(0.5), special=self.chance(0.3))
                for text in self.source.sample(ADDED, self.source.randint(0, 5))]

    def texts(self):
        hard = tokenizer_kinds.hard_texts(150, self.source.randrange(1 << 30))
        return [*(text.decode(errors="replace") for text in hard),
                *("".join(self.source.choices(BITS, k=self.source.randint(1, 14))) for _ in range(100))]


def is_defined(tokenizer):
    """False: two added tokens are one text once it is normalized. Which of them is found changes from run to run."""
    added = json.loads(tokenizer.to_str())["added_tokens"]
    sought = [(tokenizer.normalizer.normalize_str(one["content"]) if tokenizer.normalizer and one["normalized"]
               else one["content"], one["normalized"]) for one in added]
    return len(set(sought)) == len(sought)


class Pipelines(unittest.TestCase):
    def peer(self, maker):
        """A pipeline of tokenizers, texts, their tokens and what these decode to; None where that program fails, or
        has no rule."""
        try:
            tokenizer = Tokenizer.from_str(json.dumps(maker.document()))
            tokenizer.add_tokens(maker.added_tokens())
            tokenizer = Tokenizer.from_str(tokenizer.to_str())
            texts = maker.texts()
            ids = [one.ids for one in tokenizer.encode_batch(texts, add_special_tokens=False)]
            decoded = [tokenizer.decode(one, skip_special_tokens=False) for one in ids]
            return (tokenizer, texts, ids, decoded) if is_defined(tokenizer) else None
        except BaseException as error:  # An error of Rust is no Exception.
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            return None

    @unittest.skipIf(tokenizers is None, "Python has no tokenizers: ./dev deps test")
    def test_pipelines_give_the_tokens_of_tokenizers_or_are_refused_by_name(self):
        corpus = [text.decode(errors="replace") for text in tokenizer_kinds.hard_texts(1500, SEED + 1)]
        with open(f"{os.environ['DTRAIN_SOURCE']}/docs/DATA.md", encoding="utf-8") as file:
            corpus.append(file.read())
        maker = Maker(random.Random(SEED), corpus)
        count = collections.Counter()
        with tempfile.TemporaryDirectory(prefix="dtrain-pipelines-") as folder:
            for number in range(PIPELINES):
                made = self.peer(maker)
                if made is None:
                    count["without a peer"] += 1
                    continue
                tokenizer, texts, wanted, decoded = made
                path = f"{folder}/tokenizer.json"
                tokenizer.save(path)
                try:
                    found = encoded(path, [text.encode() for text in texts], template=False, mode="fast")
                except AssertionError as refusal:
                    self.assertIn("is not supported", str(refusal))
                    count["refused"] += 1
                    continue
                self.assertEqual(len(found), len(texts))
                rules = {**json.loads(tokenizer.to_str()), "model": None}
                for text, want, back, (ids, shown) in zip(texts, wanted, decoded, found):
                    self.assertEqual(ids, want, f"pipeline {number}: {text!r}: {json.dumps(rules)}")
                    self.assertEqual(shown, back, f"pipeline {number} decodes {text!r}: {json.dumps(rules)}")
                count["compared"] += 1
        print(dict(count), flush=True)
        self.assertGreater(count["compared"], (1 - REFUSED_MAX) * PIPELINES, count)


if __name__ == "__main__":
    end_to_end.main()
