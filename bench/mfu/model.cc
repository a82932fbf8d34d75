#include "bench/mfu/model.h"

#include "ATen/Functions.h"
#include "absl/strings/match.h"
#include "base/file.h"
#include "bench/mfu/presets.h"
#include "gpt/gpt.h"

namespace dtrain::bench {
namespace {

// The templates below take what the example's options have: `flop_model` and dropout came with its
// Hugging Face shapes.

// Turns dropout off: no FLOP count knows its work, and published figures train without.
template <class Options>
void WithoutDropout(Options& options) {
  if constexpr (requires { options.embedding_dropout; }) {
    options.embedding_dropout = 0;
    options.attention_dropout = 0;
    options.residual_dropout = 0;
  }
}

template <class Options>
FlopModel FlopsOf(const Options& options, double parameters) {
  if constexpr (requires { options.flop_model(); }) {
    return options.flop_model();
  } else {
    return {.parameters = parameters,
            .vocabulary = static_cast<double>(options.vocab_size),
            .hidden = static_cast<double>(options.hidden_size),
            .layers = static_cast<double>(options.num_hidden_layers),
            .query_heads = static_cast<double>(options.num_attention_heads),
            .head_dim = static_cast<double>(options.head_dim()),
            .position_parameters = 0,
            .tied = options.tie_word_embeddings};
  }
}

absl::StatusOr<GptOptions> OptionsOf(const Json& config) {
  DT_ASSIGN_OR_RETURN(GptOptions options, GptOptions::FromJson(config));
  WithoutDropout(options);
  return options;
}

// The memory of matrices, whose values nobody has set, becomes that of `device`.
void MoveMatrices(const at::Device& device, at::ScalarType type, torch::nn::Module& module) {
  for (const auto& item : module.named_parameters()) {
    at::Tensor weight = item.value();
    if (weight.dim() >= 2) {
      weight.set_data(at::empty(weight.sizes(), weight.options().device(device).dtype(type)));
    }
  }
}

}  // namespace

absl::StatusOr<ModelShape> ReadModel(const MfuOptions& options) {
  ModelShape shape;
  if (options.hf_file.empty()) {
    shape.name = options.preset;
    DT_ASSIGN_OR_RETURN(shape.config, FindPreset(options.preset));
  } else {
    shape.name = options.hf_file;
    DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.hf_file));
    DT_ASSIGN_OR_RETURN(shape.config, ParseJson(text, options.hf_file));
  }
  shape.config["attention_backend"] = options.attention;
  DT_ASSIGN_OR_RETURN(const GptOptions gpt, OptionsOf(shape.config));
  shape.vocabulary = gpt.vocab_size;
  shape.positions = gpt.max_position_embeddings;
  return shape;
}

absl::StatusOr<BenchModel> MakeModel(Job& job, const ModelShape& shape, at::ScalarType type) {
  DT_ASSIGN_OR_RETURN(GptOptions options, OptionsOf(shape.config));
  options.recompute = job.config().activation_checkpointing();
  options.fp8 = Fp8OptionsOf(job.config());
  const bool on_device = !job.device().is_cpu() && job.config().zero_stage() < 3;
  options.random_weights = !on_device;
  Gpt gpt = Construct(job, [&] { return Gpt(options); });
  if (on_device) {
    MoveMatrices(job.device(), type, *gpt);
    gpt->InitialiseWeights();
  }
  BenchModel model;
  double parameters = 0;
  for (const auto& parameter : gpt->named_parameters()) {
    const auto elements = static_cast<double>(parameter.value().numel());
    parameters += elements;
    if (absl::StrContains(parameter.key(), ".layers.") ||
        absl::StrContains(parameter.key(), ".h.")) {
      model.layer_parameters += elements;
    }
  }
  model.flops = FlopsOf(options, parameters);
  model.module = gpt.ptr();
  model.loss = [gpt](const Batch& batch) mutable { return gpt->Loss(batch); };
  return model;
}

}  // namespace dtrain::bench
