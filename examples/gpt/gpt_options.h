// The shape of the example's Transformer, read from the configuration's "model" object with Hugging
// Face's names, so that the same object is the checkpoint's config.json.
#pragma once

#include <cstdint>

#include "dtrain/dtrain.h"

struct GptOptions {
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 640;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t max_position_embeddings = 256;
  double rope_theta = 10000.0;
  double rms_norm_eps = 1e-6;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  dtrain::ActivationCheckpointingConfig recompute = {};  // Of the run, not of the model's shape.

  int64_t head_dim() const { return hidden_size / num_attention_heads; }

  // Reads what `json` gives; an unknown key or an impossible shape is InvalidArgument.
  static absl::StatusOr<GptOptions> FromJson(const dtrain::Json& json);
  // config.json of a Hugging Face Llama model of this shape.
  dtrain::Json ToHuggingFace(const dtrain::PrecisionConfig& precision) const;
};
