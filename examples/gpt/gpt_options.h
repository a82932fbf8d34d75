// The shape of the example's Transformer, with the names of Hugging Face's config.json, so that the
// same object describes a published model and a checkpoint of ours.
//
// Four architectures: GPT-2 (layer norm, learned positions, GELU), Llama, Qwen2 and Qwen3 (RMSNorm,
// rotary positions, SwiGLU, grouped queries). docs/MODELS.md lists the supported parts of their
// configurations; any other part is refused by name, never ignored.
#pragma once

#include <cstdint>
#include <string>

#include "dtrain/dtrain.h"
#include "gpt/causal_attention.h"

enum class Architecture { kGpt2, kLlama, kQwen2, kQwen3 };

// Rotary positions (Su et al. 2021), and how they are stretched beyond the trained length.
struct RopeOptions {
  enum class Scaling { kNone, kLinear, kLlama3 };
  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;  // This and the rest: llama3.
  double high_freq_factor = 4.0;
  int64_t original_max_position_embeddings = 0;
};

struct GptOptions {
  enum class Activation { kSilu, kGeluTanh, kGelu };  // SwiGLU; GPT-2's approximation; by erf.

  Architecture architecture = Architecture::kLlama;
  int64_t vocab_size = 256;
  int64_t hidden_size = 256;
  int64_t intermediate_size = 640;
  int64_t num_hidden_layers = 6;
  int64_t num_attention_heads = 4;
  int64_t num_key_value_heads = 4;
  int64_t head_dim = 64;  // May differ from hidden_size / num_attention_heads.
  int64_t max_position_embeddings = 256;
  RopeOptions rope;  // For all but GPT-2.
  double norm_eps = 1e-6;
  Activation activation = Activation::kSilu;
  bool attention_bias = false;  // Biases of q, k and v.
  bool output_bias = false;     // Bias of the projection after attention.
  bool mlp_bias = false;
  double embedding_dropout = 0;  // Shares dropped in training.
  double attention_dropout = 0;
  double residual_dropout = 0;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  dtrain::Json token_ids = dtrain::Json::object();  // bos_token_id and the like, passed through.

  // Settings of the run, which are no part of the model's shape.
  dtrain::ActivationCheckpointingConfig recompute = {};
  AttentionBackend attention_backend = AttentionBackend::kAuto;
  dtrain::Fp8Options fp8 = {};  // For the layers' products, not for the head's.
  bool random_weights = true;   // False: memory is left as it is, for weights that are loaded.

  bool is_gpt2() const { return architecture == Architecture::kGpt2; }
  bool has_qk_norm() const { return architecture == Architecture::kQwen3; }

  // Reads a config.json of Hugging Face: an object with "model_type". Without one it is a Llama
  // whose absent keys have the defaults above. InvalidArgument names an unknown key, an impossible
  // value or shape; Unimplemented an architecture or feature that is not supported. `where` begins
  // messages: "model", "DIR/config.json". Beside Hugging Face's keys "attention_backend" (auto,
  // flash, cudnn, math) is known.
  static absl::StatusOr<GptOptions> FromJson(const dtrain::Json& json,
                                             const std::string& where = "model");
  // config.json of a Hugging Face model of this shape, in the spellings of transformers 4 and 5.
  dtrain::Json ToHuggingFace(const dtrain::PrecisionConfig& precision) const;

  // The sizes of the whole model and, for strict FLOPs, of tables that are only looked up.
  // Allocates nothing.
  dtrain::FlopModel flop_model() const;
};

// "gpt2", "llama", "qwen2", "qwen3".
const char* ModelTypeName(Architecture architecture);
