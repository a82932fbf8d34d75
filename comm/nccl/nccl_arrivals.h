// The notes that ranks leave each other in the store when a collective takes suspiciously long, so
// that a timeout names who did not come and who called something else.
//
// While collectives finish in time, a rank writes nothing but its name. A rank whose collective is
// late asks about it. The other ranks poll the store for such questions, and answer if their
// devices are in the same collective, or through it. One thread at a time may call Announce and
// Poll; everything else is thread-safe. Every call to the store is bounded by kStoreBound.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "comm/net/store.h"

namespace dtrain::comm {

inline constexpr absl::Duration kStoreBound = absl::Seconds(2);
// A rank's note about a collective that it has finished.
inline constexpr absl::string_view kThrough = "through";

class NcclArrivals {
 public:
  // `store` may be null if `size` is 1; nothing is known then. `prefix` is the group's name and
  // epoch.
  NcclArrivals(Store* store, std::string prefix, int rank, int size)
      : store_(store), prefix_(std::move(prefix)), rank_(rank), size_(size) {}

  bool has_store() const { return store_ != nullptr; }
  // Makes this rank known to the others, as "host a, pid 12".
  absl::Status Introduce(const std::string& who);
  // "rank 1 (host a, pid 12)", or "rank 1" where that rank did not introduce itself.
  std::string NameOf(int rank) const;
  // Tells the others "my device is in collective `sequence`, which is `what`". Telling it again
  // does nothing.
  void Announce(uint64_t sequence, absl::string_view what);
  // One line that names the ranks that did not announce `sequence`, or one that announced something
  // else than `what`.
  std::string Explain(uint64_t sequence, const std::string& what) const;
  // Tells the peers that this rank gave up. The first reason stays.
  void AnnounceAbort(const std::string& reason) const;
  // Asks the ranks that are in `sequence`, or through it, to announce that.
  void Ask(uint64_t sequence) const;
  struct Notes {
    std::optional<std::string> abort;  // "rank 3: reason" if a peer gave up.
    // Sequences about which peers ask and which this rank has not announced.
    std::vector<uint64_t> questions;
  };
  // Reads the notes that concern this rank from the store.
  Notes Poll();

 private:
  // Ranks that ask at the same time ask about sequences that lie close together: one may be stuck
  // in a collective while the others wait for it in the next. A question's key in the store is its
  // sequence modulo this number, so that such questions do not replace each other.
  static constexpr uint64_t kQuestions = 8;
  std::string QuestionKey(uint64_t slot) const;
  std::string SequencePrefix(uint64_t sequence) const;
  std::string JoinNames(const std::vector<int>& ranks) const;
  Store* const store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
  // The sequence + 1 that was announced last, for each key of a question.
  std::array<uint64_t, kQuestions> announced_ = {};
};

}  // namespace dtrain::comm
