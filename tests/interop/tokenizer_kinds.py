"""Vocabularies of each kind that dtrain reads, learned by Hugging Face's tokenizers, and texts that are hard to cut."""
import collections
import json
import random
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

try:
    import sentencepiece
except ImportError:
    sentencepiece = None

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
END = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+{CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*{CONTRACTION}"
         r"|\p{N}{1,3}|" + END)
TEKKEN = (rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}|" + END)
DEEPSEEK = (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
# Classes of characters within brackets and outside, and others that are no members of one.
CLASSES = (r"\w", r"[^\W\d_]+|\p{Han}", r"\b.", r"\w+|[^\w\s]+", r"\d+", r"[\w]+", r"\W+", r"[\W]+", r"[\D]+",
           r"[\P{L}]+", r"\B.", r"\P{Han}+", r"\p{Lm}+", r"\p{Latin}", r"\p{Cyrillic}", r"\p{Arabic}", r"\p{Greek}",
           r"\p{Hebrew}", r"\p{Hangul}", r"\p{Hiragana}", r"\p{Katakana}", r"\p{Thai}", r"\p{Devanagari}", r"\p{M}",
           r"\p{P}+", r"\p{S}", r"\p{C}+", r"\P{Cn}")
# tiktoken's own.
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
          r"|\s+(?!\S)|\s")
MARK = "\u2581"


def letters_of_bytes():
    """GPT-2's table: {byte: code point of its letter}"""
    printable = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {**{byte: byte for byte in printable}, **{byte: 256 + i for i, byte in enumerate(others)}}


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def cuts(*parts, prefix=False):
    return pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False)])


def learn(text, pre_tokenizer, size, model=None, normalizer=None, decoder=None, special=(), **options):
    tokenizer = Tokenizer(model or models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    options.setdefault("initial_alphabet", pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=size, show_progress=False,
                                                            special_tokens=list(special), **options))
    tokenizer.decoder = decoder or decoders.ByteLevel()
    return tokenizer


def with_json(tokenizer, change):
    document = json.loads(tokenizer.to_str())
    change(document)
    return Tokenizer.from_str(json.dumps(document))


def byte_fallback(text, size, normalizer, pre_tokenizer, decoder, fuse):
    """Llama 2's and Mistral's kind."""
    special = ["<unk>", "<s>", "</s>"]
    tokenizer = learn(
        text, pre_tokenizers.Split(MARK, "merged_with_next"), size, normalizer=normalizer, decoder=decoder,
        model=models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=fuse),
        special=special + [f"<0x{byte:02X}>" for byte in range(256)], initial_alphabet=[], limit_alphabet=300)
    def change(document):
        document["pre_tokenizer"] = pre_tokenizer and json.loads(pre_tokenizer.__getstate__())
        document["added_tokens"] = document["added_tokens"][:len(special)]
    tokenizer = with_json(tokenizer, change)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def fields(message):
    """{number: bytes} of the fields of a protobuf message that have a length."""
    found, at = {}, 0
    def number():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value
    while at < len(message):
        tag = number()
        if tag & 7 == 2:
            length = number()
            found[tag >> 3] = message[at:at + length]
            at += length
        elif tag & 7 == 0:
            number()
        else:
            at += 4 if tag & 7 == 5 else 8
    return found


def precompiled(rule):
    """The normalizer that a tokenizer.json has of SentencePiece's rule: ModelProto.normalizer_spec's map."""
    model = sentencepiece.SentencePieceNormalizer(rule_name=rule).serialized_model_proto()
    return normalizers.Precompiled(fields(fields(model)[3])[2])


