"""./dev bench data: how fast text becomes tokens, beside Hugging Face's tokenizers.

tokens: vocabularies that tokenizers learns of this machine's headers and this project's pages, of the kinds of GPT-2,
Llama 3, Qwen and Llama 2; the same documents, in as many threads, in turns. Both must give the same number of tokens.
A ratio is of one round; goals show medians. dtrain's caches are empty when a round begins.
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

PARTS = {"tokens": ("kind", "threads")}
DOCUMENT_BYTES = 50000
LEARNED_LINES = 200000
VOCABULARY = 32000
# Times the peer's speed.
GPT2_GOAL, GOAL = 5, 3


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


def theirs(tokenizer, documents):
    begin_at = time.perf_counter()
    tokens = sum(len(one) for one in tokenizer.encode_batch_fast(documents, add_special_tokens=False))
    return tokens, time.perf_counter() - begin_at


def measure_kind(args, kind, tokenizer, text, folder):
    path, file = f"{folder}/{kind}.json", f"{folder}/text"
    tokenizer.save(path)
    with open(file, "w", encoding="utf-8") as out:
        out.write(text)
    documents, rounds = documents_of(text), []
    for i in range(args.rounds):
        seconds, tokens = {}, {}
        for way in back_and_forth(["dtrain", "tokenizers"], i):
            if way == "tokenizers":
                tokens[way], seconds[way] = theirs(tokenizer, documents)
            else:
                command = [f"{args.bin}/tokenizer_speed", path, str(args.threads), str(DOCUMENT_BYTES), file]
                row = json.loads(run(command))
                tokens[way], seconds[way] = row["tokens"], row["seconds"]
        if tokens["dtrain"] != tokens["tokenizers"]:
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
            rows.append(measure_kind(args, kind, makers[kind](), text, folder))
    return rows


def all_goals(results):
    goals = []
    for row in results.get("tokens", []):
        ratio = statistics.median(r["dtrain"] / r["tokenizers"] for r in row["rounds"])
        goals.append((f"data.{row['kind']}_vs_tokenizers_{row['threads']}_threads", ratio, ">=",
                      GPT2_GOAL if row["kind"] == "gpt2" else GOAL))
    return goals


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", default="")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--kinds", nargs="+", default=["gpt2", "llama3", "qwen2", "llama2"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--megabytes", type=float, default=20)
    args = parser.parse_args()
    if args.rounds < 1 or args.threads < 1 or args.megabytes <= 0:
        parser.error("--rounds, --threads and --megabytes must be above 0")
    return args


def main():
    args = parse()
    args.json = begin("data", args.json)
    measure = {"tokens": measure_tokens}
    measure_parts(args.json, "data", PARTS, {part: lambda part=part: measure[part](args) for part in args.parts},
                  all_goals)


if __name__ == "__main__":
    main()
