// What ranks tell each other through the store when a collective takes suspiciously long, so that a
// timeout names who did not come and who called something else.
//
// Beside its name a rank writes nothing while collectives finish in time. One whose time is over
// asks; the others look for that now and then and answer if their devices are in the same
// collective. Used by one thread at a time. Every call to the store is bounded by kStoreBound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "comm/net/store.h"

namespace dtrain::comm {

inline constexpr absl::Duration kStoreBound = absl::Seconds(2);

class NcclArrivals {
 public:
  // `store` may be null (size 1): then nothing is known. `prefix` is the group's name and epoch.
  NcclArrivals(Store* store, std::string prefix, int rank, int size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  // Makes this rank known to the others, as "host a, pid 12".
  absl::Status Introduce(const std::string& who);
  // "rank 1 (host a, pid 12)", or "rank 1" of one that did not say.
  std::string NameOf(int rank) const;
  // "My device is in collective `sequence`, which is `what`."
  void Announce(uint64_t sequence, const std::string& what);
  // Who did not announce `sequence`, and who announced something else than `what`. One line.
  std::string Explain(uint64_t sequence, const std::string& what);
  // Tells the peers that this rank gave up. The first reason stays.
  void AnnounceAbort(const std::string& reason);
  // Has the ranks that are in `sequence` announce it.
  void Ask(uint64_t sequence);
  struct Sight {
    std::optional<std::string> abort;  // A peer's "rank 3: reason", when one gave up.
    bool asked = false;                // Somebody asks who is in `sequence`.
  };
  Sight Look(uint64_t sequence);

 private:
  std::string SequencePrefix(uint64_t sequence) const;
  std::string JoinNames(const std::vector<int>& ranks) const;
  Store* const store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
};

}  // namespace dtrain::comm
