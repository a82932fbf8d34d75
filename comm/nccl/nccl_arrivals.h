// What ranks tell each other through the store when a collective takes suspiciously long, so that a
// timeout names who did not come and who called something else.
//
// Nothing is written while collectives finish in time. Used by the watchdog thread only. Every
// call to the store is bounded by kStoreBound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "comm/net/store.h"

namespace dtrain::comm {

inline constexpr absl::Duration kStoreBound = absl::Seconds(2);

class NcclArrivals {
 public:
  // `store` may be null (size 1): then nothing is known. `prefix` is the group's name and epoch.
  NcclArrivals(Store* store, std::string prefix, int rank, int size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  // "I have been in collective `sequence`, which is `what`, for a while."
  void Announce(uint64_t sequence, const std::string& what);
  // Who did not announce `sequence`, and who announced something else than `what`. One line.
  std::string Explain(uint64_t sequence, const std::string& what);
  // Tells the peers that this rank gave up. The first reason stays.
  void AnnounceAbort(const std::string& reason);
  // A peer's "rank 3: reason", when one gave up.
  std::optional<std::string> PeerAbort();

 private:
  std::string SequencePrefix(uint64_t sequence) const;
  Store* const store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

}  // namespace dtrain::comm
