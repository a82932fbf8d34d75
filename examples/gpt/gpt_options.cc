#include "gpt/gpt_options.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gpt/config_reader.h"
#include "gpt/rope_settings.h"

namespace {

using dtrain::Json;

const std::map<std::string, Architecture>& ModelTypes() {
  static const auto* const types =
      new std::map<std::string, Architecture>{{"gpt2", Architecture::kGpt2},
                                              {"llama", Architecture::kLlama},
                                              {"qwen2", Architecture::kQwen2},
                                              {"qwen3", Architecture::kQwen3}};
  return *types;
}

const char* ClassName(Architecture architecture) {
  switch (architecture) {
    case Architecture::kGpt2:
      return "GPT2LMHeadModel";
    case Architecture::kLlama:
      return "LlamaForCausalLM";
    case Architecture::kQwen2:
      return "Qwen2ForCausalLM";
    case Architecture::kQwen3:
      return "Qwen3ForCausalLM";
  }
  return "";
}

// Keys that change no number of a training: where a file comes from, the type in which it holds
// weights, how text is generated, heads for other tasks. A run's own "model" may not set those that
// would look like settings (model_source.cc).
constexpr const char* kWithoutEffect[] = {"transformers_version",
                                          "use_cache",
                                          "_name_or_path",
                                          "_commit_hash",
                                          "torch_dtype",
                                          "dtype",
                                          "task_specific_params",
                                          "gradient_checkpointing",
                                          "attn_implementation",
                                          "_attn_implementation",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "id2label",
                                          "label2id",
                                          "problem_type",
                                          "summary_activation",
                                          "summary_first_dropout",
                                          "summary_proj_to_labels",
                                          "summary_type",
                                          "summary_use_proj"};

// The multiples of `unit` on both sides of `value`, which is none.
std::string NearestMultiples(int64_t value, int64_t unit) {
  const int64_t below = value / unit * unit;
  return below == 0 ? absl::StrCat(unit) : absl::StrCat(below, " or ", below + unit);
}

constexpr const char* kTokenIds[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

void ReadGpt2(ConfigReader& reader, GptOptions& o) {
  for (const char* key : {"vocab_size", "n_embd", "n_layer", "n_head", "n_positions"}) {
    reader.Require(key);
  }
  reader.Integer("n_embd", o.hidden_size);
  reader.Integer("n_layer", o.num_hidden_layers);
  reader.Integer("n_head", o.num_attention_heads);
  reader.Integer("n_positions", o.max_position_embeddings);
  int64_t context = o.max_position_embeddings;  // The older name, which published files have too.
  reader.Integer("n_ctx", context);
  if (context != o.max_position_embeddings) {
    reader.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "%s.n_ctx is %d and n_positions is %d: they are two names of one setting; set n_positions, "
        "and remove n_ctx or set it to null",
        reader.where(), context, o.max_position_embeddings)));
  }
  o.intermediate_size = 4 * o.hidden_size;
  reader.Integer("n_inner", o.intermediate_size);
  o.num_key_value_heads = o.num_attention_heads;
  o.norm_eps = 1e-5;
  reader.Positive("layer_norm_epsilon", o.norm_eps);
  o.activation = GptOptions::Activation::kGeluTanh;
  reader.Choice("activation_function",
                {{"gelu_new", GptOptions::Activation::kGeluTanh},
                 {"gelu_pytorch_tanh", GptOptions::Activation::kGeluTanh},
                 {"gelu", GptOptions::Activation::kGelu}},
                o.activation);
  o.embedding_dropout = o.attention_dropout = o.residual_dropout = 0.1;
  reader.Share("embd_pdrop", o.embedding_dropout);
  reader.Share("attn_pdrop", o.attention_dropout);
  reader.Share("resid_pdrop", o.residual_dropout);
  reader.Only("scale_attn_weights", true);
  reader.Only("scale_attn_by_inverse_layer_idx", false);
  reader.Only("reorder_and_upcast_attn", false);
  reader.Only("add_cross_attention", false);
  o.attention_bias = o.output_bias = o.mlp_bias = true;
  o.tie_word_embeddings = true;
  if (o.hidden_size % o.num_attention_heads != 0) {
    reader.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "%s.n_embd %d is not a multiple of n_head %d; nearest: %s", reader.where(), o.hidden_size,
        o.num_attention_heads, NearestMultiples(o.hidden_size, o.num_attention_heads))));
  }
  o.head_dim = o.hidden_size / o.num_attention_heads;
}

void ReadBiases(ConfigReader& reader, GptOptions& o) {
  if (o.architecture == Architecture::kQwen2) {
    o.attention_bias = true;
    return;
  }
  reader.Boolean("attention_bias", o.attention_bias);
  o.output_bias = o.attention_bias;
  if (o.architecture == Architecture::kLlama) {
    reader.Boolean("mlp_bias", o.mlp_bias);
  }
}

