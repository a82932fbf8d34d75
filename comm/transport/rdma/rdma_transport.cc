#include "comm/transport/rdma/rdma_transport.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/transport/rdma/request_id.h"
#include "comm/transport/rdma/wc_status.h"

namespace dtrain::comm {

RdmaTransport::RdmaTransport(Parts parts)
    : parts_(std::move(parts)),
      states_(parts_.peers.size()),
      quiet_since_nanos_(Clock::Real().MonotonicNanos()) {}

void RdmaTransport::Append(absl::Span<const Transfer> transfers) {
  for (const Transfer& transfer : transfers) {
    DT_CHECK(transfer.peer != rank());
    State& state = states_.at(static_cast<size_t>(transfer.peer));
    if (transfer.bytes != 0) {
      const bool sending = transfer.direction == Transfer::Direction::kSend;
      (sending ? state.sends : state.receives).queue.push_back(transfer);
    }
  }
}

// Sends are done when the peer's device has them: the memory may be written again, and a rank that
// leaves now takes nothing away from its peers.
bool RdmaTransport::Busy(size_t peer) const {
  const State& state = states_[peer];
  return !state.sends.done_with_wanted() || !state.receives.done_with_wanted() ||
         state.completed < state.leaves_at;
}

absl::Status RdmaTransport::Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                                 absl::FunctionRef<void()> meanwhile,
                                 absl::Span<const Transfer> ahead) {
  // Headers and partial sums are sent ahead too, but use no region. So this happens at least once
  // for each call, however many are queued, and before the call uses memory that may have been
  // remapped.
  if (!LongIsAhead()) {
    parts_.memory->NextMove();
  }
  if (!std::exchange(ahead_, false)) {
    Append(transfers);
  }
  for (State& state : states_) {
    state.sends.Begin();
    state.receives.Begin();
  }
  for (bool first = true;; first = false) {
    DT_ASSIGN_OR_RETURN(bool any, Drain());
    bool done = true;
    for (size_t peer = 0; peer < states_.size(); ++peer) {
      const State& state = states_[peer];
      DT_ASSIGN_OR_RETURN(const bool moved, Progress(peer));
      any = any || moved;
      if (!Busy(peer)) {
        continue;
      }
      done = false;
      // Messages that the peer sent before it ended or was cut off were drained above, and count.
      if (!state.broken.ok() || (state.ended && !any)) {
        return Explain(peer);
      }
    }
    if (first) {
      meanwhile();
      // Otherwise completions could not tell whether this call's data have left.
      if (CompletesInOrder()) {
        Append(ahead);
        ahead_ = !ahead.empty();
      }
    }
    if (done) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(context.interrupted());
    if (!any) {
      DT_RETURN_IF_ERROR(WaitForAny(context));
    }
  }
}

bool RdmaTransport::LongIsAhead() const {
  const auto has_long = [this](const Lane& lane) {
    return std::any_of(lane.queue.begin() + static_cast<ptrdiff_t>(lane.wanted), lane.queue.end(),
                       [this](const Transfer& transfer) { return IsLong(transfer); });
  };
  return std::any_of(states_.begin(), states_.end(), [&](const State& state) {
    return has_long(state.sends) || has_long(state.receives);
  });
}

bool RdmaTransport::CompletesInOrder() const {
  return std::all_of(parts_.peers.begin(), parts_.peers.end(),
                     [](const RdmaPeer& peer) { return peer.pairs.size() <= 1; });
}

absl::StatusOr<bool> RdmaTransport::Progress(size_t peer) {
  State& state = states_[peer];
  RdmaPeer& rings = parts_.peers[peer];
  const bool reachable = state.broken.ok() && !state.ended;
  if (reachable) {
    DT_RETURN_IF_ERROR(MakeOffers(peer));
  }
  DT_ASSIGN_OR_RETURN(const bool sent, ProgressSends(peer));
  DT_ASSIGN_OR_RETURN(const bool received, ProgressReceives(peer));
  if (reachable && rings.receive.OwesCredit() && state.credits_under_way < kCreditsUnderWayMax) {
    DT_RETURN_IF_ERROR(GiveCredit(peer));
  }
  return sent || received;
}

absl::StatusOr<bool> RdmaTransport::ProgressSends(size_t peer) {
  State& state = states_[peer];
  Lane& lane = state.sends;
  bool any = false;
  while (true) {
    if (lane.next < lane.wanted || (lane.next == lane.wanted && lane.done == 0)) {
      state.leaves_at = state.posted;  // No transfer of the next Move has begun.
    }
    if (!state.broken.ok() || lane.idle()) {
      break;
    }
    DT_RETURN_IF_ERROR(lane.failure);
    if (IsLong(lane.front()) && !lane.by_ring) {
      const absl::StatusOr<bool> moved = SendDirectly(peer);
      if (lane.Defers(moved.status())) {
        break;
      }
      DT_RETURN_IF_ERROR(moved.status());
      if (!*moved) {
        break;
      }
    } else if (parts_.peers[peer].send.CanSend()) {
      DT_RETURN_IF_ERROR(SendChunk(peer));
    } else {
      break;
    }
    any = true;
  }
  return any;
}

