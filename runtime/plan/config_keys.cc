#include "runtime/plan/config_keys.h"

#include <iterator>
#include <vector>

namespace dtrain::plan {
namespace {

// Path, type, default (JSON), range, use, supported values (JSON list), flags, meaning. Comment
// lines are the headings of docs/CONFIG.md's groups for the reader of the source; the document
// takes its own from the first part of the path.
constexpr ConfigKey kKeys[] = {
    // The run.
    {"train_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "", 0,
     "Optimizer steps of the run. Absent: scheduler.params.total_num_steps if that is a number, "
     "else 1000."},
    {"eval_interval", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Evaluate every so many steps and at the end; 0: never."},
    {"eval_batches", KeyType::kInteger, "16", "[1, inf)", KeyUse::kUsed, "", 0,
     "Global batches read in one evaluation, always the same ones."},
    {"seed", KeyType::kInteger, "1234", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Seeds initial weights, dropout and the order of the data."},
    {"deterministic", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Sum in rank order, so that results are bit-equal whatever the bucket size and transport."},
    {"device", KeyType::kString, "\"auto\"", "auto|cpu|cuda", KeyUse::kUsed, "", 0,
     "Where ranks train. auto: on GPUs where there are any, that of the local rank, else on the "
     "CPU."},
    {"cuda_graphs", KeyType::kBool, "false", "", KeyUse::kUsed, "", 0,
     "On a GPU, at stages 0 and 1: forward and backward of a micro-batch are captured as a CUDA "
     "graph and from then on launched as one operation; so is the update at stages 0 and 3. The "
     "same operations on the same numbers. The loss closure then runs only while it is captured: "
     "what it does on the host (counting, printing, branches, numbers of the host's generator) "
     "happens once, and the tensors it reads must stay where they are. A micro-batch that cannot "
     "be captured runs eagerly, and one line says why."},
    // Batch.
    {"train_batch_size", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Samples in one optimizer step over all ranks = micro-batch x accumulation x world size. "
     "\"auto\": from the other two."},
    {"train_micro_batch_size_per_gpu", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed,
     "", kAutoAllowed,
     "Samples that one rank takes through the model at a time. \"auto\": from the other two."},
    {"gradient_accumulation_steps", KeyType::kInteger, "null", "[1, 2147483648]", KeyUse::kUsed, "",
     kAutoAllowed, "Micro-batches in one optimizer step. \"auto\": from the other two."},
    // Optimizer.
    {"optimizer.type", KeyType::kString, "\"AdamW\"",
     "AdamW|Adam|Adagrad|Lamb|Lion|Muon|SGD|OneBitAdam|ZeroOneAdam|OneBitLamb", KeyUse::kRefused,
     "[\"AdamW\", \"Adam\", \"SGD\", \"Lion\", \"Lamb\", \"Adagrad\", \"Muon\"]", kIdentity,
     "Adam is AdamW unless adam_w_mode is false. Case does not matter."},
    {"optimizer.params.lr", KeyType::kNumber, "1e-3", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "Learning rate. Default and \"auto\": by the type."},
    {"optimizer.params.betas", KeyType::kNumberPair, "[0.9, 0.999]", "[0, 1)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "Decay of the two moments. Default and \"auto\": by the type."},
    {"optimizer.params.eps", KeyType::kNumber, "1e-8", "(0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Added to the root of the second moment. Default and \"auto\": by the type."},
    {"optimizer.params.weight_decay", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "Weight decay. \"auto\": 0."},
    {"optimizer.params.adam_w_mode", KeyType::kBool, "true", "", KeyUse::kUsed, "", kIdentity,
     "With type Adam: decay apart from the gradient (AdamW) or added to it."},
    {"optimizer.params.momentum", KeyType::kNumber, "0", "[0, 1)", KeyUse::kUsed, "", kIdentity,
     "SGD, Muon: share of the momentum that stays. Default: 0; Muon 0.95."},
    {"optimizer.params.dampening", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "", kIdentity,
     "SGD: share of the gradient that does not come into the momentum."},
    {"optimizer.params.nesterov", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "SGD: look ahead along the momentum; Muon always does."},
    {"optimizer.params.max_coeff", KeyType::kNumber, "10.0", "(0, inf)", KeyUse::kUsed, "",
     kIdentity, "Lamb: largest trust ratio."},
    {"optimizer.params.min_coeff", KeyType::kNumber, "0.01", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "Lamb: smallest trust ratio."},
    {"optimizer.params.eps_inside_sqrt", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "Lamb adds eps to the root."},
    {"optimizer.params.lr_decay", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Adagrad: lr / (1 + lr_decay n) in update n, from 0."},
    {"optimizer.params.initial_accumulator_value", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity, "Adagrad: where the sum of squares starts."},
    {"optimizer.params.muon_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Muon: of its matrices. Absent: lr if given, else 0.02."},
    {"optimizer.params.adam_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Muon: of all else. Absent: lr if given, else 3e-4."},
    {"optimizer.params.ns_method", KeyType::kString, "\"gram\"", "gram|standard", KeyUse::kIgnored,
     "", 0, "Muon: DeepSpeed's two orders of one computation; here it is done in fp32 either way."},
    {"optimizer.params.per_head_muon", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "Muon takes whole matrices."},
    {"optimizer.params.bias_correction", KeyType::kBool, "true", "", KeyUse::kRefused, "[true]",
     kIdentity, "Bias correction of the moments is always on."},
    {"optimizer.params.amsgrad", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     kIdentity, "AMSGrad is not supported."},
    {"optimizer.params.torch_adam", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; dtrain has one."},
    {"optimizer.params.fused", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; the update is always fused."},
    {"optimizer.params.max_grad_norm", KeyType::kNumber, "null", "", KeyUse::kRefused, "[]", 0,
     "Use gradient_clipping."},
    {"optimizer.legacy_fusion", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; dtrain has one."},
    {"optimizer.no_weight_decay", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Names of parameters without weight decay; * stands for any text (\"*.bias\", \"*norm*\"). "
     "Empty, as in torch: all are decayed."},
    {"optimizer.param_groups", KeyType::kObjectList, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Settings by names of parameters; see Optimizers above."},
    {"gradient_clipping", KeyType::kNumber, "1.0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "Largest global gradient norm; 0: no clipping. \"auto\": 1.0."},
    {"gradient_clipping_value", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "Largest magnitude of a gradient's element, after gradient_clipping; 0: no limit."},
    // Scheduler (it steps after the optimizer).
    {"scheduler.type", KeyType::kString, "null",
     "WarmupLR|WarmupDecayLR|WarmupCosineLR|LRRangeTest|OneCycle|WSD", KeyUse::kUsed, "", kIdentity,
     "Absent: the learning rate is constant."},
    {"scheduler.params.warmup_min_lr", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity, "WarmupLR, WarmupDecayLR: where warm-up starts. \"auto\": 0."},
    {"scheduler.params.warmup_max_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "WarmupLR, WarmupDecayLR: where warm-up ends. Absent: the optimizer's lr (WarmupLR), 0.001 "
     "(WarmupDecayLR). \"auto\": the optimizer's lr."},
    {"scheduler.params.warmup_num_steps", KeyType::kInteger, "1000", "[1, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "Steps of warm-up, at least 2 in effect. \"auto\": a fiftieth of train_steps, at least 1."},
    {"scheduler.params.warmup_type", KeyType::kString, "\"log\"", "log|linear", KeyUse::kUsed, "",
     kIdentity, "Shape of warm-up: ln(n + 1) / ln(N), or n / N."},
    {"scheduler.params.total_num_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "",
     kAutoAllowed | kIdentity,
     "WarmupDecayLR, WarmupCosineLR: where the decay ends. Absent or \"auto\": train_steps."},
    {"scheduler.params.warmup_min_ratio", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "",
     kIdentity, "WarmupCosineLR: share of the optimizer's lr where warm-up starts."},
    {"scheduler.params.cos_min_ratio", KeyType::kNumber, "1e-4", "[0, 1]", KeyUse::kUsed, "",
     kIdentity, "WarmupCosineLR: share of the optimizer's lr where the cosine ends."},
    {"scheduler.params.last_batch_iteration", KeyType::kInteger, "-1", "", KeyUse::kRefused, "[-1]",
     0, "A resumed run goes on from its checkpoint."},
    {"scheduler.params.lr_range_test_min_lr", KeyType::kNumber, "1e-3", "(0, inf)", KeyUse::kUsed,
     "", kIdentity, "LRRangeTest: the first learning rate."},
    {"scheduler.params.lr_range_test_step_rate", KeyType::kNumber, "1.0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity, "LRRangeTest: growth in each interval."},
    {"scheduler.params.lr_range_test_step_size", KeyType::kInteger, "2000", "[1, inf)",
     KeyUse::kUsed, "", kIdentity, "LRRangeTest: steps in an interval."},
    {"scheduler.params.lr_range_test_staircase", KeyType::kBool, "false", "", KeyUse::kUsed, "",
     kIdentity, "LRRangeTest: grow at the end of an interval only."},
    {"scheduler.params.cycle_min_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: where the cycle starts and ends; required."},
    {"scheduler.params.cycle_max_lr", KeyType::kNumber, "null", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: its peak; required."},
    {"scheduler.params.cycle_first_step_size", KeyType::kInteger, "2000", "[1, inf)", KeyUse::kUsed,
     "", kIdentity, "OneCycle: steps up."},
    {"scheduler.params.cycle_second_step_size", KeyType::kInteger, "null", "[0, inf)",
     KeyUse::kUsed, "", kIdentity, "OneCycle: steps down. Absent: cycle_first_step_size."},
    {"scheduler.params.cycle_first_stair_count", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed,
     "", kIdentity, "OneCycle: stairs up; 0: continuous."},
    {"scheduler.params.cycle_second_stair_count", KeyType::kInteger, "null", "[0, inf)",
     KeyUse::kUsed, "", kIdentity, "OneCycle: stairs down. Absent: cycle_first_stair_count."},
    {"scheduler.params.decay_step_size", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: steps of a decay interval after the cycle; 0: no decay."},
    {"scheduler.params.decay_lr_rate", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: decay in an interval."},
    {"scheduler.params.cycle_momentum", KeyType::kBool, "true", "", KeyUse::kUsed, "", kIdentity,
     "OneCycle: beta1 moves against the learning rate; beta2 is then 0.99, as in DeepSpeed."},
    {"scheduler.params.cycle_min_mom", KeyType::kNumber, "0.8", "[0, 1)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: beta1 at the peak."},
    {"scheduler.params.cycle_max_mom", KeyType::kNumber, "0.9", "[0, 1)", KeyUse::kUsed, "",
     kIdentity, "OneCycle: beta1 at the ends and afterwards."},
    {"scheduler.params.decay_mom_rate", KeyType::kNumber, "0", "", KeyUse::kRefused, "[0]",
     kIdentity, "A beta1 that grows for ever passes 1."},
    {"scheduler.params.decay_num_steps", KeyType::kInteger, "null", "[1, inf)", KeyUse::kUsed, "",
     kIdentity, "WSD: steps of the decay at the end. Absent: a tenth of total_num_steps."},
    {"scheduler.params.decay_type", KeyType::kString, "\"sqrt\"", "sqrt|linear", KeyUse::kUsed, "",
     kIdentity, "WSD: 1 - sqrt(p), or 1 - p, with p from 0 to 1 over the decay."},
    {"scheduler.params.decay_min_ratio", KeyType::kNumber, "0", "[0, 1]", KeyUse::kUsed, "",
     kIdentity, "WSD: share of the optimizer's lr where the decay ends."},
    // Data.
    {"data.train", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", kIdentity,
     "Token files for training: paths or glob patterns. Relative ones count from the working "
     "directory."},
    {"data.validation", KeyType::kStringList, "[]", "", KeyUse::kUsed, "", 0,
     "Token files for evaluation."},
    {"data.sequence_length", KeyType::kInteger, "1024", "[1, 2147483647]", KeyUse::kUsed, "",
     kIdentity, "Tokens the model sees in one sample; a sample reads one more as target."},
    {"data.format", KeyType::kString, "\"auto\"", "auto|llmc|nanogpt-u16", KeyUse::kUsed, "",
     kIdentity,
     "auto: by the header (llm.c u16 and u32, dtrain data prepare); nanogpt-u16: raw, has no "
     "header."},
    {"data.document_token", KeyType::kInteger, "-1", "[-1, 2147483647]", KeyUse::kUsed, "",
     kIdentity,
     "Id of the token that separates documents: attention then stays inside a document, positions "
     "count from its start, and no token is trained to foretell the next document. -1: a sample is "
     "one text. Files of dtrain data prepare: 0."},
    {"data.document_token_place", KeyType::kString, "\"end\"", "end|start", KeyUse::kUsed, "",
     kIdentity,
     "Whether that token is a document's last one (dtrain data prepare) or its first (llm.c's "
     "FineWeb, with 50256)."},
    // Checkpoint.
    {"checkpoint.interval", KeyType::kInteger, "0", "[0, inf)", KeyUse::kUsed, "", 0,
     "Save every so many steps and at the end; 0: at the end only."},
    {"checkpoint.keep", KeyType::kInteger, "3", "[0, inf)", KeyUse::kUsed, "", 0,
     "Newest checkpoints that are kept; 0: all."},
    {"checkpoint.dir", KeyType::kString, "\"\"", "", KeyUse::kUsed, "", 0,
     "Folder of the checkpoints. Empty: checkpoints/ in the run directory."},
    {"checkpoint.max_shard_size", KeyType::kInteger, "50000000000", "[1, inf)", KeyUse::kUsed, "",
     0,
     "Bytes of weights in one .safetensors file, of checkpoints and exports; more go to further "
     "files with an index. A tensor is never split."},
    {"checkpoint.journal", KeyType::kString, "\"off\"", "off|async|sync", KeyUse::kRefused,
     "[\"off\"]", 0, "The step journal is not built yet."},
    {"checkpoint.tag_validation", KeyType::kString, "\"Warn\"", "Ignore|Warn|Fail",
     KeyUse::kIgnored, "", 0, "All ranks save under one name by construction."},
    {"checkpoint.load_universal", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "DeepSpeed's universal checkpoints cannot be read; convert to a Hugging Face folder first."},
    {"checkpoint.use_node_local_storage", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0, "Every rank must see checkpoint.dir."},
    // Precision.
    {"bf16.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kAutoAllowed | kIdentity,
     "Parameters, buffers and computing in bf16; each rank keeps an fp32 master of the weights "
     "that "
     "it updates; gradients are summed in fp32. \"auto\": false."},
    {"fp16.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kAutoAllowed | kIdentity,
     "As bf16.enabled, in fp16, with the loss scaled. \"auto\": false."},
    {"fp16.loss_scale", KeyType::kNumber, "0", "[0, inf)", KeyUse::kUsed, "", kIdentity,
     "What the loss is multiplied with before backward; 0: dynamic."},
    {"fp16.initial_scale_power", KeyType::kInteger, "16", "[0, 32]", KeyUse::kUsed, "", kIdentity,
     "Dynamic: the first scale is 2 to this power."},
    {"fp16.loss_scale_window", KeyType::kInteger, "1000", "[1, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic: steps without overflow after which the scale is doubled."},
    {"fp16.hysteresis", KeyType::kInteger, "2", "[1, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic: overflows before the scale is halved."},
    {"fp16.consecutive_hysteresis", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Dynamic: count overflows anew after each step without one, not only when the scale is "
     "doubled."},
    {"fp16.min_loss_scale", KeyType::kNumber, "1", "(0, inf)", KeyUse::kUsed, "", kIdentity,
     "Dynamic: the smallest scale; an overflow there ends the run."},
    {"fp16.auto_cast", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]", 0,
     "Cast inputs in the loss function."},
    {"fp16.fp16_master_weights_and_grads", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0, "Masters and gradients are fp32."},
    {"bf16.check_grad_overflow", KeyType::kBool, "true", "", KeyUse::kIgnored, "", 0,
     "Steps whose gradient is not finite are always skipped."},
    {"bf16.immediate_grad_update", KeyType::kBool, "false", "", KeyUse::kIgnored, "", 0,
     "Chooses an implementation; dtrain has one."},
    {"bf16.bf16_master_weights_and_grads", KeyType::kBool, "false", "", KeyUse::kRefused, "[false]",
     0, "Masters and gradients are fp32."},
    {"bf16.bf16_optimizer_states", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Optimizer states in bf16, rounded to nearest; masters stay fp32. Not with Lamb and Muon."},
    {"bf16.stochastic_rounding", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "With bf16_optimizer_states, AdamW and Adam: states are rounded up with the probability of "
     "what is cut off, so that a second moment follows small changes too. The bits come from seed, "
     "step and place in the model: the same at every stage, on any number of ranks and after a "
     "resume. Weights need none: they have fp32 masters."},
    {"fp8.enabled", KeyType::kBool, "false", "", KeyUse::kUsed, "", kIdentity,
     "Products of linear layers in 8-bit floating point, in models that call ops::Fp8Linear, as "
     "the example does for its layers (not for the head). Needs bf16.enabled. On a CPU emulated, "
     "to look at numerics."},
    {"fp8.scaling", KeyType::kString, "\"tensorwise\"", "tensorwise|rowwise", KeyUse::kUsed, "",
     kIdentity,
     "What shares a scale: a whole matrix, or what is summed for one row or column of the result."},
    {"fp8.gradients", KeyType::kString, "\"e5m2\"", "e5m2|e4m3", KeyUse::kUsed, "", kIdentity,
     "The format of gradients; weights and activations are e4m3."},
    {"data_types.grad_accum_dtype", KeyType::kString, "null", "fp32|bf16|fp16", KeyUse::kRefused,
     "[\"fp32\"]", 0, "Gradients accumulate in fp32."},
};

}  // namespace

absl::Span<const ConfigKey> ConfigKeys() {
  static const std::vector<ConfigKey> all = [] {
    std::vector<ConfigKey> keys(std::begin(kKeys), std::end(kKeys));
    for (const absl::Span<const ConfigKey> part :
         {ZeroConfigKeys(), CommConfigKeys(), OtherConfigKeys(), DeepSpeedConfigKeys()}) {
      keys.insert(keys.end(), part.begin(), part.end());
    }
    return keys;
  }();
  return all;
}

}  // namespace dtrain::plan