// Llama's names, which Qwen took over.
void ReadLlama(ConfigReader& reader, GptOptions& o) {
  reader.Integer("hidden_size", o.hidden_size);
  reader.Integer("intermediate_size", o.intermediate_size);
  reader.Integer("num_hidden_layers", o.num_hidden_layers);
  reader.Integer("num_attention_heads", o.num_attention_heads);
  o.num_key_value_heads = o.num_attention_heads;
  reader.Integer("num_key_value_heads", o.num_key_value_heads);
  const bool own_head_dim = reader.has("head_dim") || o.architecture == Architecture::kQwen3;
  o.head_dim = own_head_dim ? 128 : o.hidden_size / o.num_attention_heads;
  reader.Integer("head_dim", o.head_dim);
  reader.Integer("max_position_embeddings", o.max_position_embeddings);
  reader.Positive("rms_norm_eps", o.norm_eps);
  reader.Choice("hidden_act", {{"silu", GptOptions::Activation::kSilu}}, o.activation);
  reader.Share("attention_dropout", o.attention_dropout);
  ReadRope(reader, o.max_position_embeddings, o.rope);
  ReadBiases(reader, o);
  if (o.architecture == Architecture::kLlama) {
    reader.Only("pretraining_tp", 1);
  } else {
    reader.Only("use_sliding_window", false);
    reader.Ignore("sliding_window");  // It has no effect without use_sliding_window.
    reader.Ignore("max_window_layers");
    for (const Json& type : reader.Take("layer_types")) {
      if (type != "full_attention") {
        reader.Fail(absl::UnimplementedError(
            absl::StrCat(reader.where(), ".layer_types ", type.dump(),
                         " is not supported; allowed: \"full_attention\"")));
      }
    }
  }
  if (!own_head_dim && o.hidden_size % o.num_attention_heads != 0) {
    reader.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "%s.hidden_size %d is not a multiple of num_attention_heads %d, and there is no head_dim; "
        "nearest: %s, or give head_dim",
        reader.where(), o.hidden_size, o.num_attention_heads,
        NearestMultiples(o.hidden_size, o.num_attention_heads))));
  }
  if (o.head_dim % 2 != 0) {
    reader.Fail(absl::InvalidArgumentError(absl::StrFormat(
        "%s: head size %d must be even: rotary positions turn pairs", reader.where(), o.head_dim)));
  }
}

void CheckClass(ConfigReader& reader, Architecture architecture) {
  for (const Json& name : reader.Take("architectures")) {
    if (name != ClassName(architecture)) {
      reader.Fail(absl::UnimplementedError(absl::StrFormat(
          "%s.architectures %s of model_type \"%s\" is not supported; allowed: \"%s\"",
          reader.where(), name.dump(), ModelTypeName(architecture), ClassName(architecture))));
    }
  }
}

const char* DTypeName(const dtrain::PrecisionConfig& precision) {
  using Kind = dtrain::PrecisionConfig::Kind;
  return precision.kind == Kind::kBFloat16  ? "bfloat16"
         : precision.kind == Kind::kFloat16 ? "float16"
                                            : "float32";
}

Json RopeJson(const RopeOptions& rope) {
  using Scaling = RopeOptions::Scaling;
  Json json = {{"rope_type", rope.scaling == Scaling::kNone     ? "default"
                             : rope.scaling == Scaling::kLinear ? "linear"
                                                                : "llama3"},
               {"rope_theta", rope.theta}};
  if (rope.scaling != Scaling::kNone) {
    json["factor"] = rope.factor;
  }
  if (rope.scaling == Scaling::kLlama3) {
    json["low_freq_factor"] = rope.low_freq_factor;
    json["high_freq_factor"] = rope.high_freq_factor;
    json["original_max_position_embeddings"] = rope.original_max_position_embeddings;
  }
  return json;
}

Json Gpt2Json(const GptOptions& o) {
  return {
      {"n_embd", o.hidden_size},
      {"n_layer", o.num_hidden_layers},
      {"n_head", o.num_attention_heads},
      {"n_positions", o.max_position_embeddings},
      {"n_inner", o.intermediate_size},
      {"layer_norm_epsilon", o.norm_eps},
      {"activation_function",
       o.activation == GptOptions::Activation::kGeluTanh ? "gelu_new" : "gelu"},
      {"embd_pdrop", o.embedding_dropout},
      {"attn_pdrop", o.attention_dropout},
      {"resid_pdrop", o.residual_dropout},
  };
}

