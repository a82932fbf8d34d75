// Several reduce-scatters of NcclGroup in one call of NCCL.
//
// A non-blocking NCCL starts a thread for each call, which takes some 50 us, and the host polls
// until the thread has ended. For a group of calls (ncclGroupStart) that happens once.
//
// All ranks must group the calls alike. For NCCL the same calls one by one on another rank are not
// the same: it sorts those of a group by size, chooses algorithm, protocol and channels by the
// sizes of all that are alike, and runs them as one kernel (ncclPrepareTasks and
// scheduleCollTasksToPlan in src/enqueue.cc of NCCL 2.28.9). The caller therefore plans which calls
// go together, equally on all ranks. It never takes those that happen to be ready on one of them.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "comm/nccl/nccl_call.h"
#include "comm/nccl/nccl_group.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

// The type and the operator of one call, as NCCL names them.
struct NcclTypeAndOp {
  NcclDType dtype = NcclDType::kFloat32;
  NcclReduceOp op = NcclReduceOp::kSum;
};

}  // namespace

absl::Status NcclGroup::ReduceScatterCoalesced(absl::Span<const ReduceScatterCall> calls,
                                               ReduceOp op) {
  std::vector<Call> made;
  for (const ReduceScatterCall& call : calls) {
    DT_ASSIGN_OR_RETURN(made.emplace_back(),
                        MakeReduceScatter(call.input, call.output, op, call.options));
  }
  const bool plain = std::all_of(calls.begin(), calls.end(),
                                 [&](const ReduceScatterCall& call) { return IsPlain(call, op); });
  if (calls.size() < 2 || !plain) {
    for (size_t i = 0; i < calls.size(); ++i) {
      DT_RETURN_IF_ERROR(Start(made[i], calls[i].options).status());
    }
    return absl::OkStatus();
  }
  return StartTogether(made, calls, [&](Deadline deadline) -> absl::Status {
    std::vector<NcclTypeAndOp> names(calls.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      const DType dtype = calls[i].input.dtype;
      DT_ASSIGN_OR_RETURN(names[i].dtype, ToNcclDType(dtype));
      DT_ASSIGN_OR_RETURN(names[i].op, communicator_->ReduceOperator(op, dtype, deadline));
    }
    return communicator_->GroupCall(
        absl::StrCat("ncclReduceScatter of ", calls.size(), " buffers"),
        [&](NcclApi& nccl, NcclComm* comm) {
          NcclResult result = NcclResult::kSuccess;
          for (size_t i = 0; i < calls.size(); ++i) {
            const Buffer& output = calls[i].output;
            result = nccl.ReduceScatter(calls[i].input.data, output.data, output.count(),
                                        names[i].dtype, names[i].op, comm, stream_);
            if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
              break;
            }
          }
          return result;
        },
        deadline);
  });
}

absl::Status NcclGroup::StartTogether(absl::Span<const Call> calls,
                                      absl::Span<const ReduceScatterCall> given,
                                      absl::FunctionRef<absl::Status(Deadline)> queue) {
  std::lock_guard lock(start_mutex_);
  std::vector<NcclPending> all;
  for (const ReduceScatterCall& call : given) {
    all.push_back(WithLimits(call.options));
  }
  DT_RETURN_IF_ERROR(Admit(all.size(), all.front().deadline));
  const std::string what =
      absl::StrCat(calls.front().what, " and ", calls.size() - 1, " more in one call");
  for (size_t i = 0; i < calls.size(); ++i) {
    const absl::Status prepared = Prepare(calls[i], i, &all[i]);
    if (!prepared.ok()) {
      return Fail(what, prepared, absl::MakeConstSpan(all).first(i));
    }
  }
  const absl::Status queued = QueueTogether(given, all, queue);
  if (!queued.ok()) {
    return Fail(what, queued, all);
  }
  for (NcclPending& pending : all) {
    Watch(std::move(pending));
  }
  return absl::OkStatus();
}

// NCCL puts nothing on the stream before the end of its group, so all calls' first events are
// recorded before the group and all second ones behind it.
absl::Status NcclGroup::QueueTogether(absl::Span<const ReduceScatterCall> given,
                                      absl::Span<const NcclPending> all,
                                      absl::FunctionRef<absl::Status(Deadline)> queue) {
  CudaApi& cuda = *seams_.cuda;
  bool follows = false;  // Whether the stream waits for the compute stream already.
  for (const ReduceScatterCall& call : given) {
    if (call.options.after != nullptr || !follows) {
      DT_RETURN_IF_ERROR(FollowComputeStream(call.options.after));
    }
    follows = follows || call.options.after == nullptr;
  }
  for (const NcclPending& pending : all) {
    DT_RETURN_IF_ERROR(
        CudaStatus(cuda, cuda.EventRecord(pending.start, stream_), "cudaEventRecord"));
  }
  DT_RETURN_IF_ERROR(queue(all.front().deadline));
  for (const NcclPending& pending : all) {
    DT_RETURN_IF_ERROR(CudaStatus(cuda, cuda.EventRecord(pending.end, stream_), "cudaEventRecord"));
  }
  return absl::OkStatus();
}

}  // namespace dtrain::comm
