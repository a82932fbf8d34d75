// Finds a run's model by the configuration's "model" object:
//
//   {"hidden_size": 256, ...}                       a Llama of this shape, with random weights
//   {"config": "examples/configs/models/NAME.json"} the shape of a config.json, random weights
//   {"pretrained": "FOLDER"}                        shape and weights of a Hugging Face folder
//
// Further keys beside "config" and "pretrained" replace those of the file.
#pragma once

#include <string>

#include "c10/core/ScalarType.h"
#include "gpt/gpt.h"

struct ModelSource {
  GptOptions options;
  std::string pretrained;  // The folder of weights; "": random ones.
  std::string warning;     // MakeModel logs it once; "" is none.
};

// If a folder's config.json ties the head to the embedding while its files hold a head of other
// values, the model has a head of its own, as in transformers, unless "model" itself sets
// tie_word_embeddings.
//
// Errors are those of GptOptions::FromJson and dtrain::ReadModelConfig. InvalidArgument also if
// data.sequence_length is longer than the model's positions.
absl::StatusOr<ModelSource> ReadModelSource(const dtrain::Config& config);

// Makes the model, and reads its weights if it is pretrained. To be called before Engine::Create,
// like dtrain::LoadModel. At ZeRO stage 3 the model may be larger than memory.
absl::StatusOr<Gpt> MakeModel(dtrain::Job& job, const ModelSource& source);

// The model of a Hugging Face folder, to be read from alone: in eval mode, without gradients, its
// weights of `type` in one piece of memory. For a program that is no rank of a job. A head that
// config.json ties and the files hold apart is as ReadModelSource has it.
absl::StatusOr<Gpt> ReadModelFolder(const std::string& folder, at::ScalarType type);

// Compares the vocabulary that token files state, if they do, with the model's. InvalidArgument,
// with both sizes, if the files have more ids. Far fewer than the weights of a published model are
// worth a line to rank 0: they may be another model's, and a model's own ids leave few rows unused.
absl::Status CheckVocabulary(dtrain::Job& job, const ModelSource& source,
                             const dtrain::TokenLoader& loader);
