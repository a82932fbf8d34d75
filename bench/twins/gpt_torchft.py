"""The example's GPT under torchft's DistributedDataParallel: one process of each replica group, which votes on
each step and goes on without a group that is gone. Batches are those of gpt_ddp.py at the same step and rank."""
import datetime
import os
import time

import torch
import torchft

import twin
from tokens import TokenSampler

# torchft's own values are 60 s, with which a fault would take a minute.
TIMEOUT = datetime.timedelta(seconds=5)


def main():
    parser = twin.argument_parser()
    parser.add_argument("--group", type=int, required=True, help="number of this replica group")
    parser.add_argument("--groups", type=int, required=True)
    args = parser.parse_args()
    group, groups = args.group, args.groups
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    setting = twin.Setting(twin.read_config(args.config, args.set), groups)
    model = twin.start_model(args, setting)
    optimizer = setting.adamw(model.parameters())
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=TIMEOUT), min_replica_size=1, timeout=TIMEOUT, quorum_timeout=TIMEOUT,
        replica_id=f"group-{group}", use_async_quorum=False,
        load_state_dict=lambda state: (model.load_state_dict(state["model"]),
                                       optimizer.load_state_dict(state["optimizer"])),
        state_dict=lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    ddp, voting = torchft.DistributedDataParallel(manager, model), torchft.Optimizer(manager, optimizer)
    config, facts = setting.config, twin.Facts(args.facts, group)
    sampler = TokenSampler(config["data"]["train"][0], setting.sequence, setting.global_batch, config["seed"])
    while (step := manager.current_step()) < config["train_steps"]:
        start = time.perf_counter()
        for parameters in optimizer.param_groups:
            parameters["lr"] = twin.learning_rate(config, step)
        voting.zero_grad()
        for g in range(setting.accumulation):
            batch = torch.from_numpy(sampler.micro_batch(step, g, group, groups, setting.micro))
            loss = ddp(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()) / setting.accumulation
            loss.backward()
        if setting.clip > 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), setting.clip)
        voting.step()
        if manager.current_step() > step:  # The groups have agreed on it.
            facts.say(kind="step", step=step + 1, loss=loss.item(), seconds=time.perf_counter() - start)
    os._exit(0)  # The manager's threads go on for its timeouts.


if __name__ == "__main__":
    main()
