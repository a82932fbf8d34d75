// Where a run's model comes from, by the configuration's "model" object:
//
//   {"hidden_size": 256, ...}                       a Llama of this shape, with random weights
//   {"config": "examples/configs/models/NAME.json"} the shape of a config.json, random weights
//   {"pretrained": "FOLDER"}                        shape and weights of a Hugging Face folder
//
// Further keys beside "config" and "pretrained" take the place of the file's.
#pragma once

#include <string>

#include "gpt/gpt.h"

struct ModelSource {
  GptOptions options;
  std::string pretrained;  // The folder of weights; "": random ones.
  std::string warning;     // MakeModel logs it once; "" is none.
};

// A folder whose config.json ties the head to the embedding, while its files hold a head of other
// values, is a model with a head of its own, as in transformers, unless "model" itself says
// tie_word_embeddings.
//
// Errors are as of GptOptions::FromJson and dtrain::ReadModelConfig; InvalidArgument also when
// data.sequence_length is longer than the model's positions.
absl::StatusOr<ModelSource> ReadModelSource(const dtrain::Config& config);

// The model, with its weights read when it is pretrained. Like dtrain::LoadModel, to be called
// before Engine::Create; at ZeRO stage 3 the model may be bigger than memory.
absl::StatusOr<Gpt> MakeModel(dtrain::Job& job, const ModelSource& source);
