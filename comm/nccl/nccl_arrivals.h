// The notes that ranks leave each other in the store when a collective takes suspiciously long, so
// that a timeout names who did not come and who called something else.
//
// Beside its name a rank writes nothing while collectives finish in time. One whose time is over
// asks; the others look for that now and then and answer if their devices are in the same
// collective, or through it. Announce and Look are one thread's at a time; everything else is
// thread-safe. Every call to the store is bounded by kStoreBound.
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
  // `store` may be null (size 1): then nothing is known. `prefix` is the group's name and epoch.
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
  // Who did not announce `sequence`, and who announced something else than `what`. One line.
  std::string Explain(uint64_t sequence, const std::string& what) const;
  // Tells the peers that this rank gave up. The first reason stays.
  void AnnounceAbort(const std::string& reason) const;
  // Has the ranks that are in `sequence`, or through it, announce that.
  void Ask(uint64_t sequence) const;
  struct Sight {
    std::optional<std::string> abort;  // A peer's "rank 3: reason", when one gave up.
    std::vector<uint64_t> asked;       // Sequences that this rank did not announce.
  };
  Sight Look();

 private:
  // Ranks that ask at the same time ask about sequences that lie close together: one is stuck in a
  // collective, say, and the others wait for it in the next. Each such question has its own key.
  static constexpr uint64_t kQuestions = 8;
  std::string QuestionKey(uint64_t slot) const;
  std::string SequencePrefix(uint64_t sequence) const;
  std::string JoinNames(const std::vector<int>& ranks) const;
  Store* const store_;
  const std::string prefix_;
  const int rank_;
  const int size_;
  std::array<uint64_t, kQuestions> announced_ = {};  // By question: the sequence + 1.
};

}  // namespace dtrain::comm
