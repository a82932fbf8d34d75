// The NcclApi seam: the part of NCCL that dtrain calls, with types of its own, so that nothing but
// the CUDA plugin sees nccl.h.
//
// The real twin (real_nccl_api.cc) opens libnccl.so.2; the fake (fake/fake_nccl.h) moves real bytes
// between processes and breaks on order. Values of the enums are NCCL's. As in NCCL, a communicator
// is used by one thread at a time; every communicator here is non-blocking, so any call may give
// kInProgress, and CommGetAsyncError tells when it is over.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "absl/types/span.h"
#include "comm/nccl/cuda_api.h"

namespace dtrain::comm {

struct NcclComm;  // Opaque: NCCL's ncclComm.

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

  // "NCCL 2.28.9 (/path/libnccl.so.2)": for reports.
  virtual std::string Description() = 0;
  virtual std::string ErrorString(NcclResult result) = 0;
  // The last error of `comm` in NCCL's words; may be empty.
  virtual std::string LastError(NcclComm* comm) = 0;

  // 22809 is 2.28.9.
  virtual NcclResult GetVersion(int* version) = 0;
  virtual NcclResult GetUniqueId(NcclUniqueId* id) = 0;
  // Non-blocking: kInProgress until every rank has called it; `*comm` is set at once. It is of the
  // calling thread's device. NCCL keeps the pointer `name`, also in communicators that are split
  // off.
  virtual NcclResult CommInitRankConfig(NcclComm** comm, int ranks, const NcclUniqueId& id,
                                        int rank, const char* name) = 0;
  // Whether this NCCL has CommInitRankScalable (2.23 and later).
  virtual bool HasScalableInit() = 0;
  // The same with several ids, each of which serves its share of the ranks while they meet. `ids`
  // are the same on all ranks, in the same order; id i was made by some rank.
  virtual NcclResult CommInitRankScalable(NcclComm** comm, int ranks,
                                          absl::Span<const NcclUniqueId> ids, int rank,
                                          const char* name) = 0;
  // The state of `comm`: kSuccess, kInProgress, or the error that broke it.
  virtual NcclResult CommGetAsyncError(NcclComm* comm, NcclResult* error) = 0;
  // Flushes; kInProgress until every rank has called it.
  virtual NcclResult CommFinalize(NcclComm* comm) = 0;
  // REQUIRES: finalized. Frees `comm`.
  virtual NcclResult CommDestroy(NcclComm* comm) = 0;
  // Ends what runs on the device and frees `comm` with its registrations and operators. Waits for
  // its streams and for the jobs of calls under way: it may never return. Any thread.
  virtual NcclResult CommAbort(NcclComm* comm) = 0;
  // A communicator of the ranks with the same `color`, ordered by `key`; -1: this rank is in none.
  // `*split` is null until the job of this call ends, which stores there, with `comm` in progress
  // until then. A job that fails or is aborted may store a half-made communicator: abort it too.
  virtual NcclResult CommSplit(NcclComm* comm, int color, int key, NcclComm** split) = 0;
  // This rank and the number of ranks of `comm`.
  virtual NcclResult CommShape(NcclComm* comm, int* rank, int* ranks) = 0;
  // User-buffer registration: collectives on the range need no staging copy. Ranges within the
  // pages of one that is registered get its handle, which counts them. Null: NCCL keeps nothing.
  virtual NcclResult CommRegister(NcclComm* comm, void* data, size_t bytes, void** handle) = 0;
  // Not while a call is in progress. The last one of a handle asks the processes of other ranks to
  // unmap the memory and waits for them.
  virtual NcclResult CommDeregister(NcclComm* comm, void* handle) = 0;

  virtual NcclResult GroupStart() = 0;
  virtual NcclResult GroupEnd() = 0;

  virtual NcclResult AllReduce(const void* send, void* receive, size_t count, NcclDType dtype,
                               NcclReduceOp op, NcclComm* comm, CudaStream* stream) = 0;
  // `count` is of the output: send is [ranks x count].
  virtual NcclResult ReduceScatter(const void* send, void* receive, size_t count, NcclDType dtype,
                                   NcclReduceOp op, NcclComm* comm, CudaStream* stream) = 0;
  // `count` is of the input: receive is [ranks x count].
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
