"""The model of `dtrain bench mfu` in Hugging Face's transformers, trained by torch: eager or compiled.

Random tokens and weights, no dropout, fused AdamW, clipping at 1, steps of --accumulation
micro-batches. bf16 trains bf16 weights with gradients and AdamW's states in bf16 and no masters
(autocast would keep fp32 ones and be slower). Prints or writes one JSON object: {"tokens_per_s",
"step_seconds", "torch", "transformers", and all that a comparison must know}.
"""
import argparse
import json
import statistics
import time

import torch
import transformers

CLIP = 1.0


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


def make_model(config, args):
    dtype = torch.float32 if args.dtype == "fp32" else torch.bfloat16
    with torch.device(args.device):  # Draws the weights there: a host takes minutes for billions.
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype,
                                                              attn_implementation="sdpa")
    return model.to(args.device).train()


class Training:
    def __init__(self, args):
        self.args, self.config = args, read_config(args.config)
        self.model = make_model(self.config, args)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1,
                                           fused=True)
        self.forward = torch.compile(self.model, dynamic=False) if args.way == "compile" \
            else self.model

    def step(self, micro_batches):
        """Its seconds."""
        start = time.perf_counter()
        for _ in range(micro_batches):
            tokens = torch.randint(0, self.config.vocab_size, (self.args.micro_batch, self.args.seq),
                                   device=self.args.device)
            loss = self.forward(input_ids=tokens, labels=tokens, use_cache=False).loss
            (loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        wait(self.args.device)
        return time.perf_counter() - start


def facts_of(args, taken):
    return {"tokens_per_s": args.micro_batch * args.accumulation * args.seq / statistics.median(taken),
            "step_seconds": taken, "torch": torch.__version__,
            "transformers": transformers.__version__, "way": args.way, "dtype": args.dtype,
            "micro_batch": args.micro_batch, "accumulation": args.accumulation, "sequence": args.seq,
            "gradient_clipping": CLIP, "recompute": "none", "rounding": "nearest", "masters": "none",
            "optimizer_states": args.dtype, "gradients": args.dtype, "loss": "whole logits",
            "attention": "sdpa",
            "memory_peak_bytes": torch.cuda.max_memory_allocated() if args.device == "cuda" else None}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config.json of a Hugging Face model")
    parser.add_argument("--way", choices=["eager", "compile"], default="eager")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--short-steps", type=int, default=0,
                        help="micro-batches of warm-up steps; default: as of the others")
    parser.add_argument("--seq", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", default="")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    training = Training(args)
    for _ in range(args.warm_up):
        training.step(args.short_steps or args.accumulation)
    taken = [training.step(args.accumulation) for _ in range(args.steps)]
    text = json.dumps(facts_of(args, taken), indent=2) + "\n"
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