absl::StatusOr<bool> RdmaTransport::ProgressReceives(size_t peer) {
  RdmaPeer& rings = parts_.peers[peer];
  Lane& lane = states_[peer].receives;
  bool any = false;
  while (!lane.idle()) {
    DT_RETURN_IF_ERROR(lane.failure);
    const std::optional<ArrivedChunk> chunk = rings.receive.Front();
    if (IsLong(lane.front()) && rings.direct_receives.FrontIsDone()) {
      rings.direct_receives.Take();
      lane.Advance();
    } else if (chunk.has_value() && (chunk->of_long || !IsLong(lane.front()))) {
      const absl::Status taken = TakeChunk(peer, chunk->bytes);
      if (lane.Defers(taken)) {
        break;
      }
      DT_RETURN_IF_ERROR(taken);
    } else {
      break;  // A chunk of a later message may have overtaken the end of a direct one.
    }
    any = true;
  }
  return any;
}

absl::Status RdmaTransport::SendChunk(size_t peer) {
  RdmaPeer& rings = parts_.peers[peer];
  Lane& lane = states_[peer].sends;
  const Transfer& transfer = lane.front();
  const size_t bytes = std::min(parts_.plan.slot_bytes, transfer.bytes - lane.done);
  const uint64_t chunk = rings.send.Take();
  const size_t slot = rings.send.SlotOf(chunk);
  const size_t pair = static_cast<size_t>(chunk % rings.pairs.size());
  std::byte* const staged = rings.send_slots + slot * parts_.plan.slot_bytes;
  std::memcpy(staged, static_cast<const std::byte*>(transfer.data) + lane.done, bytes);
  RdmaWrite write;
  write.id = RequestId{RequestId::Kind::kChunk, peer, pair, slot}.Encode();
  write.from = staged;
  write.bytes = static_cast<uint32_t>(bytes);
  write.local_key = parts_.region->local_key();
  write.to = rings.remote_slots + slot * parts_.plan.slot_bytes;
  write.remote_key = rings.remote_key;
  Immediate immediate = With(peer, Immediate::Kind::kChunk, chunk);
  immediate.of_long = lane.by_ring;
  write.immediate = immediate.Encode();
  ++states_[peer].posted;
  lane.done += bytes;
  if (lane.done == transfer.bytes) {
    lane.Advance();
  }
  return rings.pairs[pair]->Post(write);
}

absl::Status RdmaTransport::TakeChunk(size_t peer, uint32_t bytes) {
  RdmaPeer& rings = parts_.peers[peer];
  Lane& lane = states_[peer].receives;
  const Transfer& transfer = lane.front();
  const size_t expected = std::min(parts_.plan.slot_bytes, transfer.bytes - lane.done);
  if (bytes != expected) {
    return absl::InternalError(absl::StrFormat(
        "%s sends a chunk of %d bytes where rank %d expects %d: the ranks are in different calls, "
        "or in one call with different sizes",
        PeerName(static_cast<int>(peer)), bytes, rank(), expected));
  }
  std::memcpy(static_cast<std::byte*>(transfer.data) + lane.done,
              rings.receive_slots + rings.receive.slot() * parts_.plan.slot_bytes, bytes);
  rings.receive.Pop();
  lane.done += bytes;
  if (lane.done == transfer.bytes) {
    if (IsLong(transfer)) {
      rings.direct_receives.Take();
    }
    lane.Advance();
  }
  return absl::OkStatus();
}

// An immediate of `kind`, with the credit that all immediates carry.
Immediate RdmaTransport::With(size_t peer, Immediate::Kind kind, uint64_t number) {
  ReceiveRing& ring = parts_.peers[peer].receive;
  ring.ToldCredit();
  return {.kind = kind,
          .chunk = static_cast<uint16_t>(number & Immediate::kChunkMask),
          .taken = ring.taken()};
}

absl::Status RdmaTransport::GiveCredit(size_t peer) {
  RdmaPeer& rings = parts_.peers[peer];
  RdmaWrite write;
  write.id = RequestId{RequestId::Kind::kCredit, peer, 0, 0}.Encode();
  write.immediate = With(peer, Immediate::Kind::kCredit, 0).Encode();
  ++states_[peer].credits_under_way;
  return rings.pairs[0]->Post(write);
}

