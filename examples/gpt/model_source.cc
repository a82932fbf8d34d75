#include "gpt/model_source.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpt/rope_settings.h"

namespace {

using dtrain::Json;

absl::StatusOr<std::string> PathUnder(const Json& model, const std::string& key) {
  if (!model.contains(key)) {
    return std::string();
  }
  const Json& value = model.at(key);
  if (!value.is_string() || value.get<std::string>().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.", key, " is ", value.dump(), "; allowed: a path"));
  }
  return value.get<std::string>();
}

bool IsGiven(const Json& model, const std::string& key) {
  return model.contains(key) && !model.at(key).is_null();
}

// Keys of a config.json that say nothing about a training, or nothing alone. A published file may
// have them; of a run that sets them itself they would be settings without effect. `precision`: the
// type in which the run computes.
absl::Status CheckEffects(const Json& given, const std::string& precision) {
  for (const char* const key : {"dtype", "torch_dtype"}) {
    if (IsGiven(given, key) && given.at(key) != precision &&
        given.at(key) != absl::StrCat("torch.", precision)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "model.%s is %s, but this run computes in %s; set bf16.enabled or fp16.enabled, and "
          "remove this key",
          key, given.at(key).dump(), precision));
    }
  }
  const struct {
    const char* key;
    bool has_effect;
    const char* instead;
  } others[] = {
      {"attn_implementation", false, "set model.attention_backend"},
      {"_attn_implementation", false, "set model.attention_backend"},
      {"gradient_checkpointing",
       IsGiven(given, "gradient_checkpointing") && given.at("gradient_checkpointing") == false,
       "set activation_checkpointing.mode"},
      {"sliding_window", IsGiven(given, "use_sliding_window"),
       "remove it: without use_sliding_window, which is not supported, attention sees all tokens"},
      {"max_window_layers", IsGiven(given, "use_sliding_window"),
       "remove it: without use_sliding_window, which is not supported, attention sees all tokens"},
  };
  for (const auto& other : others) {
    if (IsGiven(given, other.key) && !other.has_effect) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.%s is %s, which would have no effect here; %s", other.key,
                          given.at(other.key).dump(), other.instead));
    }
  }
  return absl::OkStatus();
}

constexpr char kHead[] = "lm_head.weight";

// Tensors of older files that carry no information: masks and frequencies that are computed, and a
// head that is tied to the embedding.
bool SaysNothing(const std::string& name, const GptOptions& options) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias") ||
         absl::EndsWith(name, ".rotary_emb.inv_freq") ||
         (options.tie_word_embeddings && name == kHead);
}

// The names of a folder's tensors. Files of the model without its head (GPT-2's first ones) leave
// out the first part of each name.
struct FileNames {
  FileNames(const dtrain::ModelFiles& files, const GptOptions& options)
      : prefix(options.is_gpt2() ? "transformer." : "model.") {
    const std::string short_name = options.is_gpt2() ? "wte.weight" : "embed_tokens.weight";
    is_bare = !files.Contains(prefix + short_name) && files.Contains(short_name);
    module_embedding = prefix + short_name;
    embedding = is_bare ? short_name : module_embedding;
  }

  std::string prefix;
  bool is_bare = false;
  std::string module_embedding;  // In the module.
  std::string embedding;         // In the files, if they hold it.
};

// If a config.json ties the head but the files hold another one, keeps the head apart, as
// transformers does: training must not lose it. `is_override`: the run itself asks for a tied head,
// and gets it.
absl::Status UntieIfHeadDiffers(bool is_override, ModelSource& source) {
  DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open(source.pretrained));
  const std::string embedding = FileNames(*files, source.options).embedding;
  if (!files->Contains(kHead) || !files->Contains(embedding)) {
    return absl::OkStatus();
  }
  DT_ASSIGN_OR_RETURN(const bool same, files->HaveEqualValues(embedding, kHead));
  if (same) {
    return absl::OkStatus();
  }
  source.options.tie_word_embeddings = is_override;
  source.warning = absl::StrFormat(
      "warning: %s holds %s with other values than %s, but tie_word_embeddings is true: %s",
      source.pretrained, kHead, embedding,
      is_override ? "the configuration says so, so that head is not read and exports do not hold it"
                  : "the head is loaded and trained apart, as in transformers; set "
                    "model.tie_word_embeddings to true to drop it, or to false to silence this");
  return absl::OkStatus();
}

// How the files name the model's tensors.
dtrain::LoadModelOptions LoadOptionsFor(const dtrain::ModelFiles& files,
                                        const GptOptions& options) {
  const FileNames names(files, options);
  // A tied pair may be stored by either name.
  const bool by_head =
      options.tie_word_embeddings && !files.Contains(names.embedding) && files.Contains(kHead);
  dtrain::LoadModelOptions load;
  load.public_name = [names, by_head](const std::string& name) -> std::string {
    if (by_head && name == names.module_embedding) {
      return kHead;
    }
    const bool is_shorter = names.is_bare && absl::StartsWith(name, names.prefix);
    return is_shorter ? name.substr(names.prefix.size()) : name;
  };
  load.ignore = [options](const std::string& name) { return SaysNothing(name, options); };
  return load;
}

absl::Status Load(const dtrain::Job& job, GptImpl& model, const std::string& folder) {
  DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open(folder));
  return dtrain::LoadModel(job, model, *files, LoadOptionsFor(*files, model.options()));
}

absl::Status CheckModelType(const Json& config, const std::string& path) {
  if (!config.is_object() || !config.contains("model_type")) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " has no \"model_type\"; allowed: a config.json of Hugging Face"));
  }
  return absl::OkStatus();
}

