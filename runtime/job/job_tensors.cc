// Job's collectives on tensors of the program's own, and its request for an early end.
#include <algorithm>
#include <exception>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "dtrain/job.h"
#include "runtime/job/exception_status.h"
#include "runtime/job/gather_texts.h"
#include "runtime/job/job_state.h"

namespace dtrain {
namespace {

// Values of all ranks are reduced in blocks of this size, so that memory is bounded.
constexpr int64_t kReducedBytes = int64_t{1} << 20;

std::string DescribeTensor(const at::Tensor& tensor, const std::string& more) {
  return absl::StrFormat("a tensor [%s] of %s%s", absl::StrJoin(tensor.sizes(), ", "),
                         c10::toString(tensor.scalar_type()), more);
}

absl::Status CheckSameTensor(Job& job, const char* call, const at::Tensor& tensor,
                             const std::string& more) {
  const std::string mine = tensor.defined() ? DescribeTensor(tensor, more) : "an undefined tensor";
  DT_RETURN_IF_ERROR(CheckSameOnRanks(
      job, mine, [&](const std::string& first, const std::string& other, int rank) {
        return absl::StrFormat("%s got %s on rank 0 and %s on rank %d; give the same on every rank",
                               call, first, other, rank);
      }));
  return tensor.defined() ? absl::OkStatus()
                          : absl::InvalidArgumentError(
                                absl::StrCat(call, " got an undefined tensor on every rank"));
}

bool IsReducible(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf ||
         type == at::kLong || type == at::kInt;
}

const char* ReductionName(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum:
      return "sum";
    case Reduction::kMean:
      return "mean";
    case Reduction::kMin:
      return "minimum";
    case Reduction::kMax:
      return "maximum";
  }
  return "";
}

comm::Buffer TensorBuffer(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), tensor.nbytes(), DType::kUInt8, {}};
}

// `values` [world, n] -> [n]. Sums are taken in rank order, in a type that holds them.
at::Tensor ReduceRanks(const at::Tensor& values, Reduction reduction) {
  if (reduction == Reduction::kMin) {
    return at::amin(values, {0});
  }
  if (reduction == Reduction::kMax) {
    return at::amax(values, {0});
  }
  const bool narrow = values.scalar_type() == at::kBFloat16 || values.scalar_type() == at::kHalf;
  at::Tensor sum = values[0].to(narrow ? at::kFloat : values.scalar_type(), /*non_blocking=*/false,
                                /*copy=*/true);
  for (int64_t rank = 1; rank < values.size(0); ++rank) {
    sum.add_(values[rank]);
  }
  return reduction == Reduction::kMean ? sum.div_(values.size(0)) : sum;
}

absl::Status AllReduceFlat(comm::Group& group, const at::Tensor& flat, Reduction reduction) {
  const int64_t ranks = group.size();
  const int64_t block =
      std::max<int64_t>(1, kReducedBytes / (ranks * static_cast<int64_t>(flat.element_size())));
  for (int64_t begin = 0; begin < flat.numel(); begin += block) {
    const at::Tensor mine = flat.narrow(0, begin, std::min(block, flat.numel() - begin));
    const at::Tensor all = at::empty({group.size(), mine.numel()}, flat.options());
    DT_ASSIGN_OR_RETURN(const comm::Work work,
                        group.AllGather(TensorBuffer(mine), TensorBuffer(all),
                                        {.name = "Job::AllReduce", .caller_waits = true}));
    DT_RETURN_IF_ERROR(work.Wait());
    mine.copy_(ReduceRanks(all, reduction));
  }
  return absl::OkStatus();
}

// Runs `act` on the tensor's values in one row of host memory, which then are the tensor's.
template <typename Act>
absl::Status OnHostRow(const char* where, const at::Tensor& tensor, Act act) {
  try {
    const at::NoGradGuard no_grad;
    const at::Tensor row = tensor.detach().to(at::kCPU).contiguous().view({-1});
    DT_RETURN_IF_ERROR(act(row));
    if (!row.is_alias_of(tensor)) {
      tensor.detach().copy_(row.view(tensor.sizes()));
    }
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return FromException(where, error);
  }
}

}  // namespace

absl::Status Job::AllReduce(const at::Tensor& tensor, Reduction reduction) {
  DT_RETURN_IF_ERROR(CheckSameTensor(*this, "Job::AllReduce", tensor,
                                     absl::StrCat(" for the ", ReductionName(reduction))));
  const at::ScalarType type = tensor.scalar_type();
  if (!IsReducible(type) || (reduction == Reduction::kMean && !c10::isFloatingType(type))) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Job::AllReduce cannot take the %s of %s; allowed: Double, Float, BFloat16 and Half, and "
        "but for the mean Long and Int",
        ReductionName(reduction), c10::toString(type)));
  }
  return OnHostRow("in Job::AllReduce", tensor,
                   [&](const at::Tensor& row) { return AllReduceFlat(group(), row, reduction); });
}

absl::Status Job::Broadcast(const at::Tensor& tensor, int root) {
  DT_RETURN_IF_ERROR(
      CheckSameTensor(*this, "Job::Broadcast", tensor, absl::StrCat(" from rank ", root)));
  if (root < 0 || root >= world_size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "Job::Broadcast got the root %d; allowed: 0 to %d", root, world_size() - 1));
  }
  if (tensor.numel() == 0) {
    return absl::OkStatus();
  }
  return OnHostRow("in Job::Broadcast", tensor, [&](const at::Tensor& row) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const comm::Work work,
                        group().Broadcast(TensorBuffer(row), root,
                                          {.name = "Job::Broadcast", .caller_waits = true}));
    return work.Wait();
  });
}

absl::Status Job::Barrier() {
  return group().Barrier(Deadline::After(absl::Seconds(config().comm_timeout_seconds())));
}

void Job::Stop(const std::string& reason) {
  state_->stop_reason = reason.empty() ? "no reason given" : reason;
}

}  // namespace dtrain
