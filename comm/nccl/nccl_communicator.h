// Owns one NCCL communicator, its registrations and its reduction operators.
//
// NCCL wants one thread at a time and may answer any call with "in progress": this class serialises
// the calls, waits each to its end with a deadline, and lets Abort cut in from any thread between
// two polls. Everything made on the communicator is dropped before it is destroyed or aborted.
// Thread-safe.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/deadline.h"
#include "base/dtype.h"
#include "comm/buffer.h"
#include "comm/nccl/nccl_api.h"

namespace dtrain::comm {

class NcclCommunicator {
 public:
  // `ids`: one, or several for scalable initialisation. Blocks until all `ranks` have come.
  // DeadlineExceeded when they do not; the half-made communicator is aborted. REQUIRES: the calling
  // thread's CUDA device is set; `api` outlives it.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      NcclApi* api, absl::Span<const NcclUniqueId> ids, int rank, int ranks,
      const std::string& name, Deadline deadline);
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;
  // Aborts what was not closed.
  ~NcclCommunicator();

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // Runs `call` alone on the communicator and waits until NCCL has taken it (not until the device
  // has done it). An error has `what` in front.
  absl::Status Call(absl::string_view what, absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                    Deadline deadline);
  // The same between GroupStart and GroupEnd.
  absl::Status GroupCall(absl::string_view what,
                         absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                         Deadline deadline);
  // OK while NCCL knows of no error. Does not wait for a call under way.
  absl::Status AsyncError();

  // NCCL's operator for `op` on `dtype`: the average is a sum of inputs multiplied by 1 / ranks.
  absl::StatusOr<NcclReduceOp> ReduceOperator(ReduceOp op, DType dtype, Deadline deadline);

  absl::StatusOr<void*> Register(void* data, size_t bytes, Deadline deadline);
  // Does nothing when the communicator is gone already.
  void Deregister(void* handle);

  // A communicator of the ranks with the same colour, ordered by key. Collective and blocking.
  absl::StatusOr<std::unique_ptr<NcclCommunicator>> Split(int color, int key, Deadline deadline);

  // Flushes and destroys, together with the other ranks. When they do not come in time: aborts and
  // gives DeadlineExceeded.
  absl::Status Close(Deadline deadline);
  // Ends everything on the device. Never waits for another call; idempotent.
  void Abort();

 private:
  NcclCommunicator(NcclApi* api, NcclComm* comm, int rank, int ranks)
      : api_(api), comm_(comm), rank_(rank), ranks_(ranks) {}
  // Polls until the communicator is no longer in progress.
  absl::Status Settle(absl::string_view what, Deadline deadline);
  void DropHandles();  // REQUIRES: mutex_ held.
  static absl::Status GoneError(absl::string_view what);

  NcclApi* const api_;
  std::mutex call_mutex_;  // Held through a whole call.
  std::mutex mutex_;       // Held through one entry into NCCL.
  NcclComm* comm_;         // Null when closed or aborted.
  int rank_;               // Set once, before the object is shared.
  int ranks_;
  std::set<void*> registrations_;
  std::map<DType, NcclReduceOp> averages_;
};

}  // namespace dtrain::comm
