"""The all-reduce of Gloo (torch.distributed) or of DeepSpeed's shared-memory operation, by size.

Started by torchrun; each rank on a core of its own. fp32, in place. Rank 0 prints one JSON line a
size: {"bytes", "p50_us"}; a call's time is the maximum over ranks, from a common barrier, which is
a small reduction of the same kind.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist


def operation(kind):
    """The in-place sum over ranks."""
    if kind == "gloo":
        return dist.all_reduce
    from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder  # pylint: disable=C0415
    module = ShareMemCommBuilder().load(verbose=False)  # Compiled on first use.
    os.environ["LOCAL_SIZE"] = str(dist.get_world_size())  # All ranks share memory.
    module.initialize(dist.get_world_size(), dist.get_rank())
    return torch.ops.deepspeed.inference_all_reduce_


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["gloo", "deepspeed-shm"])
    parser.add_argument("--plan", required=True, help="bytes:rounds,...")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    reduce = operation(args.kind)
    small = torch.zeros(16)
    for size_and_rounds in args.plan.split(","):
        size_bytes, rounds = map(int, size_and_rounds.split(":"))
        values = torch.full((size_bytes // 4,), float(rank + 1))
        reduce(values)
        if not bool((values == size * (size + 1) / 2).all()):
            raise SystemExit(f"{args.kind}: wrong sum at {size_bytes} bytes")
        values.zero_()
        times = []
        for i in range(rounds + 3):
            reduce(small)
            start = time.perf_counter()
            reduce(values)
            if i >= 3:
                times.append(time.perf_counter() - start)
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        if rank == 0:
            print(json.dumps({"bytes": size_bytes,
                              "p50_us": statistics.median(slowest.tolist()) * 1e6}), flush=True)
    dist.destroy_process_group()


main()
