#include "comm/collectives/shm_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "comm/collectives/algorithm.h"
#include "comm/collectives/reduce.h"

namespace dtrain::comm {
namespace {

class ShmRegistration final : public Registration {
 public:
  ShmRegistration(uint32_t id, std::shared_ptr<SymmetricBuffer> buffer,
                  std::vector<SharedMapping> peers)
      : id_(id), buffer_(std::move(buffer)), peers_(std::move(peers)) {}
  uint32_t id() const { return id_; }
  const SymmetricBuffer& buffer() const { return *buffer_; }
  char* base(int index) const {
    char* const mapped = peers_[static_cast<size_t>(index)].data();
    return mapped != nullptr ? mapped : static_cast<char*>(buffer_->data());
  }

 private:
  const uint32_t id_;
  const std::shared_ptr<SymmetricBuffer> buffer_;
  const std::vector<SharedMapping> peers_;  // Empty for this rank itself.
};

std::vector<StreamPeer> PeersOf(const UnixMesh& mesh) {
  std::vector<StreamPeer> peers;
  for (int i = 0; i < mesh.size(); ++i) {
    StreamPeer& peer = peers.emplace_back();
    peer.name = mesh.PeerName(i);
    if (i != mesh.self()) {
      peer.data.push_back(std::make_unique<PlainChannel>(mesh.fd(i)));
    }
  }
  return peers;
}

void Copy(void* to, const void* from, size_t bytes) {
  if (bytes != 0 && to != from) {
    std::memmove(to, from, bytes);
  }
}

// Parts of `bytes` each.
auto EvenParts(size_t bytes) {
  return [bytes](int index) { return Slice{static_cast<size_t>(index) * bytes, bytes}; };
}

// The bytes of each member's slice of `buffer`, which is divided among the first `owners`.
auto SlicesOf(const Buffer& buffer, int owners) {
  return [count = buffer.count(), element = DTypeBytes(buffer.dtype), owners](int index) {
    const Slice slice = index < owners ? SliceOf(count, owners, index) : Slice();
    return Slice{slice.start * element, slice.count * element};
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmCollectives>> ShmCollectives::Create(UnixMesh mesh,
                                                                       const std::string& name,
                                                                       const WaitContext& context) {
  auto owned = std::make_unique<UnixMesh>(std::move(mesh));
  DT_ASSIGN_OR_RETURN(auto segment, ShmSegment::Create(*owned, name, context));
  return std::unique_ptr<ShmCollectives>(new ShmCollectives(std::move(owned), std::move(segment)));
}

ShmCollectives::ShmCollectives(std::unique_ptr<UnixMesh> mesh, std::unique_ptr<ShmSegment> segment)
    : mesh_(std::move(mesh)),
      segment_(std::move(segment)),
      self_(mesh_->self()),
      size_(mesh_->size()),
      stream_(self_, PeersOf(*mesh_),
              [this](int peer) {
                absl::Status broken = segment_->BrokenStatus();
                return broken.ok() ? mesh_->CheckAlive(peer) : broken;
              }),
      messages_(stream_) {}

absl::Status ShmCollectives::Begin(const Call& call, const WaitContext& /*context*/) {
  segment_->Publish(call.header);
  return absl::OkStatus();
}

absl::Status ShmCollectives::Meet(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(segment_->Sync(context));
  return CheckHeaders(call);
}

absl::Status ShmCollectives::CheckHeaders(const Call& call) const {
  for (int index = 0; index < size_; ++index) {
    if (index != self_) {
      DT_RETURN_IF_ERROR(CompareCalls(mesh_->rank(self_), call.header, mesh_->rank(index),
                                      segment_->header(index, call.header.sequence)));
    }
  }
  return absl::OkStatus();
}

std::vector<char*> ShmCollectives::Sources(const Call& call) const {
  const auto* registration = static_cast<const ShmRegistration*>(call.registration.get());
  std::vector<char*> sources;
  for (int index = 0; index < size_; ++index) {
    const CallHeader& header = segment_->header(index, call.header.sequence);
    if (registration == nullptr || header.registration != registration->id() ||
        header.offset > registration->buffer().bytes()) {
      return {};
    }
    sources.push_back(registration->base(index) + header.offset);
  }
  return sources;
}

void ShmCollectives::ReduceFor(const Call& call, absl::Span<const void* const> inputs,
                               absl::Span<void* const> outputs, size_t count, double& squares) {
  const DType dtype = call.header.dtype;
  Reduce({.inputs = inputs,
          .outputs = outputs,
          .count = count,
          .dtype = dtype,
          .op = call.header.op,
          .wire = call.header.wire,
          .sum_of_squares = call.sum_of_squares != nullptr ? &squares : nullptr});
}

void ShmCollectives::SumPartials(const Call& call) {
  *call.sum_of_squares = 0;
  for (int index = 0; index < size_; ++index) {
    *call.sum_of_squares += segment_->partial(index, call.header.sequence);
  }
}

absl::Status ShmCollectives::AllReduce(const Call& call, const WaitContext& context) {
  if (call.header.bytes <= kSmallBytes) {
    return AllReduceByAll(call, /*first_synced=*/false, context);
  }
  DT_RETURN_IF_ERROR(Meet(call, context));
  if (const std::vector<char*> sources = Sources(call); !sources.empty()) {
    return AllReduceInPlace(call, sources, context);
  }
  return size_ == 2 || call.header.bytes <= kStagedByAllBytes
             ? AllReduceByAll(call, /*first_synced=*/true, context)
             : AllReduceBySlices(call, context);
}

absl::Status ShmCollectives::AllReduceInPlace(const Call& call, const std::vector<char*>& sources,
                                              const WaitContext& context) {
  const size_t element = DTypeBytes(call.header.dtype);
  const Slice slice = SliceOf(call.output.count(), size_, self_);
  std::vector<void*> parts;
  parts.reserve(sources.size());
  for (char* source : sources) {
    parts.push_back(source + slice.start * element);
  }
  double& partial = segment_->partial(self_, call.header.sequence);
  partial = 0;
  ReduceFor(call, parts, parts, slice.count, partial);
  DT_RETURN_IF_ERROR(segment_->Sync(context));
  if (call.sum_of_squares != nullptr) {
    SumPartials(call);
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::AllReduceByAll(const Call& call, bool first_synced,
                                            const WaitContext& context) {
  const size_t element = DTypeBytes(call.header.dtype);
  const size_t chunk = kStageBytes / element;
  const size_t chunks = std::max<size_t>(1, ChunkCount(call.output.count(), chunk));
  double squares = 0;
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  for (size_t c = 0; c < chunks; ++c) {
    const Slice slice = ChunkOf(call.output.count(), chunk, c);
    char* const mine = BytesOf(call.output) + slice.start * element;
    const uint64_t turn = turn_++;
    Copy(segment_->stage(self_, turn), mine, slice.count * element);
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    if (c == 0 && !first_synced) {
      DT_RETURN_IF_ERROR(CheckHeaders(call));
    }
    for (int index = 0; index < size_; ++index) {
      inputs[static_cast<size_t>(index)] = index == self_ ? mine : segment_->stage(index, turn);
    }
    void* const output = mine;
    ReduceFor(call, inputs, absl::MakeConstSpan(&output, 1), slice.count, squares);
  }
  if (call.sum_of_squares != nullptr) {
    *call.sum_of_squares = squares;
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::AllReduceBySlices(const Call& call, const WaitContext& context) {
  const size_t element = DTypeBytes(call.header.dtype);
  const size_t chunk = kStageBytes / element;
  double& partial = segment_->partial(self_, call.header.sequence);
  partial = 0;
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  for (size_t c = 0; c < ChunkCount(call.output.count(), chunk); ++c) {
    const Slice slice = ChunkOf(call.output.count(), chunk, c);
    char* const mine = BytesOf(call.output) + slice.start * element;
    const uint64_t turn = turn_++;
    Copy(segment_->stage(self_, turn), mine, slice.count * element);
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    // Slice s of all stages is read by rank s alone, so its result may replace it there.
    const Slice own = SliceOf(slice.count, size_, self_);
    for (int index = 0; index < size_; ++index) {
      inputs[static_cast<size_t>(index)] = segment_->stage(index, turn) + own.start * element;
    }
    void* const outputs[2] = {segment_->stage(self_, turn) + own.start * element,
                              mine + own.start * element};
    ReduceFor(call, inputs, outputs, own.count, partial);
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (int index = 0; index < size_; ++index) {
      const Slice theirs = SliceOf(slice.count, size_, index);
      if (index != self_) {
        Copy(mine + theirs.start * element, segment_->stage(index, turn) + theirs.start * element,
             theirs.count * element);
      }
    }
  }
  if (call.sum_of_squares != nullptr) {
    SumPartials(call);  // The last sync made them visible.
  }
  return absl::OkStatus();
}

size_t ShmCollectives::LongestPart(PartOf part_of) const {
  size_t longest = 0;
  for (int index = 0; index < size_; ++index) {
    longest = std::max(longest, part_of(index).count);
  }
  return longest;
}

void ShmCollectives::StageParts(const Call& call, PartOf part_of, size_t start, size_t room) {
  char* const stage = segment_->stage(self_, turn_);
  for (int index = 0; index < size_; ++index) {
    const Slice part = part_of(index);
    const Slice piece = ChunkOf(part.count, room, start / room);
    Copy(stage + static_cast<size_t>(index) * room, BytesOf(call.input) + part.start + piece.start,
         piece.count);
  }
}

absl::Status ShmCollectives::ReduceParts(const Call& call, const std::vector<char*>& sources,
                                         PartOf part_of, char* output, double& squares,
                                         const WaitContext& context) {
  const size_t element = DTypeBytes(call.header.dtype);
  const Slice own = part_of(self_);
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  // Part r of everybody's input is read by rank r alone, so an output inside the input is safe.
  const auto reduce = [&](char* destination, size_t bytes, auto input_of) {
    for (int index = 0; index < size_; ++index) {
      inputs[static_cast<size_t>(index)] = input_of(index);
    }
    void* const place = destination;
    ReduceFor(call, inputs, absl::MakeConstSpan(&place, 1), bytes / element, squares);
  };
  if (!sources.empty()) {
    reduce(output, own.count,
           [&](int index) { return sources[static_cast<size_t>(index)] + own.start; });
    return absl::OkStatus();
  }
  const size_t room = kStageBytes / static_cast<size_t>(size_) / 64 * 64;
  const size_t longest = LongestPart(part_of);
  for (size_t start = 0; start < longest; start += room) {
    StageParts(call, part_of, start, room);
    const uint64_t turn = turn_++;
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    const Slice piece = ChunkOf(own.count, room, start / room);
    reduce(output + piece.start, piece.count, [&](int index) {
      return segment_->stage(index, turn) + static_cast<size_t>(self_) * room;
    });
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::ReduceScatter(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Meet(call, context));
  const std::vector<char*> sources = Sources(call);
  const size_t bytes = call.output.bytes;
  const auto part_of = EvenParts(bytes);
  double& partial = segment_->partial(self_, call.header.sequence);
  partial = 0;
  DT_RETURN_IF_ERROR(ReduceParts(call, sources, part_of, BytesOf(call.output), partial, context));
  if (!sources.empty() || call.sum_of_squares != nullptr) {
    DT_RETURN_IF_ERROR(segment_->Sync(context));
  }
  if (call.sum_of_squares != nullptr) {
    SumPartials(call);
  }
  return absl::OkStatus();
}

Call ShmCollectives::InsideNode(const Call& call) {
  Call inner = call;
  inner.sum_of_squares = nullptr;
  // Values in memory stay fp32; the wire's type applies between nodes.
  inner.header.wire = Wire::kSameAsBuffer;
  if (call.header.op == ReduceOp::kAverage) {
    inner.header.op = ReduceOp::kSum;
  }
  return inner;
}

absl::StatusOr<Buffer> ShmCollectives::ReduceSlice(const Call& call, int owners,
                                                   const WaitContext& context) {
  if (size_ == 1) {
    return call.output;
  }
  const Call inner = InsideNode(call);
  const auto part_of = SlicesOf(call.output, owners);
  const Slice own = part_of(self_);
  double unused = 0;
  Buffer slice = call.output;
  slice.data = BytesOf(call.output) + own.start;
  slice.bytes = own.count;
  DT_RETURN_IF_ERROR(ReduceParts(inner, Sources(call), part_of, BytesOf(slice), unused, context));
  return slice;
}

absl::Status ShmCollectives::GatherSlices(const Call& call, int owners, double squares,
                                          const WaitContext& context) {
  if (size_ == 1) {
    if (call.sum_of_squares != nullptr) {
      *call.sum_of_squares = squares;
    }
    return absl::OkStatus();
  }
  const std::vector<char*> sources = Sources(call);
  const auto part_of = SlicesOf(call.output, owners);
  segment_->partial(self_, call.header.sequence) = squares;
  DT_RETURN_IF_ERROR(segment_->Sync(context));  // All ranks have received their slices.
  DT_RETURN_IF_ERROR(GatherParts(
      call, !sources.empty(), part_of, BytesOf(call.output) + part_of(self_).start,
      [&](int index) { return sources[static_cast<size_t>(index)] + part_of(index).start; },
      context));
  if (call.sum_of_squares != nullptr) {
    SumPartials(call);
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::GatherParts(const Call& call, bool registered, PartOf part_of,
                                         const char* own,
                                         absl::FunctionRef<const char*(int index)> from,
                                         const WaitContext& context) {
  char* const output = BytesOf(call.output);
  if (registered) {
    for (int step = 1; step < size_; ++step) {  // Each starts elsewhere, to spread the reads.
      const int index = (self_ + step) % size_;
      const Slice part = part_of(index);
      Copy(output + part.start, from(index), part.count);
    }
    return segment_->Sync(context);
  }
  const size_t longest = LongestPart(part_of);
  for (size_t start = 0; start < longest; start += kStageBytes) {
    const uint64_t turn = turn_++;
    const auto piece_of = [&](int index) {
      return ChunkOf(part_of(index).count, kStageBytes, start / kStageBytes);
    };
    Copy(segment_->stage(self_, turn), own + piece_of(self_).start, piece_of(self_).count);
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (int index = 0; index < size_; ++index) {
      if (index != self_) {
        const Slice piece = piece_of(index);
        Copy(output + part_of(index).start + piece.start, segment_->stage(index, turn),
             piece.count);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::AllGather(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Meet(call, context));
  const std::vector<char*> sources = Sources(call);
  const size_t bytes = call.input.bytes;
  const auto part_of = EvenParts(bytes);
  Copy(BytesOf(call.output) + part_of(self_).start, call.input.data, bytes);
  return GatherParts(
      call, !sources.empty(), part_of, BytesOf(call.input),
      [&](int index) { return sources[static_cast<size_t>(index)]; }, context);
}

absl::Status ShmCollectives::Broadcast(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Meet(call, context));
  const int root = call.header.root;
  const std::vector<char*> sources = Sources(call);
  if (!sources.empty()) {
    if (self_ != root) {
      Copy(call.output.data, sources[static_cast<size_t>(root)], call.output.bytes);
    }
    return segment_->Sync(context);
  }
  for (size_t start = 0; start < call.output.bytes; start += kStageBytes) {
    const size_t bytes = std::min(kStageBytes, call.output.bytes - start);
    const uint64_t turn = turn_++;
    char* const stage = segment_->stage(root, turn);
    if (self_ == root) {
      Copy(stage, BytesOf(call.output) + start, bytes);
    }
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    if (self_ != root) {
      Copy(BytesOf(call.output) + start, stage, bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status ShmCollectives::AllToAll(const Call& call, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Meet(call, context));
  const std::vector<char*> sources = Sources(call);
  const size_t part = call.input.bytes / static_cast<size_t>(size_);
  const auto own = static_cast<size_t>(self_);
  const auto part_of = EvenParts(part);
  const auto place = [&](int index) {
    return BytesOf(call.output) + static_cast<size_t>(index) * part;
  };
  if (!sources.empty()) {
    for (int step = 0; step < size_; ++step) {
      const int index = (self_ + step) % size_;
      Copy(place(index), sources[static_cast<size_t>(index)] + own * part, part);
    }
    return segment_->Sync(context);
  }
  const size_t room = kStageBytes / static_cast<size_t>(size_) / 64 * 64;
  for (size_t start = 0; start < part; start += room) {
    const size_t bytes = std::min(room, part - start);
    StageParts(call, part_of, start, room);
    const uint64_t turn = turn_++;
    DT_RETURN_IF_ERROR(segment_->Sync(context));
    for (int index = 0; index < size_; ++index) {
      Copy(place(index) + start, segment_->stage(index, turn) + own * room, bytes);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Registration>> ShmCollectives::Register(
    const Call& call, std::shared_ptr<SymmetricBuffer> buffer, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Run(call, context));  // All register the same size and name.
  for (int index = 0; index < size_; ++index) {
    if (index != self_) {
      DT_RETURN_IF_ERROR(mesh_->SendFd(index, buffer->fd(), context));
    }
  }
  std::vector<SharedMapping> peers(static_cast<size_t>(size_));
  const size_t mapped = std::max<size_t>(buffer->bytes(), 1);
  for (int index = 0; index < size_; ++index) {
    if (index != self_) {
      DT_ASSIGN_OR_RETURN(const UniqueFd fd, mesh_->ReceiveFd(index, context));
      DT_RETURN_IF_ERROR(CheckSegment(fd.get(), mapped, mesh_->PeerName(index)));
      DT_ASSIGN_OR_RETURN(peers[static_cast<size_t>(index)],
                          SharedMapping::Map(fd.get(), mapped, buffer->name()));
    }
  }
  return std::unique_ptr<Registration>(
      new ShmRegistration(++registrations_, std::move(buffer), std::move(peers)));
}

bool ShmCollectives::Locate(const Registration& registration, const Buffer& buffer,
                            CallHeader& header) const {
  const auto& mine = static_cast<const ShmRegistration&>(registration);
  const auto* const base = static_cast<const char*>(mine.buffer().data());
  const auto* const data = static_cast<const char*>(buffer.data);
  if (data < base || data + buffer.bytes > base + mine.buffer().bytes()) {
    return false;
  }
  header.registration = mine.id();
  header.offset = static_cast<uint64_t>(data - base);
  return true;
}

}  // namespace dtrain::comm
