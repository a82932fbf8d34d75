#include "comm/nccl/fake/fake_fabric.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "comm/nccl/fake/fake_math.h"

namespace dtrain::comm {
namespace {

void Pause(int round) {
  if (round > 64) {
    usleep(50);
  }
}

// Calls body(offset, count) for pieces of `count` elements that fit into a chunk, at least once.
template <typename Body>
void ForEachChunk(size_t count, NcclDType dtype, Body body) {
  const size_t step = kFakeChunkBytes / NcclDTypeBytes(dtype);
  size_t offset = 0;
  do {
    const size_t part = std::min(step, count - offset);
    if (!body(offset, part)) {
      return;
    }
    offset += part;
  } while (offset < count);
}

// The state of one send or receive inside a group.
struct Transfer {
  const FakeOperation* operation;
  FakeMailbox* mailbox;
  size_t moved = 0;      // Bytes.
  bool started = false;  // An empty message is sent too.
  bool finished = false;
};

void ProgressSend(Transfer& transfer) {
  FakeMailbox& mail = *transfer.mailbox;
  if (mail.full.load(std::memory_order_acquire) != 0) {
    return;
  }
  const FakeDescriptor& descriptor = transfer.operation->descriptor;
  const size_t bytes = descriptor.count * NcclDTypeBytes(descriptor.dtype);
  if (transfer.started && transfer.moved == bytes) {
    transfer.finished = true;  // The receiver has taken the last piece.
    return;
  }
  const size_t piece = std::min(kFakeChunkBytes, bytes - transfer.moved);
  if (piece > 0) {
    std::memcpy(mail.data, transfer.operation->send + transfer.moved, piece);
  }
  mail.count = descriptor.count;
  mail.dtype = descriptor.dtype;
  transfer.moved += piece;
  transfer.started = true;
  mail.full.store(1, std::memory_order_release);
}

void ProgressReceive(Transfer& transfer) {
  FakeMailbox& mail = *transfer.mailbox;
  const FakeDescriptor& descriptor = transfer.operation->descriptor;
  if (mail.full.load(std::memory_order_acquire) == 0 || mail.count != descriptor.count ||
      mail.dtype != descriptor.dtype) {
    return;  // A message of another size is never taken, so that both sides hang.
  }
  const size_t bytes = descriptor.count * NcclDTypeBytes(descriptor.dtype);
  const size_t piece = std::min(kFakeChunkBytes, bytes - transfer.moved);
  if (piece > 0) {
    std::memcpy(transfer.operation->receive + transfer.moved, mail.data, piece);
  }
  transfer.moved += piece;
  transfer.finished = transfer.moved == bytes;
  mail.full.store(0, std::memory_order_release);
}

}  // namespace

FakeFabric::FakeFabric() {
  void* const data =
      mmap(nullptr, sizeof(FakeShared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  DT_CHECK(data != MAP_FAILED);
  shared_ = static_cast<FakeShared*>(data);  // All zero is the initial state.
}

FakeFabric::~FakeFabric() { munmap(shared_, sizeof(FakeShared)); }

void FakeExchange::Hang() {
  while (!stopped_()) {
    usleep(200);
  }
}

bool FakeExchange::Barrier() {
  comm_->arrived[rank_].store(++sequence_, std::memory_order_release);
  for (int rank = 0; rank < ranks_; ++rank) {
    for (int round = 0; comm_->arrived[rank].load(std::memory_order_acquire) < sequence_; ++round) {
      if (stopped_()) {
        return false;
      }
      Pause(round);
    }
  }
  return true;
}

bool FakeExchange::Agree(const FakeDescriptor& descriptor) {
  comm_->described[rank_] = descriptor;
  if (!Barrier()) {
    return false;
  }
  bool same = true;
  for (int rank = 0; rank < ranks_; ++rank) {
    same = same && comm_->described[rank] == descriptor;
  }
  if (!same) {
    Hang();
    return false;
  }
  return Barrier();
}

void FakeExchange::Collective(const FakeOperation& operation) {
  if (!Agree(operation.descriptor)) {
    return;
  }
  switch (operation.descriptor.kind) {
    case FakeKind::kAllReduce:
      return AllReduce(operation);
    case FakeKind::kReduceScatter:
      return ReduceScatter(operation);
    case FakeKind::kAllGather:
      return AllGather(operation);
    case FakeKind::kBroadcast:
      return Broadcast(operation);
    case FakeKind::kSend:
    case FakeKind::kReceive:
      break;
  }
  DT_CHECK(false) << "not a collective";
}

void FakeExchange::PostPart(const FakeOperation& operation, const char* from, size_t count) {
  const NcclDType dtype = operation.descriptor.dtype;
  if (count > 0) {
    std::memcpy(comm_->parts[rank_], from, count * NcclDTypeBytes(dtype));
  }
  if (operation.factor != 1.0) {
    ScaleElements(dtype, operation.factor, comm_->parts[rank_], count);
  }
}

void FakeExchange::ReducePosted(const FakeOperation& operation, char* to, size_t count) {
  std::array<const char*, kFakeRanksMax> parts = {};
  for (int rank = 0; rank < ranks_; ++rank) {
    parts[static_cast<size_t>(rank)] = comm_->parts[rank];
  }
  ReduceParts(operation.descriptor.dtype, static_cast<NcclReduceOp>(operation.descriptor.op),
              absl::MakeSpan(parts).subspan(0, static_cast<size_t>(ranks_)), count, to);
}

void FakeExchange::AllReduce(const FakeOperation& operation) {
  const size_t width = NcclDTypeBytes(operation.descriptor.dtype);
  ForEachChunk(operation.descriptor.count, operation.descriptor.dtype,
               [&](size_t offset, size_t count) {
                 PostPart(operation, operation.send + offset * width, count);
                 if (!Barrier()) {
                   return false;
                 }
                 ReducePosted(operation, operation.receive + offset * width, count);
                 return Barrier();
               });
}

void FakeExchange::ReduceScatter(const FakeOperation& operation) {
  const size_t width = NcclDTypeBytes(operation.descriptor.dtype);
  const size_t part_count = operation.descriptor.count;
  for (int part = 0; part < ranks_; ++part) {
    const char* const from = operation.send + static_cast<size_t>(part) * part_count * width;
    bool alive = true;
    ForEachChunk(part_count, operation.descriptor.dtype, [&](size_t offset, size_t count) {
      PostPart(operation, from + offset * width, count);
      alive = Barrier();
      if (alive && part == rank_) {
        ReducePosted(operation, operation.receive + offset * width, count);
      }
      alive = alive && Barrier();
      return alive;
    });
    if (!alive) {
      return;
    }
  }
}

void FakeExchange::AllGather(const FakeOperation& operation) {
  const size_t width = NcclDTypeBytes(operation.descriptor.dtype);
  const size_t part_count = operation.descriptor.count;
  ForEachChunk(part_count, operation.descriptor.dtype, [&](size_t offset, size_t count) {
    PostPart(operation, operation.send + offset * width, count);
    if (!Barrier()) {
      return false;
    }
    for (int rank = 0; rank < ranks_ && count > 0; ++rank) {
      std::memcpy(operation.receive + (static_cast<size_t>(rank) * part_count + offset) * width,
                  comm_->parts[rank], count * width);
    }
    return Barrier();
  });
}

void FakeExchange::Broadcast(const FakeOperation& operation) {
  const size_t width = NcclDTypeBytes(operation.descriptor.dtype);
  const int root = operation.descriptor.root;
  ForEachChunk(
      operation.descriptor.count, operation.descriptor.dtype, [&](size_t offset, size_t count) {
        if (rank_ == root) {
          PostPart(operation, operation.send + offset * width, count);
        }
        if (!Barrier()) {
          return false;
        }
        if (count > 0) {
          std::memcpy(operation.receive + offset * width, comm_->parts[root], count * width);
        }
        return Barrier();
      });
}

void FakeExchange::PointToPoint(const std::vector<FakeOperation>& operations) {
  std::vector<Transfer> transfers;
  for (const FakeOperation& operation : operations) {
    const bool sends = operation.descriptor.kind == FakeKind::kSend;
    const int from = sends ? rank_ : operation.peer;
    const int to = sends ? operation.peer : rank_;
    transfers.push_back({&operation, &comm_->mail[from][to]});
  }
  size_t left = transfers.size();
  for (int round = 0; left > 0 && !stopped_(); ++round) {
    left = 0;
    bool sending[kFakeRanksMax] = {};
    bool receiving[kFakeRanksMax] = {};
    for (Transfer& transfer : transfers) {
      if (transfer.finished) {
        continue;
      }
      ++left;
      const bool sends = transfer.operation->descriptor.kind == FakeKind::kSend;
      bool& busy = (sends ? sending : receiving)[transfer.operation->peer];
      if (!busy) {  // An earlier message to the same peer goes first.
        sends ? ProgressSend(transfer) : ProgressReceive(transfer);
      }
      busy = true;
    }
    Pause(round);
  }
}

}  // namespace dtrain::comm
