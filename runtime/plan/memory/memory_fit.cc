#include "runtime/plan/memory/memory_fit.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace dtrain::plan {
namespace {

constexpr int kStageMax = 3;
constexpr int64_t kOffloadBuffers = 4;  // The default of offload_optimizer.buffer_count.

constexpr double kFp32Bytes = 4;
// The share of the activations' estimate that is surely needed: it may be a tenth too high.
constexpr double kActivationsSure = 0.9;

// Bytes that are surely needed. The loss's are left out, since the program chooses its loss.
double Needed(const MemoryRequest& request) {
  const MemoryPlan plan = PlanMemory(request);
  return plan.states() + plan.buckets + plan.live + plan.codes + plan.rounding +
         kActivationsSure * plan.activations +
         (request.states_on_host ? 0 : plan.replicas + plan.journal);
}

std::string Gigabytes(double bytes) { return absl::StrFormat("%.3g GB", bytes * 1e-9); }

// A request that may fit, and the change that makes it from the given one.
struct Change {
  std::string text;
  MemoryRequest request;
};

// The request as it is, with higher stages, and at last with states in files or, for a rank on a
// GPU, in the host's memory.
std::vector<Change> Placements(MemoryRequest request) {
  std::vector<Change> changes = {{"", request}};
  // Stage 3 may gather more than it shares out.
  const int offload_from = request.states_on_host ? std::max(1, request.zero_stage) : kStageMax;
  for (int stage = request.zero_stage + 1; stage <= kStageMax; ++stage) {
    request.zero_stage = stage;
    changes.push_back({absl::StrFormat("zero_optimization.stage %d", stage), request});
  }
  if (request.offload_buffers == 0) {
    request.offload_buffers = kOffloadBuffers;
    for (request.zero_stage = offload_from; request.zero_stage <= kStageMax; ++request.zero_stage) {
      changes.push_back(
          {absl::StrFormat("zero_optimization.stage %d with offload_optimizer.device \"%s\"",
                           request.zero_stage, request.states_on_host ? "cpu" : "nvme"),
           request});
    }
  }
  return changes;
}

// The request as it is, with smaller micro-batches, and at last with recomputation.
std::vector<Change> Batches(MemoryRequest request) {
  std::vector<Change> changes = {{"", request}};
  while (request.micro_batch > 1) {
    request.micro_batch /= 2;
    changes.push_back(
        {absl::StrFormat("train_micro_batch_size_per_gpu %d", request.micro_batch), request});
  }
  if (request.micro_batch > 0 &&
      request.recompute.mode == ActivationCheckpointingConfig::Mode::kNone) {
    request.recompute.mode = ActivationCheckpointingConfig::Mode::kFull;
    changes.push_back({absl::StrFormat("train_micro_batch_size_per_gpu %d with "
                                       "activation_checkpointing.mode \"full\"",
                                       request.micro_batch),
                       request});
  }
  return changes;
}

// The first of smaller micro-batches, higher stages, offload and more ranks that would make it fit.
std::string Remedy(MemoryRequest request, double available) {
  for (const Change& placement : Placements(request)) {
    for (const Change& batch : Batches(placement.request)) {
      if (const double needed = Needed(batch.request); needed <= available) {
        const char* const and_then = placement.text.empty() || batch.text.empty() ? "" : " and ";
        return absl::StrCat(placement.text, and_then, batch.text, " takes ", Gigabytes(needed));
      }
    }
  }
  request.zero_stage = kStageMax;
  const std::optional<int64_t> ranks = SmallestWorld(request, available, /*reserve=*/0);
  std::string text = ranks.has_value()
                         ? absl::StrFormat("zero_optimization.stage 3 on %d ranks fits", *ranks)
                         : std::string("no number of ranks makes it fit");
  if (request.precision == PrecisionConfig::Kind::kFloat32) {
    absl::StrAppend(&text, "; bf16.enabled halves the gathered weights");
  }
  return text;
}

std::string FrozenText(const MemoryRequest& request) {
  const double bytes = FrozenBytes(request);
  return bytes == 0 ? "" : absl::StrCat(", frozen parameters of ", Gigabytes(bytes));
}

std::string CodesText(const MemoryRequest& request) {
  return PlanMemory(request).codes == 0 ? "" : ", FP8 codes of weights";
}

std::string ReplicasText(const MemoryRequest& request) {
  const double bytes = request.states_on_host ? 0 : PlanMemory(request).replicas;
  return bytes == 0 ? "" : absl::StrCat(", replicas (checkpoint.replicas) of ", Gigabytes(bytes));
}

std::string JournalText(const MemoryRequest& request) {
  const double on_host = PlanMemory(request).journal;
  const double bytes = request.states_on_host ? on_host / 2 : on_host;
  return bytes == 0 ? ""
                    : absl::StrCat(", the step journal's gradients (checkpoint.journal) of ",
                                   Gigabytes(bytes));
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
  const std::string activations =
      request.micro_batch == 0 || request.model.hidden == 0
          ? ""
          : absl::StrFormat(" and activations of a micro-batch of %d x %d tokens",
                            request.micro_batch, request.sequence_length);
  return absl::InvalidArgumentError(absl::StrFormat(
      "weights, gradients and optimizer states of %.1f million parameters%s%s%s%s%s "
      "take %s on each of "
      "%d rank%s at zero_optimization.stage %d, but a rank has %s: %s",
      request.model.parameters * 1e-6, FrozenText(request), CodesText(request),
      ReplicasText(request), JournalText(request), activations, Gigabytes(needed),
      request.world_size, request.world_size == 1 ? "" : "s", request.zero_stage,
      Gigabytes(available), Remedy(request, available)));
}

absl::Status CheckOffloadFits(const MemoryRequest& request, double available) {
  const MemoryPlan plan = PlanMemory(request);
  const double journal = request.states_on_host ? plan.journal : 0;
  const double needed = plan.host + journal;
  if (needed <= available) {
    return absl::OkStatus();
  }
  const double frozen_bytes = FarFrozenBytes(request);
  const std::string frozen =
      frozen_bytes == 0 ? ""
                        : absl::StrCat(" and of frozen parameters of ", Gigabytes(frozen_bytes));
  const std::string journalled =
      journal == 0 ? ""
                   : absl::StrCat(" and the step journal's gradients (checkpoint.journal) of ",
                                  Gigabytes(journal));
  return absl::InvalidArgumentError(absl::StrFormat(
      "the offloaded states of %.1f million parameters%s%s take %s of host memory on each of %d "
      "rank%s at zero_optimization.stage %d, but a rank has %s: %s",
      request.model.parameters * 1e-6, frozen, journalled, Gigabytes(needed), request.world_size,
      request.world_size == 1 ? "" : "s", request.zero_stage, Gigabytes(available),
      2 * journal > needed ? "most of it is the journal's, so use more ranks or set "
                             "checkpoint.journal to \"off\""
      // More ranks do not help: activations are not divided.
      : 2 * plan.far_activations > needed
          ? "most of it is activations, so set a smaller train_micro_batch_size_per_gpu"
      : request.offload_buffers == 0 ? "use more ranks"
      : request.offload_to_file && request.offload_ratio == 1
          ? "use more ranks or a smaller offload_optimizer.buffer_count"
          : "set offload_optimizer.device to \"nvme\" with ratio 1 to keep optimizer states in a "
            "file"));
}

absl::Status CheckCanBeMade(const MemoryRequest& request, double available) {
  const double whole = kFp32Bytes * request.model.parameters;
  if (request.zero_stage == kStageMax || whole <= available) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%.1f million parameters take %s on every rank while the model is created in fp32 at "
      "zero_optimization.stage %d, but a rank has %s of host memory; set zero_optimization.stage "
      "3, which creates the parameters in files of the run directory",
      request.model.parameters * 1e-6, Gigabytes(whole), request.zero_stage, Gigabytes(available)));
}

}  // namespace dtrain::plan