def of_sentencepiece_model(model):
    """The tokenizer.json of a model of byte pairs with byte fallback that changes nothing but spaces."""
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    ids = {piece: i for i, piece in enumerate(pieces)}
    merges = []
    for i, piece in enumerate(pieces):
        if not (model.is_byte(i) or model.is_control(i) or model.is_unknown(i)):
            cut = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
            known = sorted((ids[left], ids[right], left, right) for left, right in cut if left in ids and right in ids)
            merges += [(-model.get_score(i), left, right) for _, _, left, right in known]
    merges.sort(key=lambda merge: merge[0])
    tokenizer = Tokenizer(models.BPE(ids, [merge[1:] for merge in merges], unk_token="<unk>", fuse_unk=True,
                                     byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    return tokenizer


def simple_lines(lines, letters_max, special):
    """Those of `lines` without special tokens that are written with the most frequent letters: Unigram has a piece for
    each letter."""
    letters = {letter for letter, _ in collections.Counter("".join(lines)).most_common(letters_max)}
    return [line for line in lines if letters.issuperset(line) and not any(token in line for token in special)]


def unigram(text, size, normalizer, pre_tokenizer, decoder, bytes_too=False):
    """T5's, XLM-R's and ALBERT's kind."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = normalizer, pre_tokenizer, decoder
    special = ["<pad>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(simple_lines(text, size // 4, [*special, "<0x"]), trainers.UnigramTrainer(
        vocab_size=size, show_progress=False, special_tokens=special, unk_token="<unk>", n_sub_iterations=1,
        shrinking_factor=0.5))
    def change(document):
        document["model"]["byte_fallback"] = bytes_too
        document["model"]["vocab"] += [[f"<0x{byte:02X}>", -30.0] for byte in range(256)] * bytes_too
    tokenizer = with_json(tokenizer, change)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def byte_pieces(normalizer):
    """A vocabulary of bytes alone, whose tokens show each character that `normalizer` makes."""
    pieces = [("<unk>", -1.0), *((f"<0x{byte:02X}>", -1.0) for byte in range(256))]
    tokenizer = Tokenizer(models.Unigram(pieces, 0, True))
    tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_piece(text, size, **options):
    """BERT's kind."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(**options)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.train_from_iterator(text, trainers.WordPieceTrainer(
        vocab_size=size, show_progress=False, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        limit_alphabet=size // 3))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def whole_words(document):
    document["model"]["ignore_merges"] = True


def with_added_tokens(tokenizer):
    tokenizer.add_tokens([AddedToken("  ", normalized=True), AddedToken("<mask>", lstrip=True, rstrip=True),
                          AddedToken("the", single_word=True), AddedToken("   ", normalized=False)])
    return tokenizer


def makers(text, size=1500):
    """{name: function that learns a vocabulary of `size` tokens}"""
    end = ["<|endoftext|>"]
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    behaviors = cuts(pre_tokenizers.Split(" ", "merged_with_next"), split(r"\p{Lu}", "merged_with_previous"),
                     pre_tokenizers.Punctuation("merged_with_next"), split(r"\d+", "contiguous"), split("x+",
        "removed"))
    falcon = pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.Digits(True), gpt2])
    stripped = normalizers.Sequence([normalizers.NFKD(), normalizers.Strip()])
    marked = normalizers.Replace(" ", MARK)
    prepended = normalizers.Sequence([normalizers.Prepend(MARK), marked])
    first = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    always = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    decoder = decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(),
                                 decoders.Strip(" ", 1, 0)])
    by_metaspace = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    unknown = models.BPE(unk_token="<unk>", fuse_unk=True)
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    lower = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
             normalizers.StripAccents(), normalizers.Lowercase()]
    of_sentencepiece = {} if sentencepiece is None else {
        "t5": lambda: unigram(text, size, precompiled("nmt_nfkc"), pre_tokenizers.Metaspace(), decoders.Metaspace()),
        "xlm-r": lambda: unigram(text, size, normalizers.Sequence([
            precompiled("nmt_nfkc"), normalizers.Replace(Regex(" {2,}"), " ")]), words, decoders.Metaspace(), True)}
    return {
        "gpt2": lambda: learn(text, gpt2, size, special=end),
        "gpt2 with added tokens": lambda: with_added_tokens(
            learn(text, pre_tokenizers.ByteLevel(add_prefix_space=True), size)),
        "llama3": lambda: with_json(learn(text, cuts(split(LLAMA3)), size, special=end), whole_words),
        "qwen2": lambda: learn(text, cuts(split(QWEN2)), size, normalizer=normalizers.NFC(), special=end),
        "o200k": lambda: learn(text, cuts(split(O200K, "removed", invert=True)), size, special=end),
        "tekken": lambda: learn(text, cuts(split(TEKKEN)), size, normalizer=normalizers.NFKC()),
        "deepseek": lambda: learn(text, cuts(*map(split, DEEPSEEK)), size, normalizer=normalizers.NFD()),
        "punctuation and digits": lambda: learn(text, falcon, size, normalizer=stripped),
        "all behaviors": lambda: learn(text, behaviors, size),
        "few letters": lambda: learn(text, gpt2, size, model=unknown, special=["<unk>"], initial_alphabet=[],
                                     limit_alphabet=60),
        "llama2": lambda: byte_fallback(text, size, prepended, None, decoder, True),
        "mistral": lambda: byte_fallback(text, size, marked, first, decoder, False),
        "metaspace": lambda: byte_fallback(text, size, marked, always, by_metaspace, True),
        "albert": lambda: unigram(text, size, normalizers.Sequence(lower), always, by_metaspace, True),
        "bert": lambda: word_piece(text, size),
        "bert cased": lambda: word_piece(text, size, lowercase=False, handle_chinese_chars=False),
        "bert of bytes": lambda: byte_pieces(normalizers.BertNormalizer()),
        **of_sentencepiece}


