// The tokenizer of the tokens that a training reads, for the model folders of its checkpoints.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/config.h"
#include "generate/sample.h"

struct TrainingTokenizer {
  // A path that Tokenizer::Load takes; "bytes": tokens are bytes; "": not known.
  std::string source;
  std::vector<std::pair<std::string, std::string>> files;  // {name, text}, for a model's folder.
};

// sample.tokenizer; or else the one in `pretrained`, the folder of the model that is trained on
// ("": none); or else that of the first corpus of data.train that has one beside its token files,
// or is of bytes. The errors of reading it.
absl::StatusOr<TrainingTokenizer> TokenizerOfTraining(const dtrain::Config& config,
                                                      const SampleOptions& sample,
                                                      const std::string& pretrained);

// The tokenizer of these files, which came from an address. Unless they are those of bytes, they
// are written into the run directory, because the text at the end of the run is made by a tokenizer
// that has a path. None without files.
absl::StatusOr<TrainingTokenizer> KeepTokenizer(
    std::vector<std::pair<std::string, std::string>> files, const std::string& run_dir);
