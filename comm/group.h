// A group of ranks that run collectives together, in the same order on every rank.
//
// Calls start a collective and return at once with a Work; a group runs its collectives one after
// the other in the order of the calls. The buffers must stay valid and untouched until Work::Wait
// returns. Thread-safe, but as all ranks must call in the same order, callers order their own
// calls. Every collective has a deadline (GroupOptions::timeout): when it passes, the group is
// broken, each Work gives DeadlineExceeded naming the ranks that did not arrive, and further calls
// give Aborted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "comm/buffer.h"
#include "comm/rdma_options.h"
#include "comm/symmetric_buffer.h"
#include "comm/work.h"

namespace dtrain::comm {

struct CudaEvent;  // nccl/cuda_api.h.

struct CollectiveOptions {
  // Shown in reports: the bucket's or the caller's name.
  std::string name = {};
  // Reductions of fp32 only: a 16-bit type halves the bytes that travel. Sums are always in fp32;
  // the result is rounded. fp16 has 3 bits more than bf16 but ends at 65,504: larger values become
  // infinite.
  Wire wire = Wire::kSameAsBuffer;
  // When not null, a reduction writes the sum of squares of its (averaged) result here, in fp64 and
  // finite only if every element is: the norm and finite check at no extra pass. Every rank gets
  // the same value, added up in rank order.
  double* sum_of_squares = nullptr;
  // The calling thread calls Wait next, without a deadline: it then does the work itself and no
  // thread is woken, which saves several microseconds. Without that Wait nothing moves.
  bool caller_waits = false;
  // If finite, the call's deadline in place of a learnt limit, and within GroupOptions::timeout.
  // For calls before which a rank may do slow work, such as a save.
  Deadline deadline = Deadline::Infinite();
  // DeviceGroups only: the event that the group's stream waits for, such as a point inside a
  // launched graph (CudaApi::EventRecordInGraph). Null: it waits for all work that the compute
  // stream holds at the call.
  CudaEvent* after = nullptr;
};

// A buffer's registration with a group, for one epoch. Dropping it drops the peers' mappings.
class Registration {
 public:
  virtual ~Registration() = default;
  // A further registration of the same buffer, over another backend, that lives as long. Set and
  // used by the group alone.
  std::unique_ptr<Registration> more = {};
};

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual uint64_t epoch() const = 0;
  // "shm", "tcp", "rdma", "shm+tcp", "shm+rdma", "nccl", "alone": for records.
  virtual std::string transport() const = 0;
  // Collectives started so far.
  virtual uint64_t sequence() const = 0;
  // The training step that calls from now on belong to, for reports. Any thread.
  virtual void SetStep(int64_t /*step*/) {}
  // Says that the calls of this group run beside training, such as those of a save in the
  // background: a rank that is in one of them may still be at work. For reports.
  virtual void SetBeside() {}

  // Collective and blocking: maps `buffer` of every peer that shares memory with this rank.
  // Reductions inside a registered buffer copy nothing. All ranks call it in the same order with
  // equal sizes.
  virtual absl::StatusOr<std::unique_ptr<Registration>> Register(
      std::shared_ptr<SymmetricBuffer> buffer) = 0;

  // In place: every rank ends with the reduction over ranks of `buffer`. [count] of fp32, bf16,
  // fp16, int32 or int64 (kAverage: floating types only).
  virtual absl::StatusOr<Work> AllReduce(Buffer buffer, ReduceOp op,
                                         const CollectiveOptions& options = {}) = 0;
  // `input` is [size x count]; rank r ends with the reduction of part r in `output` [count], which
  // may be that part of `input` itself.
  virtual absl::StatusOr<Work> ReduceScatter(Buffer input, Buffer output, ReduceOp op,
                                             const CollectiveOptions& options = {}) = 0;
  // `output` is [size x count]; part r is rank r's `input` [count], which may be that part itself.
  virtual absl::StatusOr<Work> AllGather(Buffer input, Buffer output,
                                         const CollectiveOptions& options = {}) = 0;
  virtual absl::StatusOr<Work> Broadcast(Buffer buffer, int root,
                                         const CollectiveOptions& options = {}) = 0;
  // `input` and `output` are [size x count]; part r of input goes to rank r.
  virtual absl::StatusOr<Work> AllToAll(Buffer input, Buffer output,
                                        const CollectiveOptions& options = {}) = 0;
  // Sends and receives start when one of them is waited for or asked about, or a collective
  // follows: ranks that all send first, then receive, then wait do not block each other.
  virtual absl::StatusOr<Work> Send(Buffer buffer, int peer,
                                    const CollectiveOptions& options = {}) = 0;
  virtual absl::StatusOr<Work> Receive(Buffer buffer, int peer,
                                       const CollectiveOptions& options = {}) = 0;
  virtual absl::Status Barrier(Deadline deadline) = 0;

