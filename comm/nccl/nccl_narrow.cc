// Reductions of fp32 with 16 bits on the wire: rounded parts travel, and sums are in fp32.
//
// NCCL's own reductions of 16-bit buffers round after each addition; here each element is rounded
// once as it leaves and once as a sum, whatever the number of ranks, and added up in rank order.
#include "base/status.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

constexpr size_t kNarrowBytes = 2;

DType NarrowType(Wire wire) { return wire == Wire::kBFloat16 ? DType::kBFloat16 : DType::kFloat16; }

}  // namespace

absl::Status NcclGroup::QueueCast(const void* from, DType from_dtype, void* to, DType to_dtype,
                                  size_t count) {
  return CudaStatus(*seams_.cuda,
                    seams_.kernels.cast(from, from_dtype, to, to_dtype, count, stream_),
                    "cast between fp32 and the wire's type");
}

absl::Status NcclGroup::NarrowAllReduce(const Buffer& buffer, ReduceOp op, Wire wire,
                                        Deadline deadline) {
  const DType narrow = NarrowType(wire);
  const size_t ranks = static_cast<size_t>(size());
  // The parts are equal. Together they may be longer than the buffer, and nobody reads the rest.
  const size_t step = (buffer.count() + ranks - 1) / ranks;
  const size_t whole = ranks * step * kNarrowBytes;
  DT_ASSIGN_OR_RETURN(void* const scratch, scratch_->Parts(2 * whole, stream_));
  char* const mine = static_cast<char*>(scratch);
  char* const theirs = mine + whole;
  char* const own = mine + static_cast<size_t>(rank()) * step * kNarrowBytes;
  DT_RETURN_IF_ERROR(QueueCast(buffer.data, DType::kFloat32, mine, narrow, buffer.count()));
  DT_RETURN_IF_ERROR(ExchangeParts(mine, theirs, step, narrow, deadline));
  DT_RETURN_IF_ERROR(CudaStatus(
      *seams_.cuda,
      seams_.kernels.sum_parts_in_order(theirs, size(), step, narrow, Scale(op), own, stream_),
      "sum in rank order"));
  DT_RETURN_IF_ERROR(CallNccl(
      "ncclAllGather of the sums", narrow,
      [&](NcclApi& nccl, NcclComm* comm, NcclDType dtype) {
        return nccl.AllGather(own, mine, step, dtype, comm, stream_);
      },
      deadline));
  return QueueCast(mine, narrow, buffer.data, DType::kFloat32, buffer.count());
}

absl::Status NcclGroup::NarrowReduceScatter(const Buffer& input, const Buffer& output, ReduceOp op,
                                            Wire wire, Deadline deadline) {
  const DType narrow = NarrowType(wire);
  const size_t whole = input.count() * kNarrowBytes;
  DT_ASSIGN_OR_RETURN(void* const scratch, scratch_->Parts(2 * whole, stream_));
  char* const mine = static_cast<char*>(scratch);
  char* const theirs = mine + whole;
  DT_RETURN_IF_ERROR(QueueCast(input.data, DType::kFloat32, mine, narrow, input.count()));
  DT_RETURN_IF_ERROR(ExchangeParts(mine, theirs, output.count(), narrow, deadline));
  DT_RETURN_IF_ERROR(CudaStatus(*seams_.cuda,
                                seams_.kernels.sum_parts_in_order(theirs, size(), output.count(),
                                                                  narrow, Scale(op), mine, stream_),
                                "sum in rank order"));
  return QueueCast(mine, narrow, output.data, DType::kFloat32, output.count());
}

}  // namespace dtrain::comm
