// The memory that the ranks of one node share to coordinate: each rank's progress and call, and a
// staging area for buffers that are not registered.
//
// The first rank of the node creates it and passes the descriptor. Every collective is a sequence
// of syncs that all ranks make in step: each says "what I wrote is there" and waits until all have
// said so. A rank may write what it published for sync s again after sync s+1, so everything that
// is published between two syncs is kept twice. One thread at a time uses it; Break may come from
// any.
//
// A few ranks read each other's words. If there are many, each waits for its children in a tree,
// and all wait for the first rank, the root: n ranks touch each other's cache lines 2n times and
// not n x n times, and a rank that sleeps is woken at most kTreeFan + 1 times. A wait first spins
// briefly, if that takes no core from another rank, and then sleeps on a futex; only sleepers are
// woken, so a short wait makes no system call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/call.h"
#include "comm/shared_mapping.h"
#include "comm/transport/unix_mesh.h"
#include "comm/transport/wait_context.h"

namespace dtrain::comm {

// More ranks than these form a tree of which each has up to kTreeFan children. With fewer ranks the
// root would have all others as its children, and the way back through the root would only add a
// step.
inline constexpr int kTreeFan = 8;
inline constexpr int kFlatRanksMax = kTreeFan;

// Bytes of one of the two staging buffers of a rank.
inline constexpr size_t kStageBytes = size_t{512} << 10;

class ShmSegment {
 public:
  // Collective over the mesh; blocks. `ranks` are the group's ranks of the mesh's members.
  // `flat_ranks_max`: for tests; equal on all ranks.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(UnixMesh& mesh, const std::string& name,
                                                            const WaitContext& context,
                                                            int flat_ranks_max = kFlatRanksMax);
  int self() const { return self_; }
  int size() const { return size_; }

  // Leaves this rank's header where the next sync shows it to all.
  void Publish(const CallHeader& header);
  // The header of collective `sequence` of member `index`.
  const CallHeader& header(int index, uint64_t sequence) {
    return cells_[index].headers[sequence & 1];
  }
  // The place where member `index` leaves its share of a sum of squares.
  double& partial(int index, uint64_t sequence) { return cells_[index].partials[sequence & 1]; }
  // Staging buffer `which` (0 or 1) of member `index`.
  char* stage(int index, uint64_t which) {
    return stages_ + (static_cast<size_t>(index) * 2 + (which & 1)) * kStageBytes;
  }

  // Publishes what this rank wrote and waits until all members have arrived at the same sync.
  // Unavailable: a missing member is dead. DeadlineExceeded: lists the missing members and the last
  // call of each.
  absl::Status Sync(const WaitContext& context);
  // The system calls of this rank's syncs so far.
  struct FutexCalls {
    uint64_t waits = 0;
    uint64_t wakes = 0;
  };
  const FutexCalls& futex_calls() const { return futex_calls_; }

  // The group's ranks that have not arrived at this rank's sync; none between syncs.
  std::vector<int> Awaited() const;

  // Tells all members that the group is broken and wakes them. The first caller's reason stays.
  void Break(const absl::Status& reason);
  // The reason given to Break by any member, or OK.
  absl::Status BrokenStatus() const;

 private:
  // Counts syncs; a futex.
  struct Word {
    std::atomic<uint32_t> phase;
    std::atomic<uint32_t> sleepers;  // Threads that sleep on `phase`.
    // Whether the counter, which may wrap, has come to `target`.
    bool Reached(uint32_t target) const {
      return static_cast<int32_t>(phase.load(std::memory_order_acquire) - target) >= 0;
    }
  };
  // Each word that is waited on has a cache line of its own.
  struct Cell {
    alignas(64) Word arrived;             // This rank's syncs.
    std::atomic<uint64_t> last_sequence;  // For reports.
    // Tree only: the syncs that this rank and all ranks below it have made.
    alignas(64) Word below;
    alignas(64) CallHeader headers[2];
    alignas(64) double partials[2];
  };
  struct Verdict {
    std::atomic<uint32_t> state;  // 0: none, 1: being written, 2: there.
    int32_t code;
    int32_t rank;
    char text[1012];
  };

  ShmSegment(UnixMesh& mesh, SharedMapping mapping, bool tree);
  absl::Status AwaitAll(const WaitContext& context);
  absl::Status AwaitTree(const WaitContext& context);
  // Waits until `word` has come to this rank's sync. `spin_until`: 0 at first; then the time limit
  // of spinning for all waits of a sync.
  absl::Status AwaitWord(Word& word, const WaitContext& context, int64_t& spin_until);
  void Set(Word& word, uint32_t phase);
  absl::Status Missing(uint32_t target, const WaitContext& context) const;
  absl::Status Report(uint32_t target) const;
  // Whether `index` keeps the others from `target`: it has not arrived, or it has not passed on
  // that all ranks below it have.
  bool HoldsUp(int index, uint32_t target) const;
  // Whether their `below` has come to `target`.
  bool AllReached(int first, int end, uint32_t target) const;
  static bool SpinFor(const Word& word, uint32_t target, const WaitContext& context,
                      int64_t& spin_until);

  UnixMesh& mesh_;
  const int self_;
  const int size_;
  const bool tree_;
  // This rank's children in the tree: [first_child_, end_child_).
  const int first_child_;
  const int end_child_;
  SharedMapping mapping_;
  FutexCalls futex_calls_;
  Verdict* verdict_;
  Cell* cells_;
  char* stages_;
  uint32_t phase_ = 0;
};

}  // namespace dtrain::comm
