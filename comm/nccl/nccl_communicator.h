// Owns one NCCL communicator, its registrations and its reduction operators.
//
// NCCL wants one thread at a time and may answer any call with "in progress". This class lets one
// call follow the other, waits for the end of each with a deadline, and lets any thread abort
// between two polls. It drops everything that was made on the communicator before it destroys it.
// Abort leaves that to NCCL, because ncclCommDeregister waits for other processes, which may be
// stopped, and unmaps memory that a kernel may still use. Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/numeric/dtype.h"
#include "comm/buffer.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

class NcclCommunicator {
 public:
  // `ids`: one, or several for scalable initialisation. Blocks until all `ranks` have come.
  // DeadlineExceeded if they do not; the unfinished communicator is aborted (nccl_abort.h).
  // REQUIRES: the calling thread's CUDA device is set; `api` outlives the communicator and those
  // that are split off it.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      NcclApi* api, absl::Span<const NcclUniqueId> ids, int rank, int ranks,
      const std::string& name, Deadline deadline);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  // Aborts the communicator if it was not closed.
  ~NcclCommunicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  // Whether it is closed or being aborted. Never waits.
  bool gone() const { return gone_; }

  // Runs `call` alone on the communicator and waits until NCCL has taken it, but not until the
  // device has done it. An error begins with `what`.
  absl::Status Call(absl::string_view what, absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                    Deadline deadline);
  // The same between GroupStart and GroupEnd.
  absl::Status GroupCall(absl::string_view what,
                         absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                         Deadline deadline);
  // OK if NCCL knows of no error, or if another thread is in a call of NCCL. Never waits.
  absl::Status AsyncError();

  // NCCL's operator for `op` on `dtype`. The average is a sum of inputs that are multiplied by
  // 1 / ranks first. NVLink SHARP has no such sum (ncclNvlsSupported in src/include/device.h of
  // NCCL 2.28.9), so the engine asks for plain sums and scales them itself.
  absl::StatusOr<NcclReduceOp> ReduceOperator(ReduceOp op, DType dtype, Deadline deadline);

  // Several ranges within the pages of one have the same handle, and each is deregistered once.
  absl::StatusOr<void*> Register(void* data, size_t bytes, Deadline deadline);
  // Waits for a call under way, and for other ranks' processes. Does nothing once the communicator
  // has ended or is about to.
  void Deregister(void* handle);

  // A communicator of the ranks with the same colour, ordered by key; null for a negative colour.
  // Collective and blocking. After an error this communicator must be aborted, because NCCL may
  // still be busy with the split.
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Split(int color, int key, Deadline deadline);

  // Flushes and destroys it, together with the other ranks. After an error the caller has to abort
  // it. A call of NCCL may take longer than `deadline`.
  absl::Status Close(Deadline deadline);
  // Ends everything on the device. Waits for its streams, and for a thread that is in a call of
  // NCCL, but not for one that polls. Idempotent.
  void Abort();

 private:
  // NCCL keeps the pointer to a name, and so do the communicators that are split off.
  using Name = std::shared_ptr<const std::string>;
  NcclCommunicator(NcclApi* api, NcclComm* comm, int rank, int ranks, Name name)
      : api_(api), name_(std::move(name)), comm_(comm), rank_(rank), ranks_(ranks) {}
  // Polls until the communicator is no longer in progress.
  absl::Status Settle(absl::string_view what, Deadline deadline);
  // The communicator that the split with this slot made; the caller owns it.
  absl::StatusOr<NcclComm*> TakeSplit(absl::string_view what, NcclComm** slot);
  void DropHandles();  // REQUIRES: mutex_ held.
  void AbortOne(NcclComm* comm);
  static absl::Status GoneError(absl::string_view what);

  NcclApi* const api_;
  const Name name_;
  std::atomic<bool> ending_{false};  // Abort was called.
  std::atomic<bool> gone_{false};    // comm_ is null.
  std::mutex call_mutex_;            // Held during a whole call.
  std::mutex mutex_;                 // Held during each function of NCCL.
  NcclComm* comm_;                   // Null when it is closed or aborted.
  int rank_;                         // Set once, before the object is shared, as ranks_ is.
  int ranks_;
  std::map<void*, int> registrations_;  // How often NCCL gave each handle.
  std::map<DType, NcclReduceOp> averages_;
  // NCCL stores the communicators of splits here when their jobs end. A job may end after Split has
  // given up, at the latest in ncclCommAbort.
  std::vector<std::unique_ptr<NcclComm*>> splits_;
};

}  // namespace dtrain::comm
