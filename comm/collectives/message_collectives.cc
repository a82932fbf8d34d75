#include "comm/collectives/message_collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/numeric/float16.h"
#include "base/status.h"
#include "comm/collectives/algorithm.h"
#include "comm/collectives/run_schedule.h"
#include "comm/transport/control_lines.h"

namespace dtrain::comm {
namespace {

constexpr size_t kWireBytes = 2;  // Bytes of an element of either 16-bit type.

DType WireDType(Wire wire) { return wire == Wire::kBFloat16 ? DType::kBFloat16 : DType::kFloat16; }

void ToWire(Wire wire, const char* from, char* to, size_t count) {
  const auto* const in = reinterpret_cast<const float*>(from);
  if (wire == Wire::kBFloat16) {
    std::transform(in, in + count, reinterpret_cast<BFloat16*>(to), ToBFloat16);
  } else {
    std::transform(in, in + count, reinterpret_cast<Float16*>(to), ToFloat16);
  }
}

template <typename Half>
void Widen(const char* from, char* to, size_t count) {
  const auto* const in = reinterpret_cast<const Half*>(from);
  std::transform(in, in + count, reinterpret_cast<float*>(to),
                 [](Half value) { return ToFloat(value); });
}

void FromWire(Wire wire, const char* from, char* to, size_t count) {
  wire == Wire::kBFloat16 ? Widen<BFloat16>(from, to, count) : Widen<Float16>(from, to, count);
}

// Keeps a buffer alive, and reachable by the transport's device if it could be registered.
class HeldBuffer final : public Registration {
 public:
  HeldBuffer(std::shared_ptr<SymmetricBuffer> buffer, std::unique_ptr<RegisteredMemory> reached)
      : buffer_(std::move(buffer)), reached_(std::move(reached)) {}
  bool Holds(const Buffer& buffer) const {
    const char* const begin = static_cast<const char*>(buffer_->data());
    const char* const data = static_cast<const char*>(buffer.data);
    return data >= begin && data + buffer.bytes <= begin + buffer_->bytes();
  }

 private:
  const std::shared_ptr<SymmetricBuffer> buffer_;
  const std::unique_ptr<RegisteredMemory> reached_;  // Destroyed before the buffer.
};

}  // namespace

MessageCollectives::MessageCollectives(std::unique_ptr<Transport> transport, MessageOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      self_(transport_->rank()),
      size_(transport_->size()),
      messages_(*transport_) {}

int MessageCollectives::GroupRank(int rank) const {
  return options_.group_ranks.empty() ? rank : options_.group_ranks.at(static_cast<size_t>(rank));
}

void MessageCollectives::NoteCall(const CallHeader& header) {
  if (ControlLines* const control = transport_->control(); control != nullptr) {
    control->NoteCall(header);
  }
}

absl::Status MessageCollectives::NameTheMissing(const absl::Status& timed_out,
                                                absl::Span<const int> awaited,
                                                const WaitContext& context) {
  ControlLines* const control = transport_->control();
  return control == nullptr ? timed_out : control->NameTheMissing(timed_out, awaited, context);
}

absl::Status MessageCollectives::PollPeers(absl::FunctionRef<std::vector<int>()> awaited) {
  ControlLines* const control = transport_->control();
  return control == nullptr ? absl::OkStatus() : control->Read(awaited);
}

void MessageCollectives::List(const CallHeader& header, Meeting& meeting) const {
  meeting.mine = header;
  meeting.theirs.resize(static_cast<size_t>(size_));
  meeting.transfers.clear();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      CallHeader& theirs = meeting.theirs[static_cast<size_t>(peer)];
      meeting.transfers.push_back(SendTo(peer, &meeting.mine, sizeof(CallHeader)));
      meeting.transfers.push_back(ReceiveFrom(peer, &theirs, sizeof(CallHeader)));
    }
  }
}

absl::Status MessageCollectives::Begin(const Call& call, const WaitContext& /*context*/) {
  if (!std::exchange(meeting_.ahead, false)) {
    List(call.header, meeting_);
  }
  DT_CHECK_EQ(meeting_.mine.sequence, call.header.sequence) << " another call was shown to peers";
  meeting_.begun = true;
  return absl::OkStatus();
}

absl::Status MessageCollectives::Compare(absl::Span<const Transfer> ahead,
                                         const WaitContext& context) {
  if (!std::exchange(meeting_.begun, false)) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(transport_->Move(
      meeting_.transfers, context, [] {}, ahead));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      DT_RETURN_IF_ERROR(CompareCalls(GroupRank(self_), meeting_.mine, GroupRank(peer),
                                      meeting_.theirs[static_cast<size_t>(peer)]));
    }
  }
  return absl::OkStatus();
}

absl::Span<const Transfer> MessageCollectives::Following() {
  const std::optional<CallHeader> next = following_ == nullptr ? std::nullopt : following_();
  if (!next.has_value()) {
    return {};
  }
  List(*next, meeting_);
  meeting_.ahead = true;
  return meeting_.transfers;
}

absl::Span<const Transfer> MessageCollectives::ListPartials() {
  partials_.theirs.resize(static_cast<size_t>(size_));
  partials_.transfers.clear();
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != self_) {
      double& theirs = partials_.theirs[static_cast<size_t>(peer)];
      partials_.transfers.push_back(SendTo(peer, &partials_.mine, sizeof(double)));
      partials_.transfers.push_back(ReceiveFrom(peer, &theirs, sizeof(double)));
    }
  }
  return partials_.transfers;
}

