#include "comm/collectives/message_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/float16.h"
#include "base/status.h"
#include "comm/collectives/reduce.h"

namespace dtrain::comm {
namespace {

// Bytes of the buffer that are under way at a time, divided over the ranks.
constexpr size_t kChunkBytes = size_t{4} << 20;

char* Bytes(const Buffer& buffer) { return static_cast<char*>(buffer.data); }

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes != 0 && to != from) {
    std::memmove(to, from, bytes);
  }
}

void ToWire(const char* from, char* to, size_t count) {
  const auto* const in = reinterpret_cast<const float*>(from);
  auto* const out = reinterpret_cast<BFloat16*>(to);
  for (size_t i = 0; i < count; ++i) {
    out[i] = ToBFloat16(in[i]);
  }
}

void FromWire(const char* from, char* to, size_t count) {
  const auto* const in = reinterpret_cast<const BFloat16*>(from);
  auto* const out = reinterpret_cast<float*>(to);
  for (size_t i = 0; i < count; ++i) {
    out[i] = ToFloat(in[i]);
  }
}

}  // namespace

MessageCollectives::MessageCollectives(std::unique_ptr<Transport> transport, std::string name)
    : transport_(std::move(transport)),
      name_(std::move(name)),
      self_(transport_->rank()),
      size_(transport_->size()),
      messages_(*transport_) {}

absl::Status MessageCollectives::CompareWithAll(const CallHeader& mine,
                                                const WaitContext& context) {
  std::vector<CallHeader> theirs(static_cast<size_t>(size_));
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      transfers.push_back(SendTo(peer, &mine, sizeof(mine)));
      transfers.push_back(
          ReceiveFrom(peer, &theirs[static_cast<size_t>(peer)], sizeof(CallHeader)));
    }
  }
  DT_RETURN_IF_ERROR(transport_->Move(transfers, context));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      DT_RETURN_IF_ERROR(CompareCalls(self_, mine, peer, theirs[static_cast<size_t>(peer)]));
    }
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::Run(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(CompareWithAll(call.header, context));
  switch (call.header.kind) {
    case CallKind::kAllReduce:
      return AllReduce(call, context);
    case CallKind::kReduceScatter:
      return ReduceScatter(call, context);
    case CallKind::kAllGather:
      return AllGather(call, context);
    case CallKind::kBroadcast:
      return Broadcast(call, context);
    case CallKind::kAllToAll:
      return AllToAll(call, context);
    default:
      return absl::OkStatus();
  }
}

void MessageCollectives::ReduceIncoming(const Call& call, const char* own, void* output,
                                        size_t count, size_t room, double* squares) {
  std::vector<const void*> inputs;
  inputs.reserve(static_cast<size_t>(size_));
  for (int rank = 0; rank < size_; ++rank) {
    inputs.push_back(rank == self_ ? own : incoming_.data() + static_cast<size_t>(rank) * room);
  }
  Reduce({.inputs = inputs,
          .outputs = absl::MakeConstSpan(&output, 1),
          .count = count,
          .dtype = call.header.wire_bf16 ? DType::kBFloat16 : call.header.dtype,
          .op = call.header.op,
          .sum_of_squares = squares});
}

absl::Status MessageCollectives::SumPartials(const Call& call, double partial,
                                             const WaitContext& context) {
  std::vector<double> partials(static_cast<size_t>(size_), partial);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      transfers.push_back(SendTo(peer, &partial, sizeof(partial)));
      transfers.push_back(ReceiveFrom(peer, &partials[static_cast<size_t>(peer)], sizeof(partial)));
    }
  }
  DT_RETURN_IF_ERROR(transport_->Move(transfers, context));
  *call.sum_of_squares = 0;
  for (const double value : partials) {
    *call.sum_of_squares += value;
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::AllReduce(const Call& call, const WaitContext& context) {
  // What travels: the buffer itself, or a bf16 copy of it.
  const bool convert = call.header.wire_bf16 && call.header.dtype == DType::kFloat32;
  const size_t count = call.output.count();
  const size_t element = convert ? sizeof(BFloat16) : DTypeBytes(call.header.dtype);
  char* wire = Bytes(call.output);
  if (convert) {
    outgoing_.resize(count * element);
    wire = outgoing_.data();
    ToWire(Bytes(call.output), wire, count);
  }
  const size_t chunk = kChunkBytes / element;
  const size_t chunks = ChunkCount(count, chunk);
  const size_t room = (chunk / static_cast<size_t>(size_) + kSliceElements) * element;
  incoming_.resize(room * static_cast<size_t>(size_));
  double partial = 0;
  // Round c moves the contributions to chunk c and the results of chunk c - 1.
  for (size_t c = 0; c <= chunks; ++c) {
    std::vector<Transfer> transfers;
    const Slice now = ChunkOf(count, chunk, c);
    const Slice before = c == 0 ? Slice() : ChunkOf(count, chunk, c - 1);
    const auto place = [&](const Slice& part, int rank) {
      const Slice slice = SliceOf(part.count, size_, rank);
      return std::pair(wire + (part.start + slice.start) * element, slice.count * element);
    };
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == self_) {
        continue;
      }
      const auto [theirs, theirs_bytes] = place(now, peer);
      const auto [mine, mine_bytes] = place(now, self_);
      const auto [result, result_bytes] = place(before, self_);
      const auto [target, target_bytes] = place(before, peer);
      transfers.push_back(SendTo(peer, result, result_bytes));
      transfers.push_back(SendTo(peer, theirs, theirs_bytes));
      transfers.push_back(ReceiveFrom(peer, target, target_bytes));
      transfers.push_back(
          ReceiveFrom(peer, incoming_.data() + static_cast<size_t>(peer) * room, mine_bytes));
    }
    DT_RETURN_IF_ERROR(transport_->Move(transfers, context));
    if (c < chunks) {
      const auto [mine, mine_bytes] = place(now, self_);
      ReduceIncoming(call, mine, mine, mine_bytes / element, room,
                     call.sum_of_squares != nullptr ? &partial : nullptr);
    }
  }
  if (convert) {
    FromWire(wire, Bytes(call.output), count);
  }
  return call.sum_of_squares != nullptr ? SumPartials(call, partial, context) : absl::OkStatus();
}