SCRIPTS = [(0x20, 0x7f)] * 6 + [
    (0, 0x20), (0x80, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700), (0x900, 0xe00), (0xe00, 0x1200),
    (0x1100, 0x1200), (0x1e00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2c00), (0x3000, 0x3400), (0x4e00, 0x5200),
    (0xac00, 0xad00), (0xa640, 0xa6f0), (0xf900, 0xfb10), (0xfe00, 0x10000), (0x10000, 0x10100), (0x10780, 0x107c0),
    (0x11000, 0x11a00), (0x1d400, 0x1d800), (0x1e900, 0x1e960), (0x1f300, 0x1fad0), (0x20000, 0x20100),
    (0x30000, 0x33000)]
SPACES = [" ", "  ", "   ", "\n", "\r\n", "\t", "\n\n", "\u00a0", "\u3000", "\u2003", "\u0085", "\x0b", "\x1c",
          "\u180e", "\u200b", "\u200d", "\r", " \n "]
BITS = ["'s", "'S", "'ll", "'LL", "'re", "'ve", "'d", "'m", "'t", "'\u017f", "'x", "''", " '", "It's", "DON'T", "123",
        "1", "12345678", "\u00b2\u00bd", "\u0661\u0662", "the", "The", "THE", "HelloWorld", "camelCase", "\u4f60\u597d",
        "\u3053\u3093\u306b\u3061\u306f", "\u0417\u0434\u0440\u0430\u0432\u0441\u0442\u0432\u0443\u0439",
        "\u0905\u0928\u0941\u091a\u094d\u091b\u0947\u0926", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "e\u0301",
        "\u00e9", "\ufb01", "<|endoftext|>", "<mask>", "<s>", "</s>", "<unk>", "<0x0A>", MARK, MARK * 2, "/", "//",
        "==",
        "{}", "();", "xx", "\ufffd", "#include <a>", "a\u0300\u0301", "\u1100\u1161\u11a8", "\uac00\u11a8"]


def character(source):
    return chr(source.choice([source.randrange(0xd800), source.randrange(0xe000, 0x110000)]))


def part(source):
    which = source.random()
    if which < 0.3:
        return source.choice(SPACES)
    if which < 0.65:
        return source.choice(BITS)
    if which < 0.9:
        first, end = source.choice(SCRIPTS)
        return "".join(chr(source.randrange(first, end)) for _ in range(source.randint(1, 5)))
    return character(source)


def hard_texts(count, seed):
    """Bytes, a fifth of them no UTF-8."""
    source = random.Random(seed)
    texts = []
    for _ in range(count):
        text = bytearray("".join(part(source) for _ in range(source.randint(0, 12))).encode())
        kind = source.random()
        if kind < 0.15 and text:
            for _ in range(source.randint(1, 3)):
                text[source.randrange(len(text))] = source.randrange(256)
        elif kind < 0.2 and text:
            del text[source.randrange(len(text)):]
        texts.append(bytes(text))
    return texts


def in_blocks(make):
    """A text for each block of assigned code points: `make(character)` for each of them."""
    blocks = [*range(0, 0x32000, 256), *range(0xe0000, 0xe0200, 256), 0x10ff00]
    return ["".join(make(chr(point)) for point in range(first, first + 256) if not 0xd800 <= point < 0xe000)
            for first in blocks]


def may_combine(point):
    """If a character is a mark, or may be one in a newer Unicode than Python's."""
    return unicodedata.combining(chr(point)) or unicodedata.category(chr(point)) == "Cn"


def all_characters():
    """Every assigned code point; and marks before and behind one that stands first in the order of marks, and one that
    stands behind most."""
    texts = in_blocks(lambda one: f"a{one} ")
    for first in range(0x300, 0x1f000, 256):
        points = range(first, first + 256)
        if any(unicodedata.combining(chr(point)) for point in points):
            marks = map(chr, filter(may_combine, points))
            texts.append("".join(f"e{one}\u0334e\u0301{one}e\u0345{one} " for one in marks))
    return [text.encode() for text in texts]