absl::Status MessageCollectives::SumPartials(const Call& call, const WaitContext& context) {
  const absl::Span<const Transfer> transfers = ListPartials();
  DT_RETURN_IF_ERROR(transport_->Move(
      transfers, context, [] {}, Following()));
  partials_.theirs[static_cast<size_t>(self_)] = partials_.mine;
  *call.sum_of_squares = 0;
  for (const double value : partials_.theirs) {
    *call.sum_of_squares += value;
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::RunOn(const Call& call, const char* input, char* output,
                                       DType dtype, const WaitContext& context) {
  const CallHeader& header = call.header;
  const bool whole = header.kind == CallKind::kAllReduce || header.kind == CallKind::kBroadcast;
  const size_t parts = whole ? 1 : static_cast<size_t>(size_);
  // The header has the largest buffer's bytes, in the caller's type.
  const size_t unit = dtype == DType::kUInt8 ? 1 : DTypeBytes(header.dtype);
  const Choice choice = ChooseAlgorithm(header, size_, options_.deterministic, options_.algorithm,
                                        options_.link_cost);
  const Schedule schedule({.kind = header.kind,
                           .algorithm = choice.algorithm,
                           .rank = self_,
                           .size = size_,
                           .root = header.root,
                           .count = header.bytes / unit / parts,
                           .element_bytes = DTypeBytes(dtype),
                           .pairwise = choice.pairwise,
                           .slice_bytes = options_.slice_bytes});
  Grow(scratch_, schedule.scratch_elements() * DTypeBytes(dtype));
  partials_.mine = 0;
  // With doubling every rank completes all elements, so there are no partial sums of squares to
  // add.
  const bool sums_partials =
      call.sum_of_squares != nullptr && choice.algorithm != Algorithm::kDoubling;
  DT_RETURN_IF_ERROR(RunSchedule(
      schedule,
      {.input = input,
       .output = output,
       .dtype = dtype,
       .op = header.op,
       .average_over = options_.average_over,
       .sum_of_squares = call.sum_of_squares != nullptr ? &partials_.mine : nullptr},
      scratch_.bytes, *transport_, context,
      {.before = [&](absl::Span<const Transfer> first) { return Compare(first, context); },
       .behind =
           [&](bool summed) {
             return !sums_partials ? Following()
                    : summed       ? ListPartials()
                                   : absl::Span<const Transfer>();
           }}));
  if (sums_partials) {
    return SumPartials(call, context);
  }
  if (call.sum_of_squares != nullptr) {
    *call.sum_of_squares = partials_.mine;
  }
  return absl::OkStatus();
}

absl::Status MessageCollectives::AllReduce(const Call& call, const WaitContext& context) {
  char* const data = BytesOf(call.output);
  const Wire wire = call.header.wire;
  if (wire == Wire::kSameAsBuffer) {
    return RunOn(call, data, data, call.header.dtype, context);
  }
  const size_t count = call.output.count();
  Grow(wire_, count * kWireBytes);
  ToWire(wire, data, wire_.bytes.data(), count);
  DT_RETURN_IF_ERROR(RunOn(call, wire_.bytes.data(), wire_.bytes.data(), WireDType(wire), context));
  FromWire(wire, wire_.bytes.data(), data, count);
  return absl::OkStatus();
}

absl::Status MessageCollectives::ReduceScatter(const Call& call, const WaitContext& context) {
  const char* const input = BytesOf(call.input);
  char* const output = BytesOf(call.output);
  const Wire wire = call.header.wire;
  if (wire == Wire::kSameAsBuffer) {
    return RunOn(call, input, output, call.header.dtype, context);
  }
  // The room for the result follows the 16-bit input.
  const size_t count = call.input.count();
  Grow(wire_, (count + call.output.count()) * kWireBytes);
  ToWire(wire, input, wire_.bytes.data(), count);
  char* const result = wire_.bytes.data() + count * kWireBytes;
  DT_RETURN_IF_ERROR(RunOn(call, wire_.bytes.data(), result, WireDType(wire), context));
  FromWire(wire, result, output, call.output.count());
  return absl::OkStatus();
}

absl::Status MessageCollectives::MoveOnly(const Call& call, const WaitContext& context) {
  return RunOn(call, BytesOf(call.input), BytesOf(call.output), DType::kUInt8, context);
}

void MessageCollectives::Grow(Room& room, size_t bytes) {
  if (room.bytes.size() >= bytes) {
    return;
  }
  room.reached.reset();  // Before the memory is replaced.
  room.bytes.resize(bytes);
  auto reached = transport_->Register(room.bytes.data(), room.bytes.size());
  room.reached = reached.ok() ? *std::move(reached) : nullptr;  // Null: messages are copied.
}

absl::StatusOr<std::unique_ptr<Registration>> MessageCollectives::Hold(
    std::shared_ptr<SymmetricBuffer> buffer) {
  auto reached = transport_->Register(buffer->data(), buffer->bytes());
  if (absl::IsResourceExhausted(reached.status())) {
    // It is used all the same, but copied.
    if (!std::exchange(warned_, true)) {
      DT_LOG(Warning) << "messages of \"" << buffer->name()
                      << "\" are copied: " << reached.status().message();
    }
    return std::make_unique<HeldBuffer>(std::move(buffer), nullptr);
  }
  DT_RETURN_IF_ERROR(reached.status());
  return std::make_unique<HeldBuffer>(std::move(buffer), *std::move(reached));
}

absl::StatusOr<std::unique_ptr<Registration>> MessageCollectives::Register(
    const Call& call, std::shared_ptr<SymmetricBuffer> buffer, const WaitContext& context) {
  DT_RETURN_IF_ERROR(Run(call, context));
  return Hold(std::move(buffer));
}

bool MessageCollectives::Locate(const Registration& registration, const Buffer& buffer,
                                CallHeader& /*header*/) const {
  const auto* const held = dynamic_cast<const HeldBuffer*>(&registration);
  return held != nullptr && held->Holds(buffer);
}

}  // namespace dtrain::comm
