// A Transport over RDMA: bytes are staged in a slot and written into the same slot of the peer's
// ring, with an immediate that tells it (ring.h). Long messages are written by the device straight
// from the sender's memory into the receiver's, where both are registered (direct_messages.h).
//
// TCP connections to the same peers stay open beside it, silent: they tell at once when a process
// ends and carry the reason of a rank that gives up. A peer that sends nothing for a while is sent
// an empty write, which its device answers without its process: so a path that is cut is found
// before the deadline, and a process that is merely stopped is not taken for a dead one. What the
// device says of itself and its port is read where a rank waits, and logged.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "comm/rdma_options.h"
#include "comm/transport/rdma/direct_messages.h"
#include "comm/transport/rdma/memory_cache.h"
#include "comm/transport/rdma/ring.h"
#include "comm/transport/rdma/staging.h"
#include "comm/transport/rdma/verbs_api.h"
#include "comm/transport/stream_transport.h"
#include "comm/transport/transport.h"

namespace dtrain::comm {

// One peer's connected queue pairs and rings.
struct RdmaPeer {
  explicit RdmaPeer(int slots) : send(slots), receive(slots) {}
  // Bytes of staging memory for a peer: both rings, and boxes for offers both ways.
  static size_t StagingBytes(const RingPlan& plan) {
    return 2 * (static_cast<size_t>(plan.slots) * plan.slot_bytes + kOffersMax * sizeof(Offer));
  }
  std::vector<std::unique_ptr<QueuePair>> pairs;  // None for this rank itself.
  SendRing send;
  ReceiveRing receive;
  std::byte* send_slots = nullptr;
  const std::byte* receive_slots = nullptr;
  DirectSends direct_sends;
  DirectReceives direct_receives;
  Offer* offers_out = nullptr;       // kOffersMax, as they leave.
  const Offer* offers_in = nullptr;  // kOffersMax, where the peer writes.
  uint64_t remote_slots = 0;         // Its receive_slots for this rank.
  uint64_t remote_offers = 0;        // Its offers_in.
  uint32_t remote_key = 0;
};

class RdmaTransport final : public Transport {
 public:
  struct Parts {
    std::unique_ptr<StreamTransport> mesh;
    std::string port_name;  // "rxe0/1".
    RingPlan plan;
    absl::Duration probe_interval;
    absl::Duration retry_budget;  // How long the device repeats what is lost, at most.
    size_t direct_bytes_min = 0;
    // In the order in which they are made; destroyed from the last to the first.
    std::unique_ptr<VerbsDevice> device;
    std::unique_ptr<StagingMemory> staging;
    std::unique_ptr<MemoryRegion> region;
    std::unique_ptr<MemoryCache> memory;
    std::vector<RdmaPeer> peers;  // By rank.
  };
  // REQUIRES: every queue pair is connected and has its receives posted (QueueDepth of them).
  explicit RdmaTransport(Parts parts);

  // How many sends and how many receives each queue pair needs room for.
  static int QueueDepth(const RingPlan& plan) { return plan.slots + kExtraRequests; }

  // Asks every peer over every queue pair whether it can be reached, and waits for the answers.
  // REQUIRES: all ranks have connected.
  absl::Status Greet(const WaitContext& context);
  StreamTransport& mesh() { return *parts_.mesh; }
  // Ends this transport; the connections that stood beside it stay.
  std::unique_ptr<StreamTransport> TakeMesh() { return std::move(parts_.mesh); }

  int rank() const override { return parts_.mesh->rank(); }
  int size() const override { return parts_.mesh->size(); }
  using Transport::Move;
  absl::Status Move(absl::Span<const Transfer> transfers, const WaitContext& context,
                    absl::FunctionRef<void()> meanwhile, absl::Span<const Transfer> ahead) override;
  absl::StatusOr<std::unique_ptr<RegisteredMemory>> Register(void* data, size_t bytes) override {
    return parts_.memory->Register(data, bytes);
  }
  absl::Status Glance() override { return parts_.mesh->Glance(); }
  ControlLines* control() override { return parts_.mesh->control(); }
  std::vector<int> Awaited() const override;
  void Withdraw() override;
  void Shutdown(const absl::Status& reason) override { parts_.mesh->Shutdown(reason); }
  std::string PeerName(int peer) const override { return parts_.mesh->PeerName(peer); }

