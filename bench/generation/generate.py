"""./dev bench generate: tokens a second of `dtrain generate` beside transformers, on the CPU in fp32.

speed: models of published shapes with random weights; the same prompt and number of tokens, the most likely token each
time, in turns. A ratio is of one round; goals show medians. Loading is not counted, and each has written a text before.
prompt: tokens of the prompt until the first token is there; written: all others, from a cache.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
import time

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [BENCH, os.path.join(BENCH, "..", "tests", "interop")]

from report import begin, measure_parts  # noqa: E402
from rounds import back_and_forth  # noqa: E402
from runner import run  # noqa: E402

PARTS = {"speed": ("model", "threads", "prompt_tokens", "tokens")}
SHAPES = os.path.join(BENCH, "..", "examples", "configs", "models")
SEED = 1
GOAL = 1.0  # Times the peer's speed.


def make_folder(model, folder):
    """A random model of this shape without an end token, whose tokens are bytes; and the model."""
    import torch
    import transformers
    from tokenizer_kinds import letters_of_bytes
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    with open(f"{SHAPES}/{model}.json", encoding="utf-8") as file:
        shape = {**json.load(file), "eos_token_id": None, "bos_token_id": None}
    torch.manual_seed(SEED)
    config = transformers.AutoConfig.for_model(shape.pop("model_type"), **shape)
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    made.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE(vocab={chr(letter): byte for byte, letter in letters_of_bytes().items()},
                                     merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(f"{folder}/tokenizer.json")
    return made


def theirs(model, prompt, tokens):
    import torch
    ids = torch.tensor([list(prompt.encode())])

    def generate(count):
        begin_at = time.perf_counter()
        out = model.generate(ids, do_sample=False, max_new_tokens=count, min_new_tokens=count)
        return out[0, ids.shape[1]:].tolist(), time.perf_counter() - begin_at
    _, first_s = generate(1)
    written, all_s = generate(tokens)
    return written, first_s, all_s - first_s


def ours(args, folder, prompt):
    """Of the second of two texts: theirs come from a process that has computed before."""
    command = [f"{args.bin}/dtrain-generate", folder, prompt, prompt, "--max-tokens", str(args.tokens), "--json",
               "--threads", str(args.threads)]
    row = json.loads(run(command).splitlines()[-1])
    return row["tokens"], row["prompt_s"], row["others_s"]


def measure_model(args, name):
    import torch
    import transformers
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    prompt = "".join(chr(97 + i * i % 26) for i in range(args.prompt_tokens))
    rounds, same = [], args.tokens
    with tempfile.TemporaryDirectory(prefix="dtrain-bench-") as folder:
        model = make_folder(name, folder)
        theirs(model, prompt, 2)  # Warms up.
        for i in range(args.rounds):
            tokens, seconds = {}, {}
            for way in back_and_forth(["dtrain", "transformers"], i):
                written, first_s, others_s = (ours(args, folder, prompt) if way == "dtrain"
                                              else theirs(model, prompt, args.tokens))
                tokens[way], seconds[way] = written, (first_s, others_s)
            equal = [a == b for a, b in zip(tokens["dtrain"], tokens["transformers"], strict=True)]
            same = min(same, equal.index(False) if False in equal else len(equal))
            rounds.append({way: {"prompt": args.prompt_tokens / first_s, "written": (args.tokens - 1) / others_s}
                           for way, (first_s, others_s) in seconds.items()})
            rates = ", ".join(f"{way} {rate['prompt']:.0f} and {rate['written']:.1f} tokens/s"
                              for way, rate in rounds[-1].items())
            print(f"{name}, {args.threads} threads, round {i + 1}/{args.rounds}: {rates}; load "
                  f"{os.getloadavg()[0]:.1f}", flush=True)
    print(f"{name}: the first {same} of {args.tokens} tokens are the same")
    return {"model": name, "threads": args.threads, "prompt_tokens": args.prompt_tokens, "tokens": args.tokens,
            "same_tokens": same, "rounds": rounds}


def all_goals(results):
    goals = []
    for row in results.get("speed", []):
        for what in ("prompt", "written"):
            ratio = statistics.median(r["dtrain"][what] / r["transformers"][what] for r in row["rounds"])
            goals.append((f"generate.{row['model']}_{what}_vs_transformers", ratio, ">=", GOAL))
    return goals


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--json", default="")
    parser.add_argument("--models", nargs="+", default=["gpt2-124m", "qwen2.5-0.5b"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    args = parser.parse_args()
    if min(args.rounds, args.threads, args.prompt_tokens) < 1 or args.tokens < 2:
        parser.error("--rounds, --threads and --prompt-tokens must be above 0, --tokens above 1")
    return args


def main():
    args = parse()
    args.json = begin("generate", args.json)
    measure_parts(args.json, "generate", PARTS,
                  {"speed": lambda: [measure_model(args, name) for name in args.models]}, all_goals)


if __name__ == "__main__":
    main()
