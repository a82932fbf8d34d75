#include "comm/call_timeout.h"

#include <algorithm>
#include <cmath>

#include "absl/hash/hash.h"
#include "absl/strings/string_view.h"

namespace dtrain::comm {
namespace {

uint64_t KeyOf(const CallHeader& header) {
  return absl::HashOf(static_cast<int>(header.kind),
                      absl::string_view(header.name, sizeof(header.name)));
}

}  // namespace

absl::Duration RetryBudget(const RdmaRetries& retries) {
  if (retries.timeout <= 0) {
    return absl::InfiniteDuration();
  }
  const absl::Duration nominal = absl::Nanoseconds(4096) * std::exp2(retries.timeout);
  return 4 * (1 + retries.retries) * nominal;
}

absl::Duration LeastTimeout(std::optional<absl::Duration> configured,
                            const CallCarriers& carriers) {
  if (configured.has_value()) {
    return *configured;
  }
  absl::Duration least = kLeastTimeout;
  if (carriers.gpu || carriers.rdma.has_value()) {
    least = kLeastDeviceTimeout;
  }
  return carriers.rdma.has_value() ? std::max(least, RetryBudget(*carriers.rdma)) : least;
}

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
