"""The tables of docs/PERFORMANCE.md over all results: which goals are met, and where files come from."""
import dataclasses
import os
import re

import page_text
from page_text import percent, table


@dataclasses.dataclass(frozen=True)
class Group:
    """Goals that one row of the table sums up."""
    bench: str  # The file's own word.
    what: str  # Shown in front of its goals; "": the same as the group before.
    goal: str
    names: str  # A regular expression of the goals' whole names.
    write: object = "{:.3g}".format

    def found(self, results):
        return [goal for goal in results["goals"] if re.fullmatch(self.names, goal["name"])]


def mebibytes(value):
    return f"{value:.0f} MiB"


def milliseconds(value):
    return f"{value * 1e3:.0f} ms"


def times(value):
    return f"{value:.3f}" if value < 2 else f"{value:.3g}"


COMM = "[all-reduce in shared memory](#collectives-in-shared-memory), registered memory"
PLAIN = "the same, plain memory"
SHM = (("20 x Gloo at 4 KiB", "4KiB_vs_gloo"), ("6 x Gloo from 1 MiB", "from_1MiB_vs_gloo"),
       ("0.97 of the better of OpenMPI and DeepSpeed to 4 MiB", "4KiB_to_4MiB_vs_best_of_openmpi_deepspeed"),
       ("faster than both beyond 4 MiB", "beyond_4MiB_vs_best_of_openmpi_deepspeed"),
       ("1.5 x OpenMPI from 16 MiB", "from_16MiB_vs_openmpi"))
STEP, ZERO, OPTIMIZER = "[step](#a-step-beside-torchrun-and-ddp)", "[ZeRO](#zero-stages)", \
    "[optimizer](#the-optimizer)"
START = "[start](#start-memory-and-bookkeeping)"
START_GOALS = (("command to the first forward at most 1/6", "first_forward_vs_torchrun"),
               ("private memory before the first batch at most 0.4", "memory_before_first_batch_vs_ddp"),
               ("private memory at the peak at most 0.9", "memory_peak_vs_ddp"))
