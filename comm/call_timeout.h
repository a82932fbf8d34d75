// How long a collective may take, learnt from earlier calls. One thread at a time uses a
// CallTimeouts.
//
// A fixed limit must allow for the slowest start and the longest save, so it names a missing rank
// minutes after everybody has noticed. Once a call has run a few times, a better limit is known:
// five times the longest call of the group so far. The first call of a name has the configured
// limit: memory is touched, libraries and devices are set up, and the first save or evaluation of a
// long run must not be measured by its steps. The next ones have at least kEarlyLeast, because
// sizes are tuned and graphs captured then; after three the limit is learnt. It never falls below
// `least`, because a wrong stop costs more than a late one. Durations come from the caller: there
// is no clock here.
//
// The hardware rides out a link that is down for a moment. A shorter limit would end the job first,
// and blame a rank for the fault of a link. An RDMA device repeats a lost packet for up to half a
// minute by its defaults, NCCL's for two, and only then says that the peer cannot be reached.
// LeastTimeout owns that rule.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "comm/call.h"

namespace dtrain::comm {

struct TimeoutLimits {
  absl::Duration most = absl::Minutes(10);  // The configured limit, which no call exceeds.
  // The least that a learnt limit may be; `most` or more: nothing is learnt.
  absl::Duration least = absl::Seconds(10);
};

// How often an RDMA device repeats a packet that nobody acknowledges.
struct RdmaRetries {
  int timeout = 18;  // 4.096 us x 2^timeout without an answer; 0: it waits without end.
  int retries = 6;   // How often it then tries again.
};
// How long the device may take until it says that the peer cannot be reached: each of the
// 1 + retries waits may last up to four times its nominal length (InfiniBand specification,
// volume 1, 9.7.6.1.3).
absl::Duration RetryBudget(const RdmaRetries& retries);

// The hardware that carries a group's messages.
struct CallCarriers {
  bool gpu = false;                      // Collectives run on GPUs.
  std::optional<RdmaRetries> rdma = {};  // Set if messages leave the node over RDMA.
};
// TimeoutLimits::least where nothing is configured, over shared memory and TCP.
inline constexpr absl::Duration kLeastTimeout = absl::Seconds(10);
// The same with GPUs or RDMA, whose drivers make connections at the first use of an algorithm, and
// ride out a link that is down for a moment.
inline constexpr absl::Duration kLeastDeviceTimeout = absl::Seconds(60);
// TimeoutLimits::least: the configured value, else the least that `carriers` allow.
absl::Duration LeastTimeout(std::optional<absl::Duration> configured, const CallCarriers& carriers);

inline constexpr int64_t kTimeoutFactor = 5;
// Calls of a kind and name before its limit is learnt. The first has `most`, the others at least
// kEarlyLeast.
inline constexpr int64_t kFirstCalls = 3;
inline constexpr absl::Duration kEarlyLeast = absl::Seconds(60);

// The limit of a call whose kind and name have succeeded `calls` times, in a group whose longest
// call took `longest`.
absl::Duration CallTimeout(const TimeoutLimits& limits, int64_t calls, absl::Duration longest);

class CallTimeouts {
 public:
  explicit CallTimeouts(const TimeoutLimits& limits) : limits_(limits) {}

  absl::Duration Of(const CallHeader& header) const;
  // Records that `header` succeeded after `duration`.
  void Observe(const CallHeader& header, absl::Duration duration);

 private:
  // Names beyond this number are not recorded: their calls have `most`.
  static constexpr size_t kNamesMax = 4096;

  const TimeoutLimits limits_;
  absl::Duration longest_ = absl::ZeroDuration();
  absl::flat_hash_map<uint64_t, int64_t> calls_;  // By the hash of kind and name.
};

}  // namespace dtrain::comm
