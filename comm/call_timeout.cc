#include "comm/call_timeout.h"

#include <algorithm>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace dtrain::comm {
namespace {

uint64_t KeyOf(const CallHeader& header) {
  return absl::HashOf(static_cast<int>(header.kind),
                      absl::string_view(header.name, sizeof(header.name)));
}

}  // namespace

absl::Duration CallTimeout(const TimeoutLimits& limits, int64_t calls, absl::Duration longest) {
  if (calls == 0) {
    return limits.most;
  }
  const absl::Duration least =
      calls < kFirstCalls ? std::max(limits.least, kEarlyLeast) : limits.least;
  return std::min(limits.most, std::max(least, kTimeoutFactor * longest));
}

absl::Duration CallTimeouts::Of(const CallHeader& header) const {
  const auto found = calls_.find(KeyOf(header));
  return CallTimeout(limits_, found == calls_.end() ? 0 : found->second, longest_);
}

void CallTimeouts::Observe(const CallHeader& header, absl::Duration duration) {
  longest_ = std::max(longest_, duration);
  const uint64_t key = KeyOf(header);
  const auto found = calls_.find(key);
  if (found != calls_.end()) {
    ++found->second;
  } else if (calls_.size() < kNamesMax) {
    calls_.emplace(key, 1);
  }
}

}  // namespace dtrain::comm