# The goals' names say which twin they were set against.
START_PEERS = (("_without_cuda", " without CUDA's libraries"), ("", ", which maps CUDA's libraries"))
GROUPS = (
    *(Group("comm", COMM, text, f"comm.shm_{name}", times) for text, name in SHM),
    Group("comm", COMM, "85 % of the probe", "comm.shm_.*_of_zero_copy_bound", percent),
    *(Group("comm", PLAIN, text, f"comm.shm_{name}_plain", times) for text, name in SHM),
    Group("tcp", "[TCP](#tcp-between-two-hosts)", "1.5 x Gloo from 64 KiB", "comm.tcp_veth.*", times),
    Group("tcp", "", "97 % of a plain stream on 1 Gbit/s", "comm.tcp_1Gbit.*",
          lambda value: percent(value, 1)),
    Group("roce", "[RoCE, emulated](#rdma-emulated)", "send/receive 90 % of ib_write_bw",
          "comm.roce_.*send_receive.*", percent),
    Group("roce", "", "all-reduce 60 % of ib_write_bw", "comm.roce_.*all_reduce.*", percent),
    Group("overlap", "[gradients behind backward](#gradients-behind-backward)",
          "at most 3 % exposed where it can be hidden", "overlap.*exposed_of_communication", percent),
    Group("overlap", "", "at most 1.03 of the possible step elsewhere", "overlap.*step_of_possible", times),
    Group("zero", ZERO, "stage 0: 1.0 x DDP", "zero.*stage0_vs_ddp", times),
    Group("zero", "", "stages 1 to 3: 1.2 x the better of DeepSpeed and FSDP2", "zero.*_vs_best_peer", times),
    Group("zero", "", "states within 2 % of the plan", "zero.*_states_off_the_plan",
          lambda value: percent(value, 1)),
    Group("zero", "", "a step of stage 3 at most 1.15 of stage 0's", "zero.*_step_of_stage0", times),
    Group("optimizer", OPTIMIZER, "AdamW 0.97 x torch fused", "optimizer.*_vs_torch_fused", times),
    Group("optimizer", "", "AdamW 2 x DeepSpeedCPUAdam", "optimizer.*_vs_deepspeed", times),
    Group("optimizer", "", "mixed-precision update 1.3 x torch", "optimizer.*_vs_best_torch_sequence", times),
    Group("optimizer", "", "mixed-precision update at most 1.05 of the probe's time",
          "optimizer.*_time_of_probe", times),
    Group("step", STEP, "min(1.25, 0.92 / f) x eager, never below 1", "step.*vs_eager", times),
    Group("step", "", "1.0 x torch.compile", "step.*vs_compile", times),
    Group("step", "", "at most 10 % of it outside GEMM and attention", "step.*outside.*",
          lambda value: percent(value, 1)),
    *(Group("step", START, f"{text} of torchrun + DDP{peer}", f"step.{name}{suffix}", times)
      for suffix, peer in START_PEERS for text, name in START_GOALS),
    Group("step", START, "bookkeeping at most 1 us a tensor", "step.bookkeeping.*"),
    Group("kernels", "[kernels](#kernels)", "0.97 x torch.compile", "kernels.*vs_compile"),
    Group("kernels", "", "min(2, 0.9 / eager's share of the probe) x eager, never below 1",
          "kernels.*vs_eager"),
    Group("kernels", "", "90 % of the probe", "kernels.*probe_fraction"),
    Group("classifier", "[fused classifier](#the-fused-classifier)", "faster than eager",
          "classifier.*vs_eager", times),
    Group("classifier", "", "at most 65 MiB at the peak, whatever the vocabulary", "classifier.*peak_mib",
          mebibytes),
    Group("checkpoint", "[checkpoints](#checkpoints)", "training stands still at most 2 ms a GB",
          "checkpoint.*async_blocked_ms_per_gb"),
    Group("checkpoint", "", "at most 1/20 of DCP's asynchronous save", "checkpoint.*async_blocked_of_dcp_async",
          times),
    Group("checkpoint", "", "a step at most 1.01 of one without saves", "checkpoint.*_step_of_none", times),
    Group("checkpoint", "", "a step's journal at most 2.1 bytes a parameter",
          "checkpoint.*journal_bytes_per_parameter", "{:.3f}".format),
    Group("checkpoint", "", "95 % of O_DIRECT's rate, written and restored", "checkpoint.*_of_direct", percent),
    Group("checkpoint", "", "a restore takes at most 64 MB beside the state", "checkpoint.*peak_over_state_mb",
          "{:.0f} MB".format),
    Group("checkpoint", "", "another number of ranks at most 1.2 of a plain restore",
          "checkpoint.*reshard_of_restore", times),
    Group("launch", "[launching](#launching)", "2 ranks from command to the first forward within 0.5 s",
          "launch.first_forward_s", "{:.2f} s".format),
    Group("launch", "", "at most 1/8 of torchrun's time", "launch.first_forward_vs_torchrun.*", times),
    Group("launch", "", "two hosts over ssh at most 1/4 of torchrun's time", "launch.two_hosts.*", times),
    Group("launch", "", "`dtrain --help` within 20 ms", "launch.help_s", milliseconds),
    Group("launch", "", "a killed rank is seen within 50 ms", "launch.killed_rank_seen_s", milliseconds),
    Group("launch", "", "and the next step has ended within 0.3 s of it", "launch.killed_rank_next.*", milliseconds),
    Group("launch", "", "a hang is named within its limit", "launch.hang_seen_s", "{:.2f} s".format),
    Group("launch", "", "and the right rank is", "launch.hang_right_rank", "{:.0f}".format),
    Group("launch", "", "a lost host is seen within 1 s", "launch.lost_node_seen_s.*", milliseconds),
    Group("launch", "", "and the next step has ended within 2 s with a spare, 5 s without",
          "launch.lost_node_next_step_s.*", "{:.2f} s".format),
    Group("launch", "", "2,048 simulated ranks are ready in 1 s, 16,384 in 8 s", "launch.simulated.*",
          "{:.2f} s".format),
    Group("launch", "", "95 % of the time in correct steps under random faults", "launch.random_faults_goodput",
          percent),
    Group("launch", "", "no lost step, no orphan, no false restart", "launch.random_faults_(?!goodput).*",
          "{:.0f}".format),
    Group("data", "[text and tokens](#text-and-tokens)", "5 x tokenizers for GPT-2's kind", "data.gpt2_vs_.*", times),
    Group("data", "", "3 x tokenizers and SentencePiece for other kinds", "data.(?!gpt2_).*_vs_.*", times),
    Group("data", "", "1 GB of JSONL in 512 MB of memory", "data.memory_mb_.*", "{:.0f} MB".format),
    Group("data", "", "a training reads 1 Gtok/s on a core", "data.reading_.*", lambda value: f"{value * 1e-9:.2f}"),
    Group("generate", "[text of a model](#text-and-tokens)", "1.0 x transformers", "generate.*", times),
    Group("train", "[default training](#the-default-training)", "validation loss below 2.4 within 3 minutes",
          "train.validation_loss.*"),
    Group("train", "", "1 s from a kill of a rank to the end of the launch", "train.slowest_kill.*",
          "{:.2f} s".format))
MANY = 4  # A cell shows up to so many measured values one by one.


def measured_text(group, goals):
    values = [goal["measured"] for goal in goals]
    if len(values) > MANY:
        return f"{group.write(min(values))} to {group.write(max(values))}"
    return ", ".join(group.write(value) for value in values)


def verdict_text(goals):
    verdicts = [goal["verdict"] for goal in goals]
    if len(set(verdicts)) == 1:
        return page_text.SHORT if verdicts[0] == "short" else verdicts[0]
    return page_text.counted(verdicts)


def all_goals(files):
    rows, shown, of_groups = [], "", ""
    for group in GROUPS:
        of_groups = group.what or of_groups
        for name, results in files.items():
            if results.get("bench") != group.bench or not (goals := group.found(results)):
                continue
            what, shown = of_groups if of_groups != shown else "", of_groups
            mark = "*" if results["marks"] else ""
            rows.append((what, name.split("/")[0] + mark, group.goal, measured_text(group, goals),
                         verdict_text(goals)))
    return table(("what", "machine", "goal", "measured", ""), rows)


def machines(files):
    folders = {}
    for name, results in files.items():
        if "cpu" not in results:  # A GPU's file, or one of no machine.
            continue
        folder, file = os.path.split(name)
        folders.setdefault(folder, []).append((file.removesuffix(".json"), results))
    rows = []
    for folder, found in folders.items():
        cpus = dict.fromkeys(f"{one['cpu']}, {one['cores']} cores" for _, one in found if one["cpu"])
        rows.append((folder, "; ".join(cpus), ", ".join(
            f"{file} ({one['date'] or 'no date'})" + ("*" if one["marks"] else "") for file, one in found)))
    return table(("folder of bench/results", "CPU", "results"), rows)


TABLES = {"all-goals": all_goals, "machines": machines}
