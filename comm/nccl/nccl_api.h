// The NcclApi seam: the part of NCCL that dtrain calls, with types of its own, so that only the
// CUDA plugin includes nccl.h.
//
// The real twin (real_nccl_api.cc) opens libnccl.so.2. The fake (fake/fake_nccl.h) moves real bytes
// between processes and fails as a test asks for it. The values of the enums are NCCL's. As in
// NCCL, one thread at a time uses a communicator. Every communicator here is non-blocking, so any
// call may give kInProgress, and CommGetAsyncError tells when it is over.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

struct NcclComm;  // Opaque, as NCCL's ncclComm is.

enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

enum class NcclDType : int {
  kUint8 = 1,
  kInt32 = 2,
  kInt64 = 4,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBFloat16 = 9,
};

// Built-in reductions; RedOpCreatePreMulSum gives further values.
enum class NcclReduceOp : int { kSum = 0, kMax = 2, kMin = 3 };

using NcclUniqueId = std::array<char, 128>;

class NcclApi {
 public:
  virtual ~NcclApi() = default;

  // The version for reports: "NCCL 2.28.9 (/path/libnccl.so.2)".
  virtual std::string Description() = 0;
  virtual std::string ErrorString(NcclResult result) = 0;
  // The last error of `comm` in NCCL's words; may be empty.
  virtual std::string LastError(NcclComm* comm) = 0;

  // The number is 22809 for 2.28.9.
  virtual NcclResult GetVersion(int* version) = 0;
  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Non-blocking: kInProgress until every rank has called it; `*comm` is set at once. The
  // communicator is for the calling thread's device. It keeps the pointer `name`, and so do those
  // that are split off it.
  virtual NcclResult CommInitRankConfig(NcclComm** comm, int ranks, const NcclUniqueId& id,
                                        int rank, const char* name) = 0;
  // Whether this NCCL has CommInitRankScalable (2.23 and later).
  virtual bool HasScalableInit() = 0;
  // The same with several ids, each of which serves its share of the ranks while they meet. Any
  // ranks may have made them. `ids` are the same on all ranks, in the same order.
  virtual NcclResult CommInitRankScalable(NcclComm** comm, int ranks,
                                          absl::Span<const NcclUniqueId> ids, int rank,
                                          const char* name) = 0;
  // The state of `comm`: kSuccess, kInProgress, or the error that broke it.
  virtual NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) = 0;
  // Flushes `comm`; kInProgress until every rank has called it.
  virtual NcclResult CommFinalize(NcclComm* comm) = 0;
  // Frees `comm`. REQUIRES: it is finalized.
  virtual NcclResult CommDestroy(NcclComm* comm) = 0;
  // Ends the collectives on the device and frees `comm` with its registrations and operators. Waits
  // for its streams and for the jobs of calls under way, so that it may never return. Any thread
  // may call it.
  virtual NcclResult CommAbort(NcclComm* comm) = 0;
  // A communicator of the ranks with the same `color`, ordered by `key`; a rank with -1 is in none.
  // `comm` is in progress and `*split` null until the job of this call ends and stores its result
  // there. A job that fails or is aborted may store an unfinished communicator, which must be
  // aborted too.
  virtual NcclResult CommSplit(NcclComm* comm, int color, int key, NcclComm** split) = 0;
  // This rank's number in `comm`, and the number of ranks.
  virtual NcclResult CommShape(NcclComm* comm, int* rank, int* ranks) = 0;
  // User-buffer registration: collectives on the range need no staging copy. A range within the
  // pages of one that is registered gets the same handle, which counts its ranges. The handle is
  // null if NCCL does not register memory.
  virtual NcclResult CommRegister(NcclComm* comm, void* data, size_t bytes, void** handle) = 0;
  // Must not be called while another call is in progress. The last call for a handle asks the
  // processes of other ranks to unmap the memory and waits for them.
  virtual NcclResult CommDeregister(NcclComm* comm, void* handle) = 0;

  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;

  virtual NcclResult AllReduce(const void* send, void* receive, size_t count, NcclDType dtype,
                               NcclReduceOp op, NcclComm* comm, CudaStream* stream) = 0;
  // `count` is the length of the output: send is [ranks x count].
  virtual NcclResult ReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                                   NcclReduceOp op, NcclComm* comm, CudaStream* stream) = 0;
  // `count` is the length of the input: receive is [ranks x count].
  virtual NcclResult AllGather(const void* send, void* receive, size_t count, NcclDType dtype,
                               NcclComm* comm, CudaStream* stream) = 0;
  virtual NcclResult Broadcast(const void* send, void* receive, size_t count, NcclDType dtype,
                               int root, NcclComm* comm, CudaStream* stream) = 0;
  virtual NcclResult Send(const void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                          CudaStream* stream) = 0;
  virtual NcclResult Recv(void* data, size_t count, NcclDType dtype, int peer, NcclComm* comm,
                          CudaStream* stream) = 0;

  // A sum whose inputs are multiplied by `*scalar` (host memory, of type `dtype`) first.
  virtual NcclResult RedOpCreatePreMulSum(NcclReduceOp* op, const void* scalar, NcclDType dtype,
                                          NcclComm* comm) = 0;
  virtual NcclResult RedOpDestroy(NcclReduceOp op, NcclComm* comm) = 0;
};

}  // namespace dtrain::comm