Json LlamaJson(const GptOptions& o) {
  Json json = {{"hidden_size", o.hidden_size},
               {"intermediate_size", o.intermediate_size},
               {"num_hidden_layers", o.num_hidden_layers},
               {"num_attention_heads", o.num_attention_heads},
               {"num_key_value_heads", o.num_key_value_heads},
               {"head_dim", o.head_dim},
               {"max_position_embeddings", o.max_position_embeddings},
               {"rms_norm_eps", o.norm_eps},
               {"hidden_act", "silu"},
               {"attention_dropout", o.attention_dropout},
               {"rope_theta", o.rope.theta},
               {"rope_parameters", RopeJson(o.rope)}};
  if (o.rope.scaling != RopeOptions::Scaling::kNone) {
    json["rope_scaling"] = RopeJson(o.rope);
  }
  if (o.architecture == Architecture::kLlama) {
    json["mlp_bias"] = o.mlp_bias;
  }
  if (o.architecture != Architecture::kQwen2) {  // Qwen2 always has it.
    json["attention_bias"] = o.attention_bias;
  }
  if (o.architecture != Architecture::kLlama) {
    json["use_sliding_window"] = false;
  }
  return json;
}

}  // namespace

const char* ModelTypeName(Architecture architecture) {
  for (const auto& [name, known] : ModelTypes()) {
    if (known == architecture) {
      return name.c_str();
    }
  }
  return "";
}

absl::StatusOr<GptOptions> GptOptions::FromJson(const dtrain::Json& json,
                                                const std::string& where) {
  GptOptions options;
  ConfigReader reader(json, where);
  const bool published = reader.has("model_type");
  reader.Choice("model_type", ModelTypes(), options.architecture);
  DT_RETURN_IF_ERROR(reader.status());
  CheckClass(reader, options.architecture);
  reader.Integer("vocab_size", options.vocab_size);
  if (options.is_gpt2()) {
    ReadGpt2(reader, options);
  } else {
    if (published) {
      for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                              "num_attention_heads", "max_position_embeddings"}) {
        reader.Require(key);
      }
    }
    ReadLlama(reader, options);
  }
  reader.Boolean("tie_word_embeddings", options.tie_word_embeddings);
  reader.Positive("initializer_range", options.initializer_range);
  reader.Choice("attention_backend", AttentionBackends(), options.attention_backend);
  reader.Only("quantization_config", nullptr);
  reader.Only("is_encoder_decoder", false);
  for (const char* key : kWithoutEffect) {
    reader.Ignore(key);
  }
  for (const char* key : kTokenIds) {
    options.token_ids[key] = reader.Take(key);
  }
  DT_RETURN_IF_ERROR(reader.Finish());
  if (options.num_attention_heads % options.num_key_value_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s.num_attention_heads %d is not a multiple of num_key_value_heads %d; "
        "nearest: %s",
        where, options.num_attention_heads, options.num_key_value_heads,
        NearestMultiples(options.num_attention_heads, options.num_key_value_heads)));
  }
  return options;
}

dtrain::Json GptOptions::ToHuggingFace(const dtrain::PrecisionConfig& precision) const {
  Json json = {{"architectures", {ClassName(architecture)}},
               {"model_type", ModelTypeName(architecture)},
               {"vocab_size", vocab_size}};
  json.update(is_gpt2() ? Gpt2Json(*this) : LlamaJson(*this));
  json["initializer_range"] = initializer_range;
  json["tie_word_embeddings"] = tie_word_embeddings;
  for (const char* key : kTokenIds) {
    json[key] = token_ids.contains(key) ? token_ids.at(key) : Json();
  }
  json["torch_dtype"] = DTypeName(precision);
  json["dtype"] = DTypeName(precision);
  return json;
}

dtrain::FlopModel GptOptions::flop_model() const {
  const auto vocabulary = static_cast<double>(vocab_size);
  const auto hidden = static_cast<double>(hidden_size);
  const auto inner = static_cast<double>(intermediate_size);
  const auto queries = static_cast<double>(num_attention_heads * head_dim);
  const auto keys = static_cast<double>(num_key_value_heads * head_dim);
  const double positions = is_gpt2() ? static_cast<double>(max_position_embeddings) * hidden : 0.0;
  const double matrices = is_gpt2() ? 2 : 3;  // The MLP's; SwiGLU has a gate.
  double layer = 2 * hidden * (queries + keys) + matrices * hidden * inner;
  layer += attention_bias ? queries + 2 * keys : 0;
  layer += output_bias ? hidden : 0;
  layer += mlp_bias ? (matrices - 1) * inner + hidden : 0;
  layer += has_qk_norm() ? 2 * static_cast<double>(head_dim) : 0;
  const double norm = is_gpt2() ? 2 * hidden : hidden;  // Layer norm has a bias.
  dtrain::FlopModel model;
  model.layers = static_cast<double>(num_hidden_layers);
  model.parameters = vocabulary * hidden * (tie_word_embeddings ? 1 : 2) + positions +
                     model.layers * (layer + 2 * norm) + norm;
  model.vocabulary = vocabulary;
  model.hidden = hidden;
  model.query_heads = static_cast<double>(num_attention_heads);
  model.head_dim = static_cast<double>(head_dim);
  model.position_parameters = positions;
  model.tied = tie_word_embeddings;
  return model;
}
