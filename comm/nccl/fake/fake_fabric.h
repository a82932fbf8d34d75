// The connections of the NCCL fake: shared memory that forked processes inherit, over which one
// communicator moves bytes.
//
// A collective whose ranks disagree (kind, count, type, operation, root, NCCL group) never ends by
// itself, as with NCCL. It ends when the caller's `stopped` gives true.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

inline constexpr int kFakeRanksMax = 4;
inline constexpr int kFakeCommsMax = 8;
inline constexpr size_t kFakeChunkBytes = 16 << 10;

enum class FakeKind : int { kAllReduce, kReduceScatter, kAllGather, kBroadcast, kSend, kReceive };

// The parts of an operation that must be equal on all ranks.
struct FakeDescriptor {
  FakeKind kind = FakeKind::kAllReduce;
  NcclDType dtype = NcclDType::kFloat32;
  int op = 0;    // All pre-multiplied sums have one value, because their scalars may differ.
  int root = 0;  // 0 if there is none.
  uint64_t count = 0;
  // How many collectives of its communicator are in one NCCL group with it, itself included. NCCL
  // plans them together, so ranks that group them otherwise disagree.
  int together = 1;
  bool operator==(const FakeDescriptor&) const = default;
};

struct FakeOperation {
  FakeDescriptor descriptor;
  const char* send = nullptr;
  char* receive = nullptr;
  int peer = 0;         // The other rank of a kSend or kReceive.
  double factor = 1.0;  // The factor of a pre-multiplied sum.
};

struct FakeMailbox {
  std::atomic<int> full;
  uint64_t count;  // The elements of the whole message.
  NcclDType dtype;
  char data[kFakeChunkBytes];
};

struct FakeSharedComm {
  std::atomic<int> ranks;
  std::atomic<int> joined;
  std::atomic<int> finalized;
  std::atomic<uint64_t> arrived[kFakeRanksMax];
  FakeDescriptor described[kFakeRanksMax];
  char parts[kFakeRanksMax][kFakeChunkBytes];
  FakeMailbox mail[kFakeRanksMax][kFakeRanksMax];  // [from][to]
  // A communicator is split once at most. Colours and keys are by rank, and the new communicator is
  // at its first rank.
  std::atomic<int> split_posted;
  int split_color[kFakeRanksMax];
  int split_key[kFakeRanksMax];
  std::atomic<int> split_comm[kFakeRanksMax];  // The index + 1, or 0 before it is known.
};

struct FakeShared {
  std::atomic<int> comms_used;
  FakeSharedComm comms[kFakeCommsMax];
};

// Owns the mapping. It must be made before fork.
class FakeFabric {
 public:
  FakeFabric();
  FakeFabric(const FakeFabric&) = delete;
  FakeFabric& operator=(const FakeFabric&) = delete;
  ~FakeFabric();
  FakeShared& shared() { return *shared_; }

 private:
  FakeShared* shared_;
};

// One rank's end of a communicator. One stream's thread uses it at a time.
class FakeExchange {
 public:
  FakeExchange(FakeSharedComm* comm, int rank, int ranks, std::function<bool()> stopped)
      : comm_(comm), rank_(rank), ranks_(ranks), stopped_(std::move(stopped)) {}

  // Runs to the end, or until it is stopped. REQUIRES: the operation is a collective.
  void Collective(const FakeOperation& operation);
  // Runs the sends and receives of one NCCL group, which make progress together. Several with one
  // peer go in their order.
  void PointToPoint(const std::vector<FakeOperation>& operations);
  // Never ends by itself.
  void Hang();

 private:
  bool Barrier();
  bool Agree(const FakeDescriptor& descriptor);
  void AllReduce(const FakeOperation& operation);
  void ReduceScatter(const FakeOperation& operation);
  void AllGather(const FakeOperation& operation);
  void Broadcast(const FakeOperation& operation);
  void PostPart(const FakeOperation& operation, const char* from, size_t count);
  void ReducePosted(const FakeOperation& operation, char* to, size_t count);

  FakeSharedComm* const comm_;
  const int rank_;
  const int ranks_;
  const std::function<bool()> stopped_;
  uint64_t sequence_ = 0;
};

}  // namespace dtrain::comm
