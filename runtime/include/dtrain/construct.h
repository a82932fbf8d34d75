// Construction of a model that may be bigger than a rank's memory.
//
//   DT_RETURN_IF_ERROR(dtrain::CheckModelFits(job, shape));
//   Gpt model = dtrain::Construct(job, [&] { return Gpt(options); });
//
// At ZeRO stage 3 the large tensors that `make` allocates on this thread are mapped from unlinked
// files in the run directory, so the system may write them out; Engine::Create takes each rank's
// share of them and gives the files up one by one. The numbers are those of ordinary construction.
// A full disk is an exception that names folder and bytes. At other stages weights are made in
// memory, and what is more than the rank's share of it is an exception before it is touched: the
// kernel would kill the process without a word.
#pragma once

#include "absl/status/status.h"
#include "base/json.h"
#include "dtrain/job.h"

namespace dtrain {

// Collective: whether a model and its training fit into the memory of every rank, before anything
// of it is made. `shape`: its config.json, with Hugging Face's keys of GPT-2 or of Llama and its
// like. InvalidArgument says what it takes, what a rank has, and which micro-batch, stage, offload
// or number of ranks would do; or which key of the shape is missing.
absl::Status CheckModelFits(Job& job, const Json& shape);

// While a scope lives, tensors that its thread allocates are part of a model that is constructed,
// as this file's beginning says. A process has at most one at a time. The ranks make it together.
class ConstructionScope {
 public:
  // Begins the construction. Throws c10::Error where the ranks could not compare their memory.
  explicit ConstructionScope(Job& job);
  ~ConstructionScope();
  ConstructionScope(const ConstructionScope&) = delete;
  ConstructionScope& operator=(const ConstructionScope&) = delete;
};

// Gives what `make()` makes inside a ConstructionScope. Collective; throws what `make` throws.
template <typename Make>
auto Construct(Job& job, Make make) {
  const ConstructionScope scope(job);
  return make();
}

}  // namespace dtrain
