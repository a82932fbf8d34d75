// What training takes of a rank's memory, and the smallest world that fits. Pure; thread-safe.
//
// Bytes a parameter on N ranks, by ZeRO stage, with e bytes a value (4; in mixed precision 2):
//   values e (stage 3: e / N), gradients 4 (stages 2 and 3: 4 / N), AdamW's moments 8 (from stage
//   1: 8 / N; other optimizers' as optimizer_config.h says) and in mixed precision the fp32 master
//   4 (from stage 1: 4 / N): 18 at stage 0.
// Frozen weights of the values' type take e, at stage 3 e / N, and nothing else.
// On top: the buckets in which stages 2 and 3 stage gradients, the weights that stage 3 has
// gathered or never shares out, what int8 blocks wait in, what compression left out of gradients,
// FP8 codes of weights that micro-batches share, what forward keeps for backward, and a chunk's
// logits with the gradients that the fused loss computes in forward. Not in it: the process itself,
// LibTorch's and the network's own buffers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "dtrain/config.h"

namespace dtrain::plan {

// A decoder-only Transformer. `parameters` alone is enough for the states.
struct ModelShape {
  double parameters = 0;
  // Elements of the largest gradient that backward makes afresh: of a tensor, or of several whose
  // gradients one node gives at once.
  double largest_gradient = 0;
  // Its tensors in the order of registration; empty: unknown, as if all were large.
  struct Tensors {
    double elements = 0;  // Of each.
    int64_t count = 1;
  };
  std::vector<Tensors> tensors = {};
  // Beside `parameters`: what does not train, in the values' type, which stage 3 shares out too,
  std::vector<Tensors> frozen = {};
  // and of other types, whole on every rank at every stage.
  double frozen_bytes = 0;
  int64_t hidden = 0;  // 0: the rest is unknown, activations are not counted.
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t query_width = 0;  // Query heads x head size.
  int64_t kv_width = 0;
  int64_t vocabulary = 0;
  bool gated = true;  // The MLP has a gate beside its up projection.
  // Elements of the linear layers' weights, where they may be in FP8 and their codes be kept: not
  // of GPT-2's, which are transposed. 0: unknown, or none.
  double linear = 0;
};

// From Hugging Face's names (hidden_size, intermediate_size, num_hidden_layers, vocab_size,
// num_attention_heads; num_key_value_heads, head_dim, tie_word_embeddings as there), for models as
// Llama's: RMSNorm, gate and up projections, no biases. With "model_type" "gpt2" from GPT-2's
// (n_embd, n_inner, n_layer, vocab_size, n_head, n_positions): tied, with biases. InvalidArgument
// names what is missing.
absl::StatusOr<ModelShape> ModelShapeFrom(const Json& model);

struct MemoryRequest {
  ModelShape model;
  PrecisionConfig::Kind precision = PrecisionConfig::Kind::kFloat32;
  int zero_stage = 0;
  int64_t world_size = 1;
  int64_t micro_batch = 0;  // Samples; 0: no activations.
  int64_t sequence_length = 0;
  int64_t bucket_elements = 0;
  int64_t frozen_bucket_elements = 0;  // Of frozen weights at stage 3.
  int64_t live_elements = 0;           // Stage 3: weights gathered at a time.
  // Stage 3 on a GPU: of the blocks that they lie in (block_sizes.h); 0: not known, as many.
  int64_t block_elements = 0;
  PersistenceLimits persistence = {};  // Stage 3: weights that are never shared out.
  int64_t hpz_partition_size = 1;
  bool quantized_weights = false;
  bool quantized_gradients = false;
  std::string compression = "none";  // comm.compression.type; stages 0 and 1.
  bool values_in_file = false;       // Stage 3: a rank's share of the weights is no memory.
  bool values_far = false;  // Stage 3: it is in a file, or where states_on_host in host memory.
  ActivationCheckpointingConfig recompute = {};
  // Of a step of several micro-batches in FP8: they share the codes of weights that stay whole.
  bool keeps_codes = false;
  double moment_bytes = 8;       // What the optimizer keeps of each parameter (MomentBytes).
  int64_t offload_buffers = 0;   // Near buffers of offloaded states; 0: states are not offloaded.
  double offload_ratio = 1;      // Share of the states that is.
  bool offload_to_file = false;  // Else to the host's memory.
  // Of a rank on a GPU: offloaded states, whatever the ratio, and all that they travel through are
  // the host's memory or files; int8 blocks wait in less memory, since a stream orders them.
  bool states_on_host = false;
  bool training = true;  // Else weights alone, for inference.
};

// Takes from `config` all but the model's shape, its batch and the world size. REQUIRES: the number
// of parameters is set.
void ReadInto(const Config& config, MemoryRequest& request);

// Bytes on one rank.
struct MemoryPlan {
  double values = 0;  // With frozen ones.
  double gradients = 0;
  double master = 0;
  double moments = 0;
  double buckets = 0;  // Staging of gradients and of offloaded states, what compression keeps of
                       // them, the largest fresh gradient.
  double live = 0;     // Gathered weights.
  double codes = 0;    // Of weights in FP8, as they are and transposed (ops/fp8_weight_codes.h).
  double activations = 0;      // Kept by forward for backward.
  double logits = 0;           // Of the loss (classifier_plan.h), between forward and backward.
  double offloaded = 0;        // Moments and master in a far tier: in none of the sums.
  double host = 0;             // Of the host's memory, for a rank on a GPU: likewise.
  double far_activations = 0;  // Likewise, of recomputed segments.

  double states() const { return values + gradients + master + moments; }
  double total() const { return states() + buckets + live + codes + activations + logits; }
};

// Elements of frozen weights of the values' type; bytes of all frozen ones; of those whose shares
// are in a far tier.
double FrozenElements(const ModelShape& model);
double FrozenBytes(const MemoryRequest& request);
double FarFrozenBytes(const MemoryRequest& request);

// Elements of weights that stay whole on every rank at stage 3 (persistent_plan.h has the rule),
// frozen ones after the others.
double PersistentElements(const ModelShape& model, const PersistenceLimits& limits);

// Of an optimizer's states, a parameter.
double MomentBytes(const OptimizerConfig& optimizer);

MemoryPlan PlanMemory(const MemoryRequest& request);

// The smallest number of ranks on which a plan and a share `reserve` of it on top fit into
// `rank_bytes` each; none when no number does.
std::optional<int64_t> SmallestWorld(MemoryRequest request, double rank_bytes, double reserve);

// "80GB" (10^9), "40 GiB" (2^30), "512MiB", "1.5TB", as bytes. InvalidArgument names what is
// allowed.
absl::StatusOr<double> ParseBytes(absl::string_view text);

}  // namespace dtrain::plan