// Gives all parameters of `model` places of `type` in one tensor, in the reverse order of their
// registration, matrices first: the layers that ops::MergedLinear merges are neighbours then.
void LayFlat(GptImpl& model, at::ScalarType type) {
  std::vector<at::Tensor> matrices;
  std::vector<at::Tensor> vectors;
  int64_t elements = 0;
  for (const at::Tensor& parameter : model.parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
    elements += parameter.numel();
  }
  const at::Tensor flat = at::empty({elements}, at::TensorOptions(type));
  int64_t begin = 0;
  for (std::vector<at::Tensor>* const group : {&matrices, &vectors}) {
    for (auto parameter = group->rbegin(); parameter != group->rend(); ++parameter) {
      parameter->set_requires_grad(false);
      parameter->set_data(flat.narrow(0, begin, parameter->numel()).view(parameter->sizes()));
      begin += parameter->numel();
    }
  }
}

}  // namespace

absl::StatusOr<ModelSource> ReadModelSource(const dtrain::Config& config) {
  const Json& given = config.user("model");
  DT_ASSIGN_OR_RETURN(const std::string shape, PathUnder(given, "config"));
  ModelSource source;
  DT_ASSIGN_OR_RETURN(source.pretrained, PathUnder(given, "pretrained"));
  if (!shape.empty() && !source.pretrained.empty()) {
    return absl::InvalidArgumentError(
        "model.config and model.pretrained are both given; a pretrained folder brings its own "
        "config.json: remove one of the two");
  }
  const std::string& path = shape.empty() ? source.pretrained : shape;
  Json merged = Json::object();
  if (!path.empty()) {
    DT_ASSIGN_OR_RETURN(merged, dtrain::ReadModelConfig(path));
    DT_RETURN_IF_ERROR(CheckModelType(merged, path));
    DT_ASSIGN_OR_RETURN(merged, WithRopeOf(given, std::move(merged), path));
  }
  for (const auto& [key, value] : given.items()) {
    if (key != "config" && key != "pretrained" && (path.empty() || !IsRopeKey(key))) {
      merged[key] = value;
    }
  }
  if (IsGiven(given, "n_positions") && !given.contains("n_ctx")) {
    merged.erase("n_ctx");  // The file's second name of what the run changes.
  }
  DT_ASSIGN_OR_RETURN(source.options, GptOptions::FromJson(merged, path.empty() ? "model" : path));
  DT_RETURN_IF_ERROR(CheckEffects(
      given, source.options.ToHuggingFace(config.precision()).at("dtype").get<std::string>()));
  source.options.recompute = config.activation_checkpointing();
  source.options.fp8 = dtrain::Fp8OptionsOf(config);
  source.options.random_weights = source.pretrained.empty();
  if (config.sequence_length() > source.options.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data.sequence_length %d is longer than the model's %d positions "
                        "(max_position_embeddings); allowed: 1 to %d",
                        config.sequence_length(), source.options.max_position_embeddings,
                        source.options.max_position_embeddings));
  }
  if (source.options.tie_word_embeddings && !source.pretrained.empty()) {
    const bool is_override =
        given.contains("tie_word_embeddings") && !given.at("tie_word_embeddings").is_null();
    DT_RETURN_IF_ERROR(UntieIfHeadDiffers(is_override, source));
  }
  return source;
}

absl::StatusOr<Gpt> MakeModel(dtrain::Job& job, const ModelSource& source) {
  Gpt model = dtrain::Construct(job, [&] { return Gpt(source.options); });
  if (!source.pretrained.empty()) {
    if (!source.warning.empty()) {
      job.metrics().Print(source.warning);
    }
    DT_RETURN_IF_ERROR(Load(job, *model, source.pretrained));
  }
  return model;
}

absl::StatusOr<Gpt> ReadModelFolder(const std::string& folder, at::ScalarType type) {
  DT_ASSIGN_OR_RETURN(const Json config, dtrain::ReadModelConfig(folder));
  DT_RETURN_IF_ERROR(CheckModelType(config, folder));
  ModelSource source;
  source.pretrained = folder;
  DT_ASSIGN_OR_RETURN(source.options, GptOptions::FromJson(config, folder));
  source.options.random_weights = false;
  if (source.options.tie_word_embeddings) {
    DT_RETURN_IF_ERROR(UntieIfHeadDiffers(/*is_override=*/false, source));
  }
  DT_ASSIGN_OR_RETURN(const auto files, dtrain::ModelFiles::Open(folder));
  Gpt model(source.options);
  model->eval();
  LayFlat(*model, type);
  DT_RETURN_IF_ERROR(dtrain::LoadModel(*model, *files, LoadOptionsFor(*files, model->options())));
  return model;
}

absl::Status CheckVocabulary(dtrain::Job& job, const ModelSource& source,
                             const dtrain::TokenLoader& loader) {
  constexpr int64_t kUnusedRows = 1024;  // Embeddings are often padded.
  const int64_t files = loader.vocabulary();
  const int64_t model = source.options.vocab_size;
  if (files > model && source.pretrained.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the token files use %d ids, but model.vocab_size is %d; set it to %d or more", files,
        model, files));
  }
  const std::string both = absl::StrFormat(
      "%s was made by a tokenizer of %d ids, but the model in %s has a vocabulary of %d",
      loader.Description(), files, source.pretrained, model);
  if (files > model) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: they are of two models; make the tokens again by dtrain data prepare --tokenizer %s",
        both, source.pretrained));
  }
  if (files > 0 && !source.pretrained.empty() && files + kUnusedRows < model) {
    job.metrics().Print(absl::StrFormat("warning: %s; are they of one model?", both));
  }
  return absl::OkStatus();
}
