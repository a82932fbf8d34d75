"""./dev bench data: how fast text becomes tokens, beside Hugging Face's tokenizers and SentencePiece, in how much
memory, and how fast a training reads them.

tokens: vocabularies that tokenizers learns of this machine's headers and this project's pages, of the kinds of GPT-2,
Llama 3, Qwen, Llama 2, T5 and BERT, and one that sentencepiece learns, as Llama 2's tokenizer.model and, for
tokenizers, as the tokenizer.json that is made of it; the same documents, in as many threads, in turns. All must give
the same number of tokens. A ratio is of one round; goals show medians. dtrain's caches are empty when a round begins.
memory: the largest resident memory of dtrain-data prepare while it makes token files of a gigabyte of JSONL.
reading: windows of 1,024 tokens in the shuffled order of a training, with their ids checked, by one thread; the files
are in the page cache. The copy into LibTorch's tensors is left out.
"""
import argparse
import glob
import json
import os
import statistics
import sys
import tempfile
import time

sys.path.insert(1, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "interop"))

from report import begin, measure_parts  # noqa: E402
from rounds import back_and_forth  # noqa: E402
from runner import run  # noqa: E402

PARTS = {"tokens": ("kind", "threads"), "memory": ("source", "threads"), "reading": ("corpus", "row_length")}
DOCUMENT_BYTES = 50000
LEARNED_LINES = 200000
VOCABULARY = 32000
SENTENCEPIECE = "sentencepiece-bpe"
KINDS = ["gpt2", "llama3", "qwen2", "llama2", SENTENCEPIECE, "t5", "bert"]
# Times the peer's speed; MB; tokens a second.
GPT2_GOAL, GOAL, MEMORY_GOAL_MB, READING_GOAL = 5, 3, 512, 1e9
ROW_LENGTH = 1024
IDS = 50257  # Of GPT-2.
# The token files that are read: {corpus: the bytes of an id in each part}.
CORPORA = {"u16": (2,), "u32": (4,), "mixture of both": (2, 4)}
# Runs a command from a process that is small itself, because a child begins with the peak of who starts it.
PEAK = '''import json, resource, subprocess, sys, time
begin = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False)
print(json.dumps({"seconds": time.perf_counter() - begin,
                  "peak_mb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1.024e-3}))
sys.exit(done.returncode)
'''


def text_of_this_machine(megabytes):
    """Headers and pages that are UTF-8, about as much as is asked for."""
    paths = sorted(glob.glob("docs/**/*.md", recursive=True)) + sorted(glob.glob("/usr/include/**/*.h", recursive=True))
    parts, size = [], 0
    for path in paths:
        with open(path, "rb") as file:
            part = file.read()
        try:
            parts.append(part.decode())
        except UnicodeDecodeError:
            continue
        size += len(part)
        if size > megabytes * 1e6:
            break
    return "".join(parts)


def documents_of(text):
    """The pieces of DOCUMENT_BYTES that tokenizer_speed cuts, as tokenizers takes them."""
    data = text.encode()
    return [data[at:at + DOCUMENT_BYTES].decode(errors="replace") for at in range(0, len(data), DOCUMENT_BYTES)]


def by_tokenizers(tokenizer, documents):
    return sum(len(one) for one in tokenizer.encode_batch_fast(documents, add_special_tokens=False))


