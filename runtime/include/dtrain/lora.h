// Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685) on the layers of a model: y = x W +
// scale * x A B with W frozen, and their files in PEFT's form. Not thread-safe.
//
//   DT_ASSIGN_OR_RETURN(const auto adapted, dtrain::AddLora(*model, {.rank = 8}));
//   DT_ASSIGN_OR_RETURN(auto engine, dtrain::Engine::Create(job, *model));
//
// A layer that can have an adapter derives from LowRankLayer. dtrain::Linear (dtrain/linear.h)
// takes the place of torch::nn::Linear, whose forward nothing can add to.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"

namespace dtrain {

// The size, scale and place of adapters.
struct LoraOptions {
  int64_t rank = 8;              // Rows of A and columns of B.
  double alpha = 16;             // Numerator of the scale.
  double dropout = 0;            // Share of an adapter's inputs that training drops, in [0, 1).
  bool rank_stabilised = false;  // scale = alpha / sqrt(rank), else alpha / rank.
  // Layers with adapters: a whole name with `*` for any text, or its last parts ("q_proj"), as in
  // PEFT. "all-linear" stands for all but one named "lm_head".
  std::vector<std::string> target_modules = {"all-linear"};

  double scale() const;  // The factor of A B by alpha, rank and rank_stabilised.
};

// A linear layer's low-rank correction. The layer derives from this class and from
// torch::nn::Module, and adds LowRank(x) to its result.
class LowRankLayer {
 public:
  // The sizes of a layer and how its weight is stored.
  struct Shape {
    int64_t in = 0;           // Inputs.
    int64_t out = 0;          // Outputs.
    bool transposed = false;  // The layer's weight is [in, out].
  };

  virtual ~LowRankLayer() = default;
  virtual Shape low_rank_shape() const = 0;  // The layer's sizes, by which its adapter is made.

  // From now on there is a correction, scale * B A dropped(x): A [rank, in] random (He et al.'s
  // uniform, as PEFT), B [out, rank] zero, as parameters lora_A.weight and lora_B.weight of the
  // layer, of its parameters' type. REQUIRES: there is none yet.
  void AddLowRank(int64_t rank, double scale, double dropout);
  // Whether AddLowRank was called.
  bool has_low_rank() const { return a_.defined(); }
  // scale * B A in fp32, in the layout of the layer's weight; undefined without a correction.
  at::Tensor LowRankWeight() const;

 protected:
  // x [..., in] -> [..., out]. REQUIRES: has_low_rank().
  at::Tensor LowRank(const at::Tensor& x, bool training) const;

 private:
  at::Tensor a_, b_;
  double scale_ = 0;
  double dropout_ = 0;
};

// Freezes the model and adds an adapter to each LowRankLayer that a pattern names. Gives their
// names, in the model's order. InvalidArgument: a pattern that names none lists what there is; a
// rank below 1 or above a layer's smaller side; a dropout outside [0, 1); a model without such
// layers. Messages name PEFT's keys below `where` ("finetune.lora.r"), or LoraOptions' members.
absl::StatusOr<std::vector<std::string>> AddLora(torch::nn::Module& model,
                                                 const LoraOptions& options,
                                                 const std::string& where = "");

// The name of a parameter in PEFT's files, for EngineOptions::public_name.
std::string PeftName(const std::string& name);

// The text of adapter_config.json. `base`: the folder or name of the model that was adapted;
// `adapted`: what AddLora gave. `transposed`: the layers' weights are [in, out], as GPT-2's.
std::string AdapterConfig(const LoraOptions& options, const std::vector<std::string>& adapted,
                          const std::string& base, bool transposed = false);

// Collective: writes the engine's model with the adapters added into its weights, as a model folder
// with `files`. At ZeRO stage 3 a rank has one weight, with its adapter, whole at a time.
absl::Status ExportMerged(Job& job, Engine& engine, torch::nn::Module& model,
                          std::vector<std::pair<std::string, std::string>> files,
                          const std::string& directory);

}  // namespace dtrain
