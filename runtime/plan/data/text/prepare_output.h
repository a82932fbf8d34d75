// The output of a preparation: its splits, corpus.json and the table for people.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/json.h"
#include "runtime/plan/data/text/prepare_text.h"

namespace dtrain::plan {

// Where all documents fell to one split, the last one moves to the other; the last tenth of a
// single text does. InvalidArgument: there is none, for the reasons that `counts` has, or one
// sample.
absl::Status DivideSplits(const PrepareCounts& counts, bool are_samples, SpoolRange& train,
                          SpoolRange& validation);

// The content of corpus.json.
Json CorpusManifest(const PrepareTextOptions& options, const TextEncoder& encoder,
                    const TextReport& report);

// The table that `dtrain data prepare` prints.
std::string TextTable(const TextReport& report, const TextEncoder& encoder);

}  // namespace dtrain::plan