 private:
  static constexpr int kCreditsUnderWayMax = 2;
  static constexpr size_t kPiecesUnderWayMax = 8;
  // Of a queue pair, beside its chunks: pieces, credits, offers, a probe, and some room.
  static constexpr int kExtraRequests = 16;
  // A device writes at most 8 MiB at a time (soft-RoCE), and several queue pairs share a message.
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // What is left to move in one direction.
  struct Lane {
    std::vector<Transfer> queue;
    size_t next = 0;
    size_t wanted = 0;     // Of the queue: by the Move under way. The rest is ahead of the next.
    size_t done = 0;       // Bytes of the next one.
    size_t offered = 0;    // Receives: those before it need no offer any more.
    bool by_ring = false;  // Sends: the next one goes through the ring, though it is long.
    absl::Status failure = {};  // Of what is ahead: the next Move fails with it.
    bool done_with_wanted() const { return next >= wanted; }
    bool idle() const { return next == queue.size() || (done_with_wanted() && !failure.ok()); }
    const Transfer& front() const { return queue[next]; }
    // Whether `status` is an error of what is ahead, which is then kept for the next Move.
    bool Defers(const absl::Status& status) {
      if (done_with_wanted()) {
        failure = status;
      }
      return !failure.ok();
    }
    // A Move begins: it wants all that is queued.
    void Begin() {
      queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(next));
      offered -= std::min(offered, next);
      next = 0;
      wanted = queue.size();
    }
    // The front one is complete.
    void Advance() {
      ++next;
      done = 0;
      by_ring = false;
    }
  };
  // What is known of a peer beyond its rings.
  struct State {
    Lane sends;
    Lane receives;
    int credits_under_way = 0;
    int probes_under_way = 0;
    size_t pieces_under_way = 0;
    // Chunks and pieces, in all: what this Move sends has left when so many are completed.
    uint64_t posted = 0;
    uint64_t completed = 0;
    uint64_t leaves_at = 0;
    bool ended = false;   // Its process closed its connection; nothing can come any more.
    absl::Status broken;  // Of a queue pair.
  };

  // Behind what is queued.
  void Append(absl::Span<const Transfer> transfers);
  // Whether long messages of the next Move are queued: their regions are in use. REQUIRES: no Move
  // is under way.
  bool LongIsAhead() const;
  // Whether every peer has one queue pair, on which requests complete in order.
  bool CompletesInOrder() const;
  bool Busy(size_t peer) const;
  // Handles all completions that are there; whether there were any.
  absl::StatusOr<bool> Drain();
  absl::Status Handle(const Completion& completion);
  absl::Status Arrived(size_t peer, size_t pair, const Completion& completion);
  void Fail(size_t peer, const Completion& completion);
  // These move what can be moved now; whether there was anything.
  absl::StatusOr<bool> Progress(size_t peer);
  absl::Status SendChunk(size_t peer);
  absl::Status TakeChunk(size_t peer, uint32_t bytes);
  absl::StatusOr<bool> ProgressSends(size_t peer);
  absl::StatusOr<bool> ProgressReceives(size_t peer);
  // Long messages: rdma_direct.cc.
  bool IsLong(const Transfer& transfer) const { return transfer.bytes >= parts_.direct_bytes_min; }
  absl::Status MakeOffers(size_t peer);
  absl::StatusOr<bool> SendDirectly(size_t peer);
  absl::Status PostPiece(size_t peer, const Offer& offer, const MemoryRegion& source);
  absl::Status PostDone(size_t peer);
  Immediate With(size_t peer, Immediate::Kind kind, uint64_t number);
  absl::Status GiveCredit(size_t peer);
  absl::Status Probe(size_t peer, size_t pair);
  absl::Status ProbeTheSilent();
  absl::Status WaitForAny(const WaitContext& context);
  // Logs what happened to the device and its port. Unavailable: it works no more.
  absl::Status NoteDeviceEvents();
  absl::StatusOr<bool> Spin(const WaitContext& context);
  absl::Status Explain(size_t peer);

  Parts parts_;
  std::vector<State> states_;
  bool ahead_ = false;             // The transfers of the next Move are queued.
  int64_t quiet_since_nanos_ = 0;  // The last completion or probe.
};

}  // namespace dtrain::comm
