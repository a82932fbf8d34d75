"""The example's GPT under torchft's DistributedDataParallel: one process of each replica group, which votes on
each step and goes on without a group that is gone. Batches are those of gpt_ddp.py at the same step and rank. With
--spares, groups above --groups add nothing to the gradients until one of the others is gone."""
import datetime
import os
import time

import torch
import torchft
from torchft.manager import WorldSizeMode

import twin
from tokens import TokenSampler

# Of torchft's own example, which gives gloo's collectives 5 s.
CALL_TIMEOUT = datetime.timedelta(seconds=30)


class Ddp(torchft.DistributedDataParallel):
    """Goes on where a collective has failed, which the manager knows: the hook of torchft 0.2.0 ends the process there,
    with an assertion (its pull request 294), and with the last process the job's state is gone."""

    @staticmethod
    def _comm_hook(state, bucket):
        state.allreduce(bucket.buffer()).wait()
        done = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done


def main():
    parser = twin.argument_parser()
    parser.add_argument("--group", type=int, required=True, help="number of this replica group")
    parser.add_argument("--groups", type=int, required=True)
    parser.add_argument("--spares", action="store_true", help="there may be more groups")
    parser.set_defaults(timeout=CALL_TIMEOUT.total_seconds())
    args = parser.parse_args()
    group, groups = args.group, args.groups
    spares = {"world_size_mode": WorldSizeMode.FIXED_WITH_SPARES} if args.spares else {}
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    setting = twin.Setting(twin.read_config(args.config, args.set), groups)
    model = twin.start_model(args, setting)
    optimizer = setting.adamw(model.parameters())
    collectives = torchft.ProcessGroupGloo(timeout=datetime.timedelta(seconds=args.timeout))
    manager = torchft.Manager(
        pg=collectives, min_replica_size=groups if args.spares else 1, timeout=CALL_TIMEOUT,
        replica_id=f"group-{group}", use_async_quorum=False, **spares,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]),
                                       optimizer.load_state_dict(state["optimizer"])),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    ddp, voting = Ddp(manager, model), torchft.Optimizer(manager, optimizer)
    config, facts = setting.config, twin.Facts(args.facts, group)
    sampler = TokenSampler(config["data"]["train"][0], setting.sequence, setting.global_batch, config["seed"])
    while (step := manager.current_step()) < config["train_steps"]:
        start = time.perf_counter()
        for parameters in optimizer.param_groups:
            parameters["lr"] = twin.learning_rate(config, step)
        voting.zero_grad()
        rank = manager.participating_rank() if args.spares else group  # None of a spare, whose gradients do not count.
        for g in range(setting.accumulation):
            batch = torch.from_numpy(sampler.micro_batch(step, g, rank or 0, groups, setting.micro))
            loss = ddp(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) / setting.accumulation
            loss.backward()
        if setting.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        voting.step()
        if manager.current_step() > step:  # The groups have agreed on it.
            facts.say(kind="step", step=step + 1, loss=loss.item(), seconds=time.perf_counter() - start,
                      ranks=collectives.size())
    os._exit(0)  # The manager's threads go on for its timeouts.


if __name__ == "__main__":
    main()
