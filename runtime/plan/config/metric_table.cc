#include "runtime/plan/config/metric_table.h"

namespace dtrain::plan {
namespace {

constexpr char kStep[] = "every step";
constexpr char kRank0[] = "rank 0";
constexpr char kAll[] = "all";

constexpr MetricName kMetrics[] = {
    {"train/loss", "-", "Mean loss over the global batch.", kRank0, kStep, "progress line"},
    {"train/grad_norm", "-", "L2 norm of the gradient of all parameters, before clipping.", kRank0,
     kStep, "progress line"},
    {"train/lr", "-", "Learning rate that the step used.", kRank0, kStep, "progress line"},
    {"train/loss_scale", "-", "Factor that multiplied the loss before backward.", kRank0,
     "every step whose factor is not 1 (fp16)", ""},
    {"train/skipped", "-",
     "1 if the step updated nothing, because its gradient was not finite or no target counted.",
     kRank0, "skipped steps only", ""},
    {"perf/tokens_per_s", "1/s", "Tokens of the global batch divided by the time of the step.",
     kRank0, "every step of a program that trains on tokens", "progress line"},
    {"perf/samples_per_s", "1/s",
     "Samples of the global batch divided by the time of the step. If the program names a unit "
     "(EngineOptions::sample_unit), the metric has the name of that unit, for example "
     "perf/images_per_s.",
     kRank0, "every step of a program that does not train on tokens", "progress line"},
    {"perf/gemm_fraction", "-",
     "Model FLOP/s of this rank divided by the best matrix-multiplication FLOP/s that the run has "
     "measured on it: after its second step, and on a CPU again and again, in 0.05 % of the time. "
     "It is left out if it would be above 1, because other programs then slowed the measurement "
     "down.",
     kRank0,
     "every step after the measurement, if the program states its model FLOPs and the fraction is "
     "at most 1",
     "progress line, if there is no perf/mfu"},
    {"perf/mfu", "-",
     "Model FLOP/s of this rank divided by the peak FLOP/s in its GPU's datasheet.", kRank0,
     "every step on a known GPU, if the program states its model FLOPs", "progress line"},
    {"comm/exposed_ratio", "-",
     "Share of the step in which the rank only waited for communication (time/exposed_comm_s "
     "divided by time/step_s).",
     kAll, kStep, "progress line"},
    {"time/step_s", "s", "Time of the whole step.", kAll, kStep, ""},
    {"time/data_s", "s", "Time in which the step waited for its batch.", kAll, kStep, ""},
    {"time/forward_s", "s", "Time of forward, over all micro-batches.", kAll, kStep, ""},
    {"time/backward_s", "s", "Time of backward, over all micro-batches.", kAll, kStep, ""},
    {"time/exposed_comm_s", "s",
     "Time in which the step waited for communication that backward did not hide.", kAll, kStep,
     ""},
    {"time/update_s", "s", "Time of the optimizer's update.", kAll, kStep, ""},
    {"time/recompute_s", "s", "Part of the time of backward in which forward was computed again.",
     kAll, "steps that recompute activations", ""},
    {"time/activation_wait_s", "s",
     "Part of the time of backward in which the rank waited for offloaded activations.", kAll,
     "steps that recompute activations", ""},
    {"time/eta_s", "s",
     "Expected time to the end of the run: remaining steps times the smoothed time of a step.",
     kRank0, "every step, if the number of steps is known", "progress line"},
    {"time/checkpoint_s", "s",
     "Time in which training stood still for a checkpoint. With checkpoint.async it is part of the "
     "steps' time.",
     kAll, "every checkpoint", ""},
    {"memory/weights_bytes", "bytes",
     "Weights on this rank (at stage 3 its part of them), frozen weights included.", kAll, kStep,
     ""},
    {"memory/live_weights_bytes", "bytes", "Memory that stage 3 uses for gathered weights.", kAll,
     kStep, ""},
    {"memory/gradients_bytes", "bytes",
     "Gradients, and the buckets in which they are communicated.", kAll, kStep, ""},
    {"memory/optimizer_bytes", "bytes", "Optimizer states and fp32 master weights.", kAll, kStep,
     ""},
    {"memory/activations_bytes", "bytes",
     "Largest amount that the forward pass of one micro-batch kept for backward.", kAll, kStep, ""},
    {"memory/far_activations_bytes", "bytes",
     "Largest amount of offloaded activations, which are in host memory or in a file.", kAll,
     "steps that offload activations", ""},
    {"memory/resident_bytes", "bytes",
     "Memory of the whole process, including shared memory of other ranks that it touched.", kAll,
     kStep, ""},
    {"ckpt/bytes", "bytes", "Size of a checkpoint: the bytes of all ranks' files.", kAll,
     "every checkpoint", "checkpoint line"},
    {"ckpt/seconds", "s", "Time from the start of a checkpoint until it was complete.", kAll,
     "every checkpoint", "checkpoint line"},
    {"ckpt/skipped", "-",
     "Number of saves so far that came due while another one was still being written.", kAll,
     "every skipped checkpoint", ""},
    {"ckpt/remote_bytes", "bytes", "Size of a checkpoint that was copied to checkpoint.remote.",
     kRank0, "every copied checkpoint", ""},
    {"ckpt/remote_seconds", "s", "Time in which it was copied, beside training.", kRank0,
     "every copied checkpoint", ""},
    {"ckpt/remote_failed", "-",
     "Number of copies to checkpoint.remote that have failed so far; the line says why.", kRank0,
     "every failed copy", ""},
    {"ckpt/replicas_lacking", "-",
     "Number of checkpoints so far whose replicas (checkpoint.replicas) are not whole; the line "
     "says why.",
     kRank0, "when that happens", ""},
    {"journal/bytes", "bytes",
     "What this rank wrote into the step journal since the last such line.", kAll,
     "every checkpoint with checkpoint.journal", ""},
    {"journal/seconds", "s", "Time in which it wrote that, beside training.", kAll,
     "every checkpoint with checkpoint.journal", ""},
    {"journal/off", "-", "1: the step journal has switched itself off; the line says why.", kAll,
     "when that happens", ""},
    {"journal/alone", "-",
     "Number of times so far that this rank's part of the step journal went on without a replica "
     "(checkpoint.replicas), until the next checkpoint; the line says why.",
     kAll, "when that happens", ""},
    {"time/journal_s", "s",
     "Time in which training stood still for the step journal since the last such line. It is part "
     "of the steps' time.",
     kAll, "every checkpoint with checkpoint.journal", ""},
    {"eval/loss", "-",
     "Mean loss over the evaluation batches. An evaluation that a stop signal ended has none.",
     kRank0, "every evaluation (the example programs write it)", "evaluation line"},
    {"metrics/dropped", "-",
     "Number of lines of the metrics file that were lost so far because the disk was slower than "
     "the steps.",
     kAll, "every step after the first lost line", ""},
};

}  // namespace

absl::Span<const MetricName> MetricNames() { return kMetrics; }

}  // namespace dtrain::plan
