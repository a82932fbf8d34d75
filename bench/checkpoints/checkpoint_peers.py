"""The peers of dtrain's checkpoints, under torchrun: the example's GPT under DDP over Gloo, saved and
restored by torch.save, torch.distributed.checkpoint (DCP), torch-checkpointing or safetensors.

What one rank can write alone, rank 0 writes; the others go on to their next step. `--restore` loads
what the same way saved, into a new model and optimizer, as a resumed job does.
"""
import contextlib
import os
import sys
import time

BENCH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[1:1] = [BENCH, f"{BENCH}/twins"]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402

import twin  # noqa: E402
from checkpoint_disk import bytes_of, make_durable  # noqa: E402
from checkpoint_memory import forget_peak, memory_of  # noqa: E402
from gpt_ddp import Ddp  # noqa: E402


class Nothing:
    """Never saves."""

    whole_job = False  # Whether all ranks take part in a save.

    def save(self, state, folder):
        """Begins a save; a future if it goes on beside training, else None."""

    def load(self, peer, folder):
        """Gives the model and the optimizer the state in `folder`."""

    def hold(self):
        """The context in which weights may change."""
        return contextlib.nullcontext()

    def close(self):
        pass


class TorchSave(Nothing):
    def save(self, state, folder):
        os.makedirs(folder)
        torch.save(state, f"{folder}/state.pt")

    def load(self, peer, folder):
        state = torch.load(f"{folder}/state.pt", weights_only=True)
        peer.model.load_state_dict(state["model"])
        peer.optimizer.load_state_dict(state["optimizer"])


class Safetensors(Nothing):
    def save(self, state, folder):
        from safetensors.torch import save_file
        os.makedirs(folder)
        flat = dict(state["model"])
        for index, values in state["optimizer"]["state"].items():
            flat.update({f"optimizer.{index}.{name}": value for name, value in values.items()})
        save_file(flat, f"{folder}/state.safetensors")

    def load(self, peer, folder):
        from safetensors.torch import load_file
        flat = load_file(f"{folder}/state.safetensors")
        states = {}
        for name in [name for name in flat if name.startswith("optimizer.")]:
            _, index, what = name.split(".", 2)
            # load_file maps the file; a copy is in memory, as what the others load.
            states.setdefault(int(index), {})[what] = flat.pop(name).clone()
        peer.model.load_state_dict(flat)
        peer.optimizer.load_state_dict({**peer.optimizer.state_dict(), "state": states})


class Dcp(Nothing):
    whole_job = True

    def save(self, state, folder):
        dcp.save(state, checkpoint_id=folder)

    def load(self, peer, folder):
        peer.make_states()  # DCP reads into tensors that are there.
        state = peer.state()
        dcp.load(state, checkpoint_id=folder)
        peer.model.load_state_dict(state["model"])
        peer.optimizer.load_state_dict(state["optimizer"])


class DcpAsync(Dcp):
    def __init__(self):
        # Its thread's collectives must not come between those of training.
        self.group = dist.new_group(backend="gloo")

    def save(self, state, folder):
        return dcp.async_save(state, checkpoint_id=folder, process_group=self.group)


class TorchCheckpointing(Nothing):
    whole_job = True

    def __init__(self):
        from torch_checkpointing import CheckpointManager, ItemSpec
        from torch_checkpointing.checkpoint_layout import default_torch_layout_info
        from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

        def of_rank_0(key):
            return ItemSpec(layout=default_torch_layout_info(key, 0), required=False)

        # With O_DIRECT, its default, a file whose size is no multiple of a block fails with EINVAL.
        self.manager = CheckpointManager(CheckpointManager.Config(
            storage_config=LocalFileSystemStorageConfig(use_direct_io=False),
            items={key: of_rank_0(key) for key in ("model", "optimizer")}))

    def save(self, state, folder):
        return self.manager.save(folder, state if dist.get_rank() == 0 else {})

    def load(self, peer, folder):
        state = self.manager.load(folder, into={"model": peer.model.state_dict(), "optimizer": None})
        peer.optimizer.load_state_dict(state["optimizer"])

    def hold(self):
        return self.manager.lock()

    def close(self):
        self.manager.close()


PEERS = {"ddp": Nothing, "torch.save": TorchSave, "dcp": Dcp, "dcp-async": DcpAsync,
         "torch-checkpointing": TorchCheckpointing, "safetensors": Safetensors}


class Saving(Ddp):
    """Trains as DDP's twin does, and saves after every `every`th update."""

    def __init__(self, setting, model, how, args, facts):
        super().__init__(setting, model)
        self.model, self.how, self.every, self.folder, self.facts = model, how, args.every, args.folder, facts
        self.steps, self.pending = 0, None

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def make_states(self):
        """The optimizer's states, which it makes in its first step."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def update(self):
        start = time.perf_counter()
        held = self.how.hold()
        held.__enter__()
        held_s = time.perf_counter() - start
        try:
            super().update()
        finally:
            held.__exit__(None, None, None)
        self.facts.say(kind="held", seconds=held_s)
        self.steps += 1
        if self.steps % self.every == 0:
            self.save()

    def save(self):
        folder, step, start = f"{self.folder}/{self.steps}", self.steps, time.perf_counter()
        if self.pending is not None:
            self.pending.result()  # DCP's documents allow one save at a time.
        if self.how.whole_job or dist.get_rank() == 0:
            self.pending = self.how.save(self.state(), folder)
        blocked_s = time.perf_counter() - start

        def done(_=None):
            self.facts.say(kind="save", save=step, blocked_s=blocked_s,
                           done_s=time.perf_counter() - start)

        if self.pending is None:
            done()
        else:
            self.pending.add_done_callback(done)

    def save_and_sync(self):
        """One more save, beside which nothing runs: seconds until the disk has it, and its bytes."""
        if self.pending is not None:
            self.pending.result()
        dist.barrier()
        folder, start = f"{self.folder}/last", time.perf_counter()
        if self.how.whole_job or dist.get_rank() == 0:
            future = self.how.save(self.state(), folder)
            if future is not None:
                future.result()
        if dist.get_rank() == 0:
            make_durable(folder)
            self.facts.say(kind="last", durable_s=time.perf_counter() - start, bytes=bytes_of(folder))
        dist.barrier()


def restore(args, setting, model, how, facts):
    """Loads what save_and_sync saved: seconds of the slowest rank, and how its memory grew."""
    peer = Saving(setting, model, how, args, facts)
    before = forget_peak("self")
    dist.barrier()
    start = time.perf_counter()
    how.load(peer, f"{args.folder}/last")
    mine = torch.tensor([time.perf_counter() - start, float(memory_of("self")["VmHWM"] - before)],
                        dtype=torch.float64)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    facts.say(kind="restore", restore_s=mine[0].item(), growth_bytes=int(mine[1].item()))


def main():
    parser = twin.argument_parser()
    parser.add_argument("--peer", required=True, choices=list(PEERS))
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--restore", action="store_true")
    args = parser.parse_args()
    with twin.process_group():
        how = PEERS[args.peer]()
        facts = twin.Facts(args.facts, dist.get_rank())
        setting = twin.Setting(twin.read_config(args.config, args.set), dist.get_world_size())
        model = twin.start_model(args, setting)
        if args.restore:
            restore(args, setting, model, how, facts)
        else:
            peer = Saving(setting, model, how, args, facts)
            twin.train(args, setting, peer, facts)
            if args.peer != "ddp":
                peer.save_and_sync()
        how.close()


if __name__ == "__main__":
    main()
