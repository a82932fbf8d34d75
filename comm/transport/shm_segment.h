// The memory that the ranks of one node share to coordinate: who has arrived where, what each rank
// called, and a staging area for buffers that are not registered.
//
// The first rank of the node creates it and passes the descriptor. Every collective is a sequence
// of syncs that all ranks make in step: Arrive says "what I wrote is there", Await waits until all
// have said so. A rank may write what it published for sync s again after sync s+1, so everything
// that is published between two syncs is kept twice. One thread at a time uses it; Break may come
// from any.
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

// Bytes of one of the two staging buffers of a rank.
inline constexpr size_t kStageBytes = size_t{512} << 10;

class ShmSegment {
 public:
  // Collective over the mesh; blocks. `ranks` are the group's ranks of the mesh's members.
  static absl::StatusOr<std::unique_ptr<ShmSegment>> Create(UnixMesh& mesh, const std::string& name,
                                                            const WaitContext& context);
  int self() const { return self_; }
  int size() const { return size_; }

  // Leaves this rank's header where the next sync shows it to all.
  void Publish(const CallHeader& header);
  // The header of collective `sequence` of member `index`.
  const CallHeader& header(int index, uint64_t sequence) {
    return cells_[index].headers[sequence & 1];
  }
  // Where member `index` leaves its share of a sum of squares.
  double& partial(int index, uint64_t sequence) { return cells_[index].partials[sequence & 1]; }
  // Staging buffer `which` (0 or 1) of member `index`.
  char* stage(int index, uint64_t which) {
    return stages_ + (static_cast<size_t>(index) * 2 + (which & 1)) * kStageBytes;
  }

  // Publishes what this rank wrote and enters the next sync.
  void Arrive();
  // Waits until all members have arrived at this rank's sync. Unavailable: a missing member is
  // dead. DeadlineExceeded: lists the missing members and the last call of each.
  absl::Status Await(const WaitContext& context);
  absl::Status Sync(const WaitContext& context) {
    Arrive();
    return Await(context);
  }

  // The group's ranks that have not arrived at this rank's sync; none between syncs.
  std::vector<int> Awaited() const;

  // Tells all members that the group is broken and wakes them. The first caller's reason stays.
  void Break(const absl::Status& reason);
  // The reason given to Break by any member, or OK.
  absl::Status BrokenStatus() const;

 private:
  // One cache line for what is waited on, others for what is read once.
  struct Cell {
    alignas(64) std::atomic<uint32_t> phase;  // Syncs arrived at; a futex.
    std::atomic<uint32_t> sleepers;           // Threads that sleep on `phase`.
    std::atomic<uint64_t> last_sequence;      // For reports.
    alignas(64) CallHeader headers[2];
    alignas(64) double partials[2];
  };
  struct Verdict {
    std::atomic<uint32_t> state;  // 0: none, 1: being written, 2: there.
    int32_t code;
    int32_t rank;
    char text[1012];
  };

  ShmSegment(UnixMesh& mesh, SharedMapping mapping);
  absl::Status Missing(uint32_t target, const WaitContext& context) const;
  absl::Status Report(uint32_t target) const;
  bool Arrived(int index, uint32_t target) const;
  bool SpinFor(int index, uint32_t target, const WaitContext& context, int64_t& spin_until) const;

  UnixMesh& mesh_;
  const int self_;
  const int size_;
  SharedMapping mapping_;
  Verdict* verdict_;
  Cell* cells_;
  char* stages_;
  uint32_t phase_ = 0;
};

}  // namespace dtrain::comm
