// A Transformer of two layers for tests, of every architecture.
#pragma once

#include <cstdint>

#include "gpt/gpt_options.h"

struct SmallGptSizes {
  int64_t vocabulary = 61;
  int64_t heads = 4;  // Query heads; half as many for keys and values, except in GPT-2.
  int64_t head_dim = 6;
  int64_t intermediate = 40;
  int64_t positions = 32;
};

inline GptOptions SmallGpt(Architecture architecture, const SmallGptSizes& sizes = {}) {
  GptOptions options;
  options.architecture = architecture;
  options.vocab_size = sizes.vocabulary;
  options.hidden_size = sizes.heads * sizes.head_dim;
  options.intermediate_size = sizes.intermediate;
  options.num_hidden_layers = 2;
  options.num_attention_heads = options.num_key_value_heads = sizes.heads;
  options.head_dim = sizes.head_dim;
  options.max_position_embeddings = sizes.positions;
  options.rope.theta = 100.0;
  if (options.is_gpt2()) {
    options.activation = GptOptions::Activation::kGeluTanh;
    options.attention_bias = options.output_bias = options.mlp_bias = true;
    options.tie_word_embeddings = true;
  } else {
    options.num_key_value_heads /= 2;
  }
  return options;
}
