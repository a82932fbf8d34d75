#include "runtime/data/training_store.h"

#include <algorithm>

#include "absl/time/time.h"
#include "base/job_env.h"
#include "runtime/data/remote/remote_store.h"
#include "runtime/job/job_state.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<plan::DataStore>> OpenTrainingStore(
    const std::vector<plan::CorpusPart>& parts, Job& job) {
  const RemoteDataConfig& config = job.config().data_remote();
  const bool some = std::any_of(parts.begin(), parts.end(), [](const plan::CorpusPart& part) {
    return std::any_of(part.patterns.begin(), part.patterns.end(), plan::IsRemoteAddress);
  });
  if (!some) {
    return nullptr;
  }
  remote::RemoteStoreOptions options;
  options.cache_dir = config.cache_dir;
  options.cache_bytes_max = config.cache_bytes_max;
  options.client.timeout = absl::Seconds(config.timeout_seconds);
  options.client.environment = ReadEnvironment();
  options.fetcher.processes = job.state().env.ranks_on_node();  // Its ranks share the folder.
  return remote::OpenRemoteStore(options);
}

}  // namespace dtrain
