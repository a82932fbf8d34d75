// The rank-ordered reductions of NcclGroup and the exchange on which they are built.
#include <algorithm>

#include "base/status.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

bool Failed(NcclResult result) {
  return result != NcclResult::kSuccess && result != NcclResult::kInProgress;
}

}  // namespace

float NcclGroup::Scale(ReduceOp op) const {
  return op == ReduceOp::kAverage ? 1.0F / static_cast<float>(size()) : 1.0F;
}

absl::Status NcclGroup::ExchangeParts(const char* from, char* to, size_t count, DType dtype,
                                      Deadline deadline) {
  DT_ASSIGN_OR_RETURN(const NcclDType type, ToNcclDType(dtype));
  const size_t bytes = count * DTypeBytes(dtype);
  return communicator_->GroupCall(
      "ncclSend and ncclRecv of parts",
      [&](NcclApi& nccl, NcclComm* comm) {
        NcclResult result = NcclResult::kSuccess;
        for (int peer = 0; peer < size() && !Failed(result); ++peer) {
          const size_t offset = static_cast<size_t>(peer) * bytes;
          result = nccl.Send(from + offset, count, type, peer, comm, stream_);
          if (!Failed(result)) {
            result = nccl.Recv(to + offset, count, type, peer, comm, stream_);
          }
        }
        return result;
      },
      deadline);
}

bool NcclGroup::InOrder(const Buffer& buffer, ReduceOp op) const {
  // Two summands have one order; integers and extrema have the same result in every order.
  return options_.group.deterministic && size() > 2 && IsFloating(buffer.dtype) &&
         buffer.dtype != DType::kFloat64 && (op == ReduceOp::kSum || op == ReduceOp::kAverage);
}

absl::Status NcclGroup::OrderedReduceScatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                             Deadline deadline) {
  DT_ASSIGN_OR_RETURN(void* const parts, scratch_->Parts(input.bytes, stream_));
  DT_RETURN_IF_ERROR(ExchangeParts(static_cast<char*>(input.data), static_cast<char*>(parts),
                                   output.count(), input.dtype, deadline));
  return CudaStatus(*seams_.cuda,
                    seams_.kernels.sum_parts_in_order(parts, size(), output.count(), input.dtype,
                                                      Scale(op), output.data, stream_),
                    "sum in rank order");
}

absl::Status NcclGroup::OrderedAllReduce(const Buffer& buffer, ReduceOp op, Deadline deadline) {
  // Part r of [0, count) belongs to rank r; the last parts may be short or empty.
  const size_t ranks = static_cast<size_t>(size());
  const size_t width = DTypeBytes(buffer.dtype);
  const size_t step = (buffer.count() + ranks - 1) / ranks;
  const auto begin = [&](int part) {
    return std::min(static_cast<size_t>(part) * step, buffer.count());
  };
  const auto count = [&](int part) { return begin(part + 1) - begin(part); };
  char* const data = static_cast<char*>(buffer.data);
  DT_ASSIGN_OR_RETURN(const NcclDType type, ToNcclDType(buffer.dtype));
  DT_ASSIGN_OR_RETURN(void* const parts, scratch_->Parts(ranks * step * width, stream_));
  char* const own = data + begin(rank()) * width;

  DT_RETURN_IF_ERROR(communicator_->GroupCall(
      "ncclSend and ncclRecv of parts",
      [&](NcclApi& nccl, NcclComm* comm) {
        NcclResult result = NcclResult::kSuccess;
        for (int peer = 0; peer < size() && !Failed(result); ++peer) {
          result = nccl.Send(data + begin(peer) * width, count(peer), type, peer, comm, stream_);
          if (!Failed(result)) {
            char* const to =
                static_cast<char*>(parts) + static_cast<size_t>(peer) * count(rank()) * width;
            result = nccl.Recv(to, count(rank()), type, peer, comm, stream_);
          }
        }
        return result;
      },
      deadline));
  DT_RETURN_IF_ERROR(
      CudaStatus(*seams_.cuda,
                 seams_.kernels.sum_parts_in_order(parts, size(), count(rank()), buffer.dtype,
                                                   Scale(op), own, stream_),
                 "sum in rank order"));
  return communicator_->GroupCall(
      "ncclBroadcast of the sums",
      [&](NcclApi& nccl, NcclComm* comm) {
        NcclResult result = NcclResult::kSuccess;
        for (int part = 0; part < size() && !Failed(result); ++part) {
          char* const at = data + begin(part) * width;
          result = nccl.Broadcast(at, at, count(part), type, part, comm, stream_);
        }
        return result;
      },
      deadline);
}

}  // namespace dtrain::comm
