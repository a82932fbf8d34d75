// Construction of a model that may be bigger than a rank's memory.
//
//   Gpt model = dtrain::Construct(job, [&] { return Gpt(options); });
//
// At ZeRO stage 3 the large tensors that `make` allocates on this thread are mapped from unlinked
// files in the run directory, so the system may write them out; Engine::Create takes each rank's
// share of them and gives the files up one by one. The numbers are those of ordinary construction.
// At other stages `make` just runs. A full disk is an exception that names folder and bytes.
#pragma once

#include "dtrain/job.h"

namespace dtrain {

// While one lives. At most one at a time in a process.
class ConstructionScope {
 public:
  explicit ConstructionScope(const Job& job);
  ~ConstructionScope();
  ConstructionScope(const ConstructionScope&) = delete;
  ConstructionScope& operator=(const ConstructionScope&) = delete;

 private:
  bool active_ = false;
};

template <typename Make>
auto Construct(const Job& job, Make make) {
  const ConstructionScope scope(job);
  return make();
}

}  // namespace dtrain
