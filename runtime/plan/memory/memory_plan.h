// The memory that training takes on a rank, and the smallest world that fits. Pure; thread-safe.
//
// Bytes a parameter on N ranks, by ZeRO stage, with e bytes a value (4; in mixed precision 2):
//   values e (stage 3: e / N), gradients 4 (stages 2 and 3: 4 / N), AdamW's moments 8 (from stage
//   1: 8 / N; other optimizers' as optimizer_config.h says) and in mixed precision the fp32 master
//   4 (from stage 1: 4 / N): 18 at stage 0.
// Frozen weights of the values' type take e, at stage 3 e / N, and nothing else.
// To these come: the buckets in which stages 2 and 3 stage gradients, the weights that stage 3 has
// gathered or never divides, the buffers of int8 blocks, the remainders of compressed gradients,
// FP8 codes that micro-batches share, the activations that forward keeps for backward, and a
// chunk's logits with the gradients that the fused loss computes in forward. The process itself and
// the buffers of LibTorch and the network are not counted. On a GPU the buffers that the engine
// makes come in whole granules of 2 MiB, because NCCL can share only such memory with other
// processes (comm/nccl/plugin/shareable_memory.h). The plan counts the part of their last granules
// that they leave empty.
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
  // Elements of the largest gradient that backward allocates: that of a tensor, or of several
  // tensors if one node gives their gradients at once.
  double largest_gradient = 0;
  // The model's tensors in the order of registration. Empty: unknown, so all count as large.
  struct Tensors {
    double elements = 0;  // In each of them.
    int64_t count = 1;
  };
  std::vector<Tensors> tensors = {};
  // Frozen tensors of the values' type, which are not in `parameters`. Stage 3 divides them too.
  std::vector<Tensors> frozen = {};
  // Frozen tensors of other types, which are whole on every rank at every stage.
  double frozen_bytes = 0;
  int64_t hidden = 0;  // 0: the rest is unknown, activations are not counted.
  int64_t intermediate = 0;
  int64_t layers = 0;
  int64_t query_width = 0;  // Query heads x head size.
  int64_t kv_width = 0;
  int64_t vocabulary = 0;
  bool gated = true;  // The MLP has a gate beside its up projection.
  // Elements of the linear layers' weights whose FP8 codes can be kept. GPT-2 has none, because its
  // weights are transposed. 0: unknown, or none.
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
  int64_t frozen_bucket_elements = 0;  // Stage 3: of frozen weights' buckets.
  int64_t live_elements = 0;           // Stage 3: weights gathered at a time.
  // Stage 3 on a GPU: elements of the blocks of gathered weights (block_sizes.h). 0: not known, so
  // as many as `live_elements`.
  int64_t block_elements = 0;
  PersistenceLimits persistence = {};  // Stage 3: weights that are never shared out.
  int64_t hpz_partition_size = 1;
  bool quantized_weights = false;
  bool quantized_gradients = false;
  std::string compression = "none";  // comm.compression.type; stages 0 and 1.
  bool values_in_file = false;       // Stage 3: a rank's weights are in a file.
  bool values_far = false;  // Stage 3: they are in a file or, with states_on_host, in host memory.
  ActivationCheckpointingConfig recompute = {};
  // True if several micro-batches of a step in FP8 share the codes of weights that stay whole.
  bool keeps_codes = false;
  double moment_bytes = 8;       // The optimizer's states of a parameter (MomentBytes).
  int64_t offload_buffers = 0;   // Near buffers of offloaded states; 0: states are not offloaded.
  double offload_ratio = 1;      // The share of the states that is offloaded.
  bool offload_to_file = false;  // False: to the host's memory.
  // True on a rank with a GPU: offloaded states, whatever the ratio, and the buffers they travel
  // through are in the host's memory or in files. int8 blocks then need less memory, since a stream
  // orders them.
  bool states_on_host = false;
  bool training = true;       // False: weights alone, for inference.
  bool replicas = false;      // checkpoint.replicas.
  int64_t journal_bytes = 0;  // checkpoint.journal: of a parameter's gradient in it; 0: none.
};

// Takes from `config` all but the model's shape, its batch and the world size. REQUIRES: the number
// of parameters is set.
void ReadInto(const Config& config, MemoryRequest& request);

// Bytes on one rank.
struct MemoryPlan {
  double values = 0;  // Weights, frozen ones included.
  double gradients = 0;
  double master = 0;
  double moments = 0;
  double buckets = 0;  // Staging of gradients and of offloaded states, what compression keeps of
                       // them, the largest fresh gradient.
  double live = 0;     // Gathered weights.
  double codes = 0;    // FP8 codes of weights and of their transposes (ops/fp8_weight_codes.h).
  double activations = 0;      // Kept by forward for backward.
  double logits = 0;           // The loss's (classifier_plan.h), between forward and backward.
  double rounding = 0;         // A GPU's: the empty part of its buffers' last granules.
  double offloaded = 0;        // Moments and master in a far tier: in none of the sums.
  double host = 0;             // Host memory of a rank on a GPU: in none of the sums.
  double far_activations = 0;  // Recomputed segments' inputs in a far tier: in no sum.
  // Host memory for two snapshots of what a rank of another host saves: in no sum.
  double replicas = 0;
  // Host memory for two steps' gradients of the rank's part, which the step journal writes: in no
  // sum. A GPU has one more beside it, which is in `buckets`.
  double journal = 0;

  double states() const { return values + gradients + master + moments; }
  double total() const {
    return states() + buckets + live + codes + activations + logits + rounding;
  }
};

// Elements of the frozen weights of the values' type, bytes of all frozen weights, and bytes of
// those in a far tier.
double FrozenElements(const ModelShape& model);
double FrozenBytes(const MemoryRequest& request);
double FarFrozenBytes(const MemoryRequest& request);

// Elements of the weights that stay whole on every rank at stage 3. persistent_plan.h has the rule,
// which takes frozen weights after the others.
double PersistentElements(const ModelShape& model, const PersistenceLimits& limits);

// Bytes of an optimizer's states for one parameter.
double MomentBytes(const OptimizerConfig& optimizer);

MemoryPlan PlanMemory(const MemoryRequest& request);

// The smallest number of ranks on which the plan, enlarged by its share `reserve`, fits into
// `rank_bytes` each; none if it fits on no number.
std::optional<int64_t> SmallestWorld(MemoryRequest request, double rank_bytes, double reserve);

// "80GB" (10^9), "40 GiB" (2^30), "512MiB", "1.5TB", as bytes. InvalidArgument names what is
// allowed.
absl::StatusOr<double> ParseBytes(absl::string_view text);

}  // namespace dtrain::plan