def learn_sentencepiece(args, lines, folder):
    """The path of a tokenizer.model with Llama 2's settings, and {peer: function of documents}."""
    import sentencepiece
    import tokenizer_kinds
    with open(f"{folder}/lines", "w", encoding="utf-8") as file:
        file.writelines(lines)
    sentencepiece.SentencePieceTrainer.train(
        input=f"{folder}/lines", model_prefix=f"{folder}/tokenizer", model_type="bpe", vocab_size=VOCABULARY,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True, split_digits=True, hard_vocab_limit=False, num_threads=args.threads,
        minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(f"{folder}/tokenizer.model")
    peer = tokenizer_kinds.of_sentencepiece_model(model)
    return f"{folder}/tokenizer.model", {
        "sentencepiece": lambda documents: sum(map(len, model.encode(documents, num_threads=args.threads))),
        "tokenizers": lambda documents: by_tokenizers(peer, documents)}


def learn_tokenizers(make, kind, folder):
    tokenizer = make()
    tokenizer.save(f"{folder}/{kind}.json")
    return f"{folder}/{kind}.json", {"tokenizers": lambda documents: by_tokenizers(tokenizer, documents)}


def measure_kind(args, kind, path, peers, text, folder):
    file = f"{folder}/text"
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    documents, rounds = documents_of(text), []
    for i in range(args.rounds):
        seconds, tokens = {}, {}
        for way in back_and_forth(["dtrain", *peers], i):
            if way in peers:
                begin_at = time.perf_counter()
                tokens[way] = peers[way](documents)
                seconds[way] = time.perf_counter() - begin_at
            else:
                command = [f"{args.bin}/tokenizer_speed", path, str(args.threads), str(DOCUMENT_BYTES), file]
                row = json.loads(run(command))
                tokens[way], seconds[way] = row["tokens"], row["seconds"]
        if len(set(tokens.values())) != 1:
            raise SystemExit(f"bench: the tokens of {kind} differ in number: {tokens}")
        rounds.append({way: len(text.encode()) / value / 1e6 for way, value in seconds.items()})
        rates = ", ".join(f"{way} {value:.1f} MB/s" for way, value in rounds[-1].items())
        print(f"{kind}, {args.threads} threads, round {i + 1}/{args.rounds}: {rates}; load {os.getloadavg()[0]:.1f}",
              flush=True)
    return {"kind": kind, "threads": args.threads, "tokens": tokens["dtrain"], "bytes": len(text.encode()),
            "rounds": rounds}


def measure_tokens(args):
    # Before tokenizers starts its threads; it has as many as dtrain.
    os.environ["RAYON_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"] = str(args.threads), "true"
    import tokenizer_kinds
    text = text_of_this_machine(args.megabytes)
    rows = []
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        lines = text.splitlines(keepends=True)[:LEARNED_LINES]
        makers = tokenizer_kinds.makers(lines, size=VOCABULARY)
        for kind in args.kinds:
            learned = (learn_sentencepiece(args, lines, folder) if kind == SENTENCEPIECE
                       else learn_tokenizers(makers[kind], kind, folder))
            rows.append(measure_kind(args, kind, *learned, text, folder))
    return rows


def write_records(path, text, size):
    """JSONL of `size` bytes or a little more, no two records of which are equal."""
    documents, written = documents_of(text), 0
    with open(path, "w", encoding="utf-8") as file:
        while written < size:
            for document in documents:
                written += file.write(json.dumps({"text": f"{written} {document}"}) + "\n")
                if written >= size:
                    break


def measure_memory(args):
    text, size = text_of_this_machine(args.megabytes), int(args.jsonl_megabytes * 1e6)
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        with open(f"{folder}/text", "w", encoding="utf-8") as file:
            file.write(text)
        run([f"{args.bin}/dtrain-data", "train-tokenizer", "--out", f"{folder}/vocabulary", "--vocab-size",
             str(VOCABULARY), f"{folder}/text"])
        write_records(f"{folder}/text.jsonl", text, size)
        taken = json.loads(run([sys.executable, "-c", PEAK, f"{args.bin}/dtrain-data", "prepare", "--out",
                                f"{folder}/tokens", "--tokenizer", f"{folder}/vocabulary", "--threads",
                                str(args.threads), f"{folder}/text.jsonl"]))
        size = os.path.getsize(f"{folder}/text.jsonl")
    print(f"{size * 1e-6:,.0f} MB of JSONL, {args.threads} threads: {taken['peak_mb']:.0f} MB of memory, "
          f"{size * 1e-6 / taken['seconds']:.1f} MB/s", flush=True)
    return [{"source": "JSONL", "threads": args.threads, "bytes": size, **taken}]


def write_tokens(path, count, width):
    """A file in llm.c's format, of random ids."""
    import numpy
    magic, version = {2: (20240520, 1), 4: (20240801, 7)}[width]
    header = numpy.zeros(256, numpy.int32)
    header[:4] = magic, version, count, IDS
    ids = numpy.random.default_rng(1).integers(0, IDS, count, {2: numpy.uint16, 4: numpy.uint32}[width])
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(ids.tobytes())


def measure_reading(args):
    rows, tokens = [], int(args.reading_megatokens * 1e6)
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        for width in (2, 4):
            write_tokens(f"{folder}/{width}.bin", tokens, width)
        for corpus, widths in CORPORA.items():
            command = [f"{args.bin}/reading_speed", str(ROW_LENGTH), str(tokens),
                       *(f"{folder}/{width}.bin" for width in widths)]
            found = [json.loads(run(command)) for _ in range(args.rounds)]
            rates = [one["tokens"] / one["seconds"] for one in found]
            print(f"{corpus}: {', '.join(f'{rate * 1e-9:.2f}' for rate in rates)} Gtok/s", flush=True)
            rows.append({"corpus": corpus, "row_length": ROW_LENGTH, "tokens": tokens, "rates": rates})
    return rows


def all_goals(results):
    goals = []
    for row in results.get("tokens", []):
        for peer in [way for way in row["rounds"][0] if way != "dtrain"]:
            ratio = statistics.median(r["dtrain"] / r[peer] for r in row["rounds"])
            goals.append((f"data.{row['kind']}_vs_{peer}_{row['threads']}_threads", ratio, ">=",
                          GPT2_GOAL if row["kind"] == "gpt2" else GOAL))
    goals += [(f"data.memory_mb_{row['threads']}_threads", row["peak_mb"], "<=", MEMORY_GOAL_MB)
              for row in results.get("memory", [])]
    goals += [(f"data.reading_tokens_per_s_{row['corpus'].replace(' ', '_')}", statistics.median(row["rates"]), ">=",
               READING_GOAL) for row in results.get("reading", [])]
    return goals


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", default="")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--megabytes", type=float, default=20, help="text of this machine")
    parser.add_argument("--jsonl-megabytes", type=float, default=1000)
    parser.add_argument("--reading-megatokens", type=float, default=200, help="of each file, and what is read of it")
    args = parser.parse_args()
    if min(args.rounds, args.threads) < 1 or min(args.megabytes, args.jsonl_megabytes, args.reading_megatokens) <= 0:
        parser.error("--rounds, --threads, --megabytes, --jsonl-megabytes and --reading-megatokens must be above 0")
    return args


def main():
    args = parse()
    args.json = begin("data", args.json)
    measure = {"tokens": measure_tokens, "memory": measure_memory, "reading": measure_reading}
    measure_parts(args.json, "data", PARTS, {part: lambda part=part: measure[part](args) for part in args.parts},
                  all_goals)


if __name__ == "__main__":
    main()
