#include "gpt/gpt_options.h"

#include <map>
#include <string>
#include <variant>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace {

using Field = std::variant<int64_t*, double*, bool*>;

std::map<std::string, Field> Fields(GptOptions& o) {
  return {{"vocab_size", &o.vocab_size},
          {"hidden_size", &o.hidden_size},
          {"intermediate_size", &o.intermediate_size},
          {"num_hidden_layers", &o.num_hidden_layers},
          {"num_attention_heads", &o.num_attention_heads},
          {"num_key_value_heads", &o.num_key_value_heads},
          {"max_position_embeddings", &o.max_position_embeddings},
          {"rope_theta", &o.rope_theta},
          {"rms_norm_eps", &o.rms_norm_eps},
          {"initializer_range", &o.initializer_range},
          {"tie_word_embeddings", &o.tie_word_embeddings}};
}

absl::Status Assign(const std::string& key, const dtrain::Json& value, const Field& field) {
  if (auto* const* integer = std::get_if<int64_t*>(&field)) {
    auto number = dtrain::JsonInteger(value);
    if (!number.ok() || *number < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.%s is %s; allowed: an integer above 0", key, value.dump()));
    }
    **integer = *number;
  } else if (auto* const* real = std::get_if<double*>(&field)) {
    if (!value.is_number() || value.get<double>() <= 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("model.%s is %s; allowed: a number above 0", key, value.dump()));
    }
    **real = value.get<double>();
  } else if (value.is_boolean()) {
    *std::get<bool*>(field) = value.get<bool>();
  } else {
    return absl::InvalidArgumentError(
        absl::StrFormat("model.%s is %s; allowed: true or false", key, value.dump()));
  }
  return absl::OkStatus();
}

absl::Status CheckShape(const GptOptions& o) {
  if (o.hidden_size % o.num_attention_heads != 0 || o.head_dim() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model.hidden_size %d over model.num_attention_heads %d must give an even head size",
        o.hidden_size, o.num_attention_heads));
  }
  if (o.num_attention_heads % o.num_key_value_heads != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "model.num_attention_heads %d is not a multiple of model.num_key_value_heads %d",
        o.num_attention_heads, o.num_key_value_heads));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GptOptions> GptOptions::FromJson(const dtrain::Json& json) {
  GptOptions options;
  auto fields = Fields(options);
  for (const auto& [key, value] : json.items()) {
    const auto field = fields.find(key);
    if (field == fields.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "unknown key model.%s; allowed: %s", key,
          absl::StrJoin(fields, ", ",
                        [](std::string* out, const auto& f) { out->append(f.first); })));
    }
    DT_RETURN_IF_ERROR(Assign(key, value, field->second));
  }
  if (!json.contains("num_key_value_heads")) {
    options.num_key_value_heads = options.num_attention_heads;
  }
  DT_RETURN_IF_ERROR(CheckShape(options));
  return options;
}

dtrain::Json GptOptions::ToHuggingFace(const dtrain::PrecisionConfig& precision) const {
  using Kind = dtrain::PrecisionConfig::Kind;
  const char* const dtype = precision.kind == Kind::kBFloat16  ? "bfloat16"
                            : precision.kind == Kind::kFloat16 ? "float16"
                                                               : "float32";
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"vocab_size", vocab_size},
          {"hidden_size", hidden_size},
          {"intermediate_size", intermediate_size},
          {"num_hidden_layers", num_hidden_layers},
          {"num_attention_heads", num_attention_heads},
          {"num_key_value_heads", num_key_value_heads},
          {"head_dim", head_dim()},
          {"max_position_embeddings", max_position_embeddings},
          {"rms_norm_eps", rms_norm_eps},
          {"rope_theta", rope_theta},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", rope_theta}}},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", tie_word_embeddings},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"torch_dtype", dtype},
          {"dtype", dtype}};
}
