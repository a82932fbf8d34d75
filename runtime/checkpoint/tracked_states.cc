#include "runtime/checkpoint/tracked_states.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"

namespace dtrain {
namespace {

// A rank's whole state has room for 1 MiB (checkpoint/state_source.h), of which the engines take
// less than the rest.
constexpr size_t kTrackedBytesMax = 960 << 10;

}  // namespace

Json TrackedStates::Save() const {
  Json all = Json::object();
  for (const auto& [name, state] : states_) {
    all[name] = state->SaveState();
  }
  return all;
}

absl::Status TrackedStates::CheckBytes() const {
  size_t all = 0;
  std::pair<size_t, std::string> largest;
  for (const auto& [name, state] : states_) {
    const size_t bytes = DumpJson(state->SaveState()).size();
    all += bytes;
    largest = std::max(largest, {bytes, name});
  }
  if (all > kTrackedBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("tracked states take %d bytes as JSON, of which \"%s\" takes %d; allowed: "
                        "%d. Keep arrays in tensors: Checkpointer::Track takes them of any size",
                        all, largest.second, largest.first, kTrackedBytesMax));
  }
  return absl::OkStatus();
}

absl::Status TrackedStates::Restore(const Json& all, const std::string& source) const {
  for (const auto& [name, state] : states_) {
    if (!all.is_object() || !all.contains(name)) {
      DT_LOG(Warning) << source << " holds no state of \"" << name << "\": it starts as new";
      continue;
    }
    DT_RETURN_IF_ERROR(Annotate(state->RestoreState(all[name]), name));
  }
  return absl::OkStatus();
}

}  // namespace dtrain