absl::Status RdmaTransport::Probe(size_t peer, size_t pair) {
  RdmaWrite write;  // An empty write without an immediate, which the peer's process does not see.
  write.id = RequestId{RequestId::Kind::kProbe, peer, pair, 0}.Encode();
  ++states_[peer].probes_under_way;
  return parts_.peers[peer].pairs[pair]->Post(write);
}

absl::Status RdmaTransport::ProbeTheSilent() {
  const int64_t now = Clock::Real().MonotonicNanos();
  if (now - quiet_since_nanos_ < absl::ToInt64Nanoseconds(parts_.probe_interval)) {
    return absl::OkStatus();
  }
  quiet_since_nanos_ = now;
  for (size_t peer = 0; peer < states_.size(); ++peer) {
    const State& state = states_[peer];
    if (Busy(peer) && state.probes_under_way == 0 && state.broken.ok() && !state.ended) {
      DT_RETURN_IF_ERROR(Probe(peer, 0));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RdmaTransport::Drain() {
  std::array<Completion, 32> completions;
  bool any = false;
  while (true) {
    DT_ASSIGN_OR_RETURN(const size_t count, parts_.device->Poll(absl::MakeSpan(completions)));
    for (size_t i = 0; i < count; ++i) {
      DT_RETURN_IF_ERROR(Handle(completions[i]));
    }
    if (count == 0) {
      break;
    }
    any = true;
  }
  if (any) {
    quiet_since_nanos_ = Clock::Real().MonotonicNanos();
  }
  return any;
}

absl::Status RdmaTransport::Handle(const Completion& completion) {
  const RequestId id = RequestId::Decode(completion.id);
  State& state = states_.at(id.peer);
  if (completion.status != kWcSuccess) {
    Fail(id.peer, completion);
    return absl::OkStatus();
  }
  switch (id.kind) {
    case RequestId::Kind::kChunk:
      ++state.completed;
      parts_.peers[id.peer].send.Complete(id.slot);
      break;
    case RequestId::Kind::kCredit:
      --state.credits_under_way;
      break;
    case RequestId::Kind::kProbe:
      --state.probes_under_way;
      break;
    case RequestId::Kind::kOffer:
      break;
    case RequestId::Kind::kPiece:
      ++state.completed;
      --state.pieces_under_way;
      break;
    case RequestId::Kind::kReceive:
      return Annotate(Arrived(id.peer, id.pair, completion), PeerName(static_cast<int>(id.peer)));
  }
  return absl::OkStatus();
}

absl::Status RdmaTransport::Arrived(size_t peer, size_t pair, const Completion& completion) {
  RdmaPeer& rings = parts_.peers[peer];
  const Immediate immediate = Immediate::Decode(completion.immediate);
  DT_RETURN_IF_ERROR(rings.pairs[pair]->PostReceive(completion.id));
  DT_RETURN_IF_ERROR(rings.send.Credit(immediate.taken));
  switch (immediate.kind) {
    case Immediate::Kind::kChunk:
      return rings.receive.Arrive(immediate.chunk, {completion.bytes, immediate.of_long});
    case Immediate::Kind::kOffer:
      return rings.direct_sends.OfferCame();
    case Immediate::Kind::kDone:
      return rings.direct_receives.Done(immediate.chunk);
    case Immediate::Kind::kCredit:
      break;
  }
  return absl::OkStatus();
}

void RdmaTransport::Fail(size_t peer, const Completion& completion) {
  State& state = states_[peer];
  // After the first failed request all others are flushed, and say nothing of the cause.
  if (state.broken.ok() || completion.status != kWcFlushed) {
    state.broken = absl::UnavailableError(
        absl::StrCat("RDMA: ", DescribeWc(completion.status, completion.vendor_error,
                                          parts_.port_name, parts_.device->PortState())));
  }
}

absl::StatusOr<bool> RdmaTransport::Spin(const WaitContext& context) {
  const int64_t end = Clock::Real().MonotonicNanos() + absl::ToInt64Nanoseconds(kSpin);
  while (context.may_spin() && Clock::Real().MonotonicNanos() < end) {
    DT_ASSIGN_OR_RETURN(const bool any, Drain());
    if (any) {
      return true;
    }
  }
  return false;
}

absl::Status RdmaTransport::WaitForAny(const WaitContext& context) {
  DT_ASSIGN_OR_RETURN(bool any, Spin(context));
  if (any) {
    return absl::OkStatus();
  }
  DT_RETURN_IF_ERROR(parts_.device->Arm());
  DT_ASSIGN_OR_RETURN(any, Drain());
  if (any) {
    return absl::OkStatus();
  }
  std::vector<pollfd> items = {{parts_.device->fd(), POLLIN, 0},
                               {parts_.device->event_fd(), POLLIN, 0}};
  parts_.mesh->AddDescriptors(items, [this](int peer) {
    const auto i = static_cast<size_t>(peer);
    return !states_[i].ended && Busy(i);
  });
  const int timeout = Earlier(context.deadline, Deadline::After(kWaitSlice)).PollTimeoutMs();
  poll(items.data(), items.size(), timeout);
  if ((items[0].revents & POLLIN) != 0) {
    parts_.device->TakeEvents();
  }
  if ((items[1].revents & POLLIN) != 0) {
    DT_RETURN_IF_ERROR(NoteDeviceEvents());
  }
  if (((items[0].revents | items[1].revents) & (POLLERR | POLLHUP | POLLNVAL)) != 0) {
    DT_ASSIGN_OR_RETURN(any, Drain());
    // The descriptor stays in error: to poll again would burn the core until the deadline.
    return any ? absl::OkStatus()
               : absl::UnavailableError(absl::StrCat(
                     "the RDMA device of port ", parts_.port_name,
                     " is gone: it was taken out or its driver was unloaded; look at dmesg"));
  }
  DT_RETURN_IF_ERROR(control()->Read([this] { return Awaited(); }));
  for (size_t peer = 0; peer < states_.size(); ++peer) {
    State& state = states_[peer];
    if (!state.ended && Busy(peer)) {
      state.ended = parts_.mesh->Ended(static_cast<int>(peer));
    }
  }
  DT_RETURN_IF_ERROR(ProbeTheSilent());
  return context.deadline.Expired() ? TimedOut(*this) : absl::OkStatus();
}

absl::Status RdmaTransport::NoteDeviceEvents() {
  for (const DeviceEvent& event : parts_.device->TakeDeviceEvents()) {
    switch (event.kind) {
      case DeviceEvent::Kind::kDeviceFailed:
        return absl::UnavailableError(absl::StrCat("the RDMA device of port ", parts_.port_name,
                                                   " failed (", event.name,
                                                   "): look at dmesg and at its firmware"));
      case DeviceEvent::Kind::kPortDown:
        DT_LOG(Warning) << "RDMA port " << parts_.port_name << " went down (" << event.name
                        << "): what is lost is repeated for up to "
                        << absl::FormatDuration(absl::Trunc(parts_.retry_budget, absl::Seconds(1)));
        break;
      case DeviceEvent::Kind::kPortUp:
        DT_LOG(Info) << "RDMA port " << parts_.port_name << " is up again (" << event.name << ")";
        break;
      case DeviceEvent::Kind::kOther:
        DT_LOG(Warning) << "the RDMA device of port " << parts_.port_name << " says " << event.name;
        break;
    }
  }
  return absl::OkStatus();
}

std::vector<int> RdmaTransport::Awaited() const {
  std::vector<int> awaited;
  for (size_t peer = 0; peer < states_.size(); ++peer) {
    if (Busy(peer)) {
      awaited.push_back(static_cast<int>(peer));
    }
  }
  return awaited;
}

absl::Status RdmaTransport::Explain(size_t peer) {
  return parts_.mesh->Explain(static_cast<int>(peer), states_[peer].broken,
                              [this] { return Awaited(); });
}

// Peers still hold offers of memory for messages that will not be received: those of a call that
// failed, or of one that turned out to differ from the peers' call.
void RdmaTransport::Withdraw() {
  for (RdmaPeer& peer : parts_.peers) {
    for (const auto& pair : peer.pairs) {
      pair->Disconnect();
    }
  }
}

absl::Status RdmaTransport::Greet(const WaitContext& context) {
  for (size_t peer = 0; peer < states_.size(); ++peer) {
    for (size_t pair = 0; pair < parts_.peers[peer].pairs.size(); ++pair) {
      DT_RETURN_IF_ERROR(Probe(peer, pair));
    }
  }
  while (true) {
    DT_RETURN_IF_ERROR(Drain().status());
    int waiting_for = -1;
    for (size_t peer = 0; peer < states_.size(); ++peer) {
      if (!states_[peer].broken.ok()) {
        return Explain(peer);
      }
      waiting_for = states_[peer].probes_under_way > 0 ? static_cast<int>(peer) : waiting_for;
    }
    if (waiting_for < 0) {
      return absl::OkStatus();
    }
    DT_RETURN_IF_ERROR(context.interrupted());
    DT_RETURN_IF_ERROR(WaitForAny(context));
    if (context.deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat("no answer over RDMA from ", PeerName(waiting_for)));
    }
  }
}

}  // namespace dtrain::comm
