#include "runtime/plan/memory_fit.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::plan {
namespace {

constexpr int kStageMax = 3;
constexpr int64_t kOffloadBuffers = 4;  // The default of offload_optimizer.buffer_count.

double Needed(const MemoryRequest& request) { return PlanMemory(request).total(); }

std::string Gigabytes(double bytes) { return absl::StrFormat("%.3g GB", bytes * 1e-9); }

// The first of higher stages, offload and more ranks that would make it fit.
std::string Remedy(MemoryRequest request, double available) {
  for (int stage = request.zero_stage + 1; stage <= kStageMax; ++stage) {
    request.zero_stage = stage;
    if (Needed(request) <= available) {
      return absl::StrFormat("zero_optimization.stage %d takes %s", stage,
                             Gigabytes(Needed(request)));
    }
  }
  request.zero_stage = kStageMax;
  MemoryRequest offloaded = request;
  offloaded.offload_buffers = kOffloadBuffers;
  if (request.offload_buffers == 0 && Needed(offloaded) <= available) {
    return absl::StrFormat(
        "zero_optimization.stage 3 with offload_optimizer.device \"nvme\" takes %s",
        Gigabytes(Needed(offloaded)));
  }
  const std::optional<int64_t> ranks = SmallestWorld(request, available, /*reserve=*/0);
  std::string text = ranks.has_value()
                         ? absl::StrFormat("zero_optimization.stage 3 on %d ranks fits", *ranks)
                         : std::string("no number of ranks makes it fit");
  if (request.precision == PrecisionConfig::Kind::kFloat32) {
    absl::StrAppend(&text, "; bf16.enabled halves the gathered weights");
  }
  return text;
}

}  // namespace

double LeastAvailable(absl::Span<const RankMemory> ranks) {
  double least = std::numeric_limits<double>::infinity();
  for (const RankMemory& rank : ranks) {
    const auto sharing = [&](const auto& same) {
      return static_cast<double>(std::count_if(ranks.begin(), ranks.end(), same));
    };
    const double machine = sharing([&](const RankMemory& o) { return o.machine == rank.machine; });
    const double cgroup = sharing(
        [&](const RankMemory& o) { return o.machine == rank.machine && o.cgroup == rank.cgroup; });
    least = std::min({least, static_cast<double>(rank.machine_available) / machine,
                      static_cast<double>(rank.cgroup_available) / cgroup});
  }
  return least;
}

absl::Status CheckStatesFit(const MemoryRequest& request, double available) {
  const double needed = Needed(request);
  if (needed <= available) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "weights, gradients and optimizer states of %.1f million parameters take %s on each of %d "
      "ranks at zero_optimization.stage %d, but a rank has %s: %s",
      request.model.parameters * 1e-6, Gigabytes(needed), request.world_size, request.zero_stage,
      Gigabytes(available), Remedy(request, available)));
}

}  // namespace dtrain::plan
