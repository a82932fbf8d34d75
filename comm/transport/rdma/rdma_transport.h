// A Transport over RDMA: bytes are staged in a slot and written into the same slot of the peer's
// ring, with an immediate that tells it (ring.h). Long messages are written by the device straight
// from the sender's memory into the receiver's, where both are registered (direct_messages.h).
//
// TCP connections to the same peers stay open beside it, silent: they tell at once when a process
// ends and carry the reason of a rank that gives up. A peer that sends nothing for a while is sent
// an empty write, which its device answers without its process: so a path that is cut is found
// before the deadline, and a process that is merely stopped is not taken for a dead one. Events of
// the device and its port are read and logged while a rank waits. Owns the mesh, the device and
// everything made from it. One thread at a time calls Move; Shutdown may be called from any.
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
  uint64_t remote_slots = 0;         // The peer's receive_slots for this rank.
  uint64_t remote_offers = 0;        // The peer's offers_in.
  uint32_t remote_key = 0;
};

class RdmaTransport final : public Transport {
 public:
  struct Parts {
    std::unique_ptr<StreamTransport> mesh;
    std::string port_name;  // "rxe0/1".
    RingPlan plan;
    absl::Duration probe_interval;
    absl::Duration retry_budget;  // How long the device repeats lost packets, at most.
    size_t direct_bytes_min = 0;
    // Created in this order and destroyed in reverse.
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
  absl::Status PollPeers() override { return parts_.mesh->PollPeers(); }
  ControlLines* control() override { return parts_.mesh->control(); }
  std::vector<int> Awaited() const override;
  void Withdraw() override;
  void Shutdown(const absl::Status& reason) override { parts_.mesh->Shutdown(reason); }
  std::string PeerName(int peer) const override { return parts_.mesh->PeerName(peer); }

 private:
  static constexpr int kCreditsUnderWayMax = 2;
  static constexpr size_t kPiecesUnderWayMax = 8;
  // Requests that a queue pair needs room for beside its chunks: pieces, credits, offers, a probe,
  // and some spare.
  static constexpr int kExtraRequests = 16;
  // A device writes at most 8 MiB at a time (soft-RoCE), and several queue pairs share a message.
  static constexpr size_t kPieceBytes = size_t{1} << 20;

  // The transfers that are left in one direction.
  struct Lane {
    std::vector<Transfer> queue;
    size_t next = 0;
    // Number of transfers in the queue that the current Move needs; the rest belong to the next
    // Move.
    size_t wanted = 0;
    size_t done = 0;       // Bytes done of the next transfer.
    size_t offered = 0;    // Receives: the first transfer that still needs an offer.
    bool by_ring = false;  // Sends: the next transfer goes through the ring, though it is long.
    // An error of the next Move's transfers, with which that Move will fail.
    absl::Status failure = {};
    bool done_with_wanted() const { return next >= wanted; }
    bool idle() const { return next == queue.size() || (done_with_wanted() && !failure.ok()); }
    const Transfer& front() const { return queue[next]; }
    // Whether `status` concerns only the next Move's transfers; then it is kept for that Move.
    bool Defers(const absl::Status& status) {
      if (done_with_wanted()) {
        failure = status;
      }
      return !failure.ok();
    }
    // A Move begins, which needs everything in the queue.
    void Begin() {
      queue.erase(queue.begin(), queue.begin() + static_cast<ptrdiff_t>(next));
      offered -= std::min(offered, next);
      next = 0;
      wanted = queue.size();
    }
    // The front transfer is complete.
    void Advance() {
      ++next;
      done = 0;
      by_ring = false;
    }
  };
  // The state of a peer beyond its rings.
  struct State {
    Lane sends;
    Lane receives;
    int credits_under_way = 0;
    int probes_under_way = 0;
    size_t pieces_under_way = 0;
    // Counts of all chunks and pieces. This Move's data have left when `completed` reaches
    // `leaves_at`.
    uint64_t posted = 0;
    uint64_t completed = 0;
    uint64_t leaves_at = 0;
    bool ended = false;   // The peer's process closed its connection; nothing more can come.
    absl::Status broken;  // The error of a queue pair.
  };

  // Queues `transfers` after those that are queued.
  void Append(absl::Span<const Transfer> transfers);
  // Whether long messages of the next Move are queued, whose regions are in use. REQUIRES: no Move
  // is under way.
  bool LongIsAhead() const;
  // Whether every peer has one queue pair, on which requests complete in order.
  bool CompletesInOrder() const;
  bool Busy(size_t peer) const;
  // Handles all completions that are there, and gives whether there were any.
  absl::StatusOr<bool> Drain();
  absl::Status Handle(const Completion& completion);
  absl::Status Arrived(size_t peer, size_t pair, const Completion& completion);
  void Fail(size_t peer, const Completion& completion);
  // The next functions move as much as possible without waiting, and give whether anything moved.
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
  // Logs the events of the device and its port. Unavailable: the device has failed.
  absl::Status NoteDeviceEvents();
  absl::StatusOr<bool> Spin(const WaitContext& context);
  absl::Status Explain(size_t peer);

  Parts parts_;
  std::vector<State> states_;
  bool ahead_ = false;             // The transfers of the next Move are queued.
  int64_t quiet_since_nanos_ = 0;  // The last completion or probe.
};

}  // namespace dtrain::comm