absl::Status MessageCollectives::ReduceScatter(const Call& call, const WaitContext& context) {
  const bool convert = call.header.wire_bf16 && call.header.dtype == DType::kFloat32;
  const size_t count = call.output.count();
  const size_t element = convert ? sizeof(BFloat16) : DTypeBytes(call.header.dtype);
  const char* wire = Bytes(call.input);
  if (convert) {
    outgoing_.resize(count * static_cast<size_t>(size_) * element);
    ToWire(Bytes(call.input), outgoing_.data(), count * static_cast<size_t>(size_));
    wire = outgoing_.data();
  }
  const size_t chunk = kChunkBytes / element / static_cast<size_t>(size_);
  const size_t room = chunk * element;
  incoming_.resize(room * static_cast<size_t>(size_));
  double partial = 0;
  for (size_t c = 0; c < ChunkCount(count, chunk); ++c) {
    const Slice slice = ChunkOf(count, chunk, c);
    const auto source = [&](int rank) {
      return wire + (static_cast<size_t>(rank) * count + slice.start) * element;
    };
    std::vector<Transfer> transfers;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != self_) {
        transfers.push_back(SendTo(peer, source(peer), slice.count * element));
        transfers.push_back(ReceiveFrom(peer, incoming_.data() + static_cast<size_t>(peer) * room,
                                        slice.count * element));
      }
    }
    DT_RETURN_IF_ERROR(transport_->Move(transfers, context));
    // As bf16 the result lands in this rank's own room first.
    char* const own = incoming_.data() + static_cast<size_t>(self_) * room;
    char* const output = Bytes(call.output) + slice.start * DTypeBytes(call.header.dtype);
    ReduceIncoming(call, source(self_), convert ? own : output, slice.count, room,
                   call.sum_of_squares != nullptr ? &partial : nullptr);
    if (convert) {
      FromWire(own, output, slice.count);
    }
  }
  return call.sum_of_squares != nullptr ? SumPartials(call, partial, context) : absl::OkStatus();
}

absl::Status MessageCollectives::AllGather(const Call& call, const WaitContext& context) {
  const size_t part = call.input.bytes;
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    char* const place = Bytes(call.output) + static_cast<size_t>(peer) * part;
    if (peer == self_) {
      Copy(place, call.input.data, part);
    } else {
      transfers.push_back(SendTo(peer, call.input.data, part));
      transfers.push_back(ReceiveFrom(peer, place, part));
    }
  }
  return transport_->Move(transfers, context);
}

absl::Status MessageCollectives::Broadcast(const Call& call, const WaitContext& context) {
  // The root sends each rank its slice, and all pass their slices on: the root's link carries the
  // buffer once instead of size - 1 times.
  const int root = call.header.root;
  const auto place = [&](int rank) {
    const Slice slice = SliceOf(call.output.bytes, size_, rank);
    return std::pair(Bytes(call.output) + slice.start, slice.count);
  };
  std::vector<Transfer> scatter;
  std::vector<Transfer> gather;
  const auto [mine, mine_bytes] = place(self_);
  if (self_ != root) {
    scatter.push_back(ReceiveFrom(root, mine, mine_bytes));
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == self_) {
      continue;
    }
    const auto [theirs, theirs_bytes] = place(peer);
    if (self_ == root) {
      scatter.push_back(SendTo(peer, theirs, theirs_bytes));
    }
    if (peer != root) {
      gather.push_back(SendTo(peer, mine, mine_bytes));
    }
    if (self_ != root) {
      gather.push_back(ReceiveFrom(peer, theirs, theirs_bytes));
    }
  }
  DT_RETURN_IF_ERROR(transport_->Move(scatter, context));
  return transport_->Move(gather, context);
}

absl::Status MessageCollectives::AllToAll(const Call& call, const WaitContext& context) {
  const size_t part = call.input.bytes / static_cast<size_t>(size_);
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size_; ++peer) {
    const size_t at = static_cast<size_t>(peer) * part;
    if (peer == self_) {
      Copy(Bytes(call.output) + at, Bytes(call.input) + at, part);
    } else {
      transfers.push_back(SendTo(peer, Bytes(call.input) + at, part));
      transfers.push_back(ReceiveFrom(peer, Bytes(call.output) + at, part));
    }
  }
  return transport_->Move(transfers, context);
}

absl::StatusOr<std::unique_ptr<Registration>> MessageCollectives::Register(
    const Call& call, std::shared_ptr<SymmetricBuffer> /*buffer*/, const WaitContext& context) {
  DT_RETURN_IF_ERROR(CompareWithAll(call.header, context));
  return std::make_unique<Registration>();
}

}  // namespace dtrain::comm
