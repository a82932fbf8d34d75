"""The model of `dtrain bench mfu` in Hugging Face's transformers, trained by torch: eager or compiled.

Random tokens and weights, no dropout, fused AdamW, clipping at 1, one micro-batch a step.
bf16 trains bf16 weights (autocast would keep fp32 ones and be slower). Prints or
writes one JSON object: {"tokens_per_s", "step_seconds", "torch", "transformers", ...}.
"""
import argparse
import json
import statistics
import time

import torch
import transformers


def read_config(path):
    with open(path, encoding="utf-8") as file:
        values = json.load(file)
    kind = values.pop("model_type")
    for name in list(values):
        if name.endswith(("pdrop", "dropout")):
            values[name] = 0.0
    if kind == "gpt2":
        values.update(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0)
    return transformers.AutoConfig.for_model(kind, **values)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config.json of a Hugging Face model")
    parser.add_argument("--way", choices=["eager", "compile"], default="eager")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    config = read_config(args.config)
    torch.manual_seed(1)
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                          attn_implementation="sdpa")
    model = model.to(args.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    forward = torch.compile(model, dynamic=False) if args.way == "compile" else model

    def step():
        tokens = torch.randint(0, config.vocab_size, (args.micro_batch, args.seq), device=args.device)
        loss = forward(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait(args.device)

    taken = []
    for i in range(args.warm_up + args.steps):
        start = time.perf_counter()
        step()
        if i >= args.warm_up:
            taken.append(time.perf_counter() - start)
    result = {"tokens_per_s": args.micro_batch * args.seq / statistics.median(taken),
              "step_seconds": taken, "torch": torch.__version__,
              "transformers": transformers.__version__, "way": args.way, "dtype": args.dtype,
              "memory_peak_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None}
    text = json.dumps(result, indent=2) + "\n"
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