  // Ends every collective under way, here and (as soon as they notice) on the peers, with Aborted
  // and `reason`. Never blocks; may be called from any thread; later calls return Aborted.
  virtual void Abort(const std::string& reason) = 0;

  // The last 1,000 calls of this rank as JSON (comm/flight_recorder.h), for reports. Any thread.
  virtual std::string FlightRecord() const { return "{}"; }
};

// The algorithm between ranks that do not share memory: comm/collectives/algorithm.h.
enum class Algorithm : uint8_t { kAutomatic, kDirect, kRing, kDoubling, kHalving };

// The costs of an exchange over messages (comm/collectives/link_cost.h).
struct LinkCost {
  double step_us = 0;
  double message_us = 0;
  double pair_us_per_mib = 0;
  double all_us_per_mib = 0;
  double sum_us_per_mib = 0;
};

struct GroupOptions {
  int rank = 0;
  int size = 1;
  // World ranks of the members, for reports; empty: 0 to size - 1.
  std::vector<int> world_ranks = {};
  uint64_t epoch = 0;
  std::string name = "world";     // Prefix of this group's keys in the store.
  std::string node_id = {};       // Ranks with equal node_id share memory.
  std::string host_address = {};  // Address at which peers connect over TCP; "": from store.
  // If not empty, the address of this network device is used instead.
  std::string host_interface = {};
  std::string job_key = {};  // 32 bytes: pair keys of data connections derive from it.
  // The limit of each collective until earlier calls have shown how long it takes
  // (comm/call_timeout.h). After that it is five times that long, at least timeout_min and at most
  // this value.
  absl::Duration timeout = absl::Minutes(10);
  // The least learnt limit. At least `timeout`: no limit is learnt. No value: LeastTimeout for the
  // group's connections.
  std::optional<absl::Duration> timeout_min = {};
  absl::Duration connect_timeout = absl::Minutes(2);  // Time that CreateHostGroup may take.
  bool deterministic = false;  // Sum in rank order whatever the transport and chunk.
  // If not automatic, it is used wherever the promised bits allow it (tests, measurements).
  Algorithm algorithm = Algorithm::kAutomatic;
  // The costs by which an algorithm is chosen; none: measured when the group is created. Equal on
  // all ranks.
  std::optional<LinkCost> link_cost = {};
  bool allow_shared_memory = true;  // Off: `wire` even on one host (tests, `comm.transport: tcp`).
  Network network = Network::kAutomatic;  // Between nodes. Equal on all ranks.
  RdmaOptions rdma = {};
  int tcp_connections = 1;  // Connections for data to each peer, in [1, 16]. Equal on all ranks.
  // Encrypts data between hosts with TLS 1.3. RDMA cannot: kRdma is refused with this option, and
  // kAutomatic means TCP. Equal on all ranks.
  bool tcp_tls = false;
};

class Store;  // comm/net/store.h

// Collective and blocking: meets the other ranks through `store` and connects. A group of size 1
// needs no store (null). DeadlineExceeded names the ranks that did not come.
absl::StatusOr<std::unique_ptr<Group>> CreateHostGroup(Store* store, const GroupOptions& options);

// Collective over `parent` and blocking: the group of the ranks that gave this `color`, in the
// order of `key`, equal keys in rank order; null for a negative color. `store` is the one that
// `parent` was made with. InvalidArgument: `parent` is no host group.
absl::StatusOr<std::unique_ptr<Group>> SplitHostGroup(Group& parent, Store* store, int color,
                                                      int key);

}  // namespace dtrain::comm
