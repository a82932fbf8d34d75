#include "comm/nccl/nccl_communicator.h"

#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/float16.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(50);

// `value` as the scalar of type `dtype` that NCCL reads.
std::array<char, 8> Scalar(double value, DType dtype) {
  std::array<char, 8> bytes = {};
  const auto put = [&bytes](auto scalar) { std::memcpy(bytes.data(), &scalar, sizeof(scalar)); };
  switch (dtype) {
    case DType::kBFloat16:
      put(ToBFloat16(static_cast<float>(value)));
      break;
    case DType::kFloat16:
      put(ToFloat16(static_cast<float>(value)));
      break;
    case DType::kFloat64:
      put(value);
      break;
    default:
      put(static_cast<float>(value));
  }
  return bytes;
}

}  // namespace

absl::Status NcclCommunicator::GoneError(absl::string_view what) {
  return absl::AbortedError(absl::StrCat(what, ": the NCCL communicator was aborted"));
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Create(
    NcclApi* api, absl::Span<const NcclUniqueId> ids, int rank, int ranks, const std::string& name,
    Deadline deadline) {
  const bool scalable = ids.size() > 1;
  const std::string what =
      absl::StrCat(scalable ? "ncclCommInitRankScalable of \"" : "ncclCommInitRankConfig of \"",
                   name, "\", rank ", rank, " of ", ranks);
  NcclComm* comm = nullptr;
  const NcclResult result = scalable
                                ? api->CommInitRankScalable(&comm, ranks, ids, rank, name.c_str())
                                : api->CommInitRankConfig(&comm, ranks, ids[0], rank, name.c_str());
  DT_RETURN_IF_ERROR(NcclStatus(*api, result, nullptr, what));
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api, comm, rank, ranks));
  DT_RETURN_IF_ERROR(made->Settle(what, deadline));
  return made;
}

NcclCommunicator::~NcclCommunicator() { Abort(); }

absl::Status NcclCommunicator::Settle(absl::string_view what, Deadline deadline) {
  while (true) {
    {
      std::lock_guard lock(mutex_);
      if (comm_ == nullptr) {
        return GoneError(what);
      }
      NcclResult state = NcclResult::kSuccess;
      const NcclResult asked = api_->CommGetAsyncError(comm_, &state);
      const NcclResult result = asked == NcclResult::kSuccess ? state : asked;
      if (result != NcclResult::kInProgress) {
        return NcclStatus(*api_, result, comm_, what);
      }
    }
    if (deadline.Expired()) {
      return absl::DeadlineExceededError(
          absl::StrCat(what, ": NCCL still says \"in progress\" at the deadline"));
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::Status NcclCommunicator::Call(absl::string_view what,
                                    absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                                    Deadline deadline) {
  std::lock_guard alone(call_mutex_);
  NcclResult result = NcclResult::kSuccess;
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return GoneError(what);
    }
    result = call(*api_, comm_);
    DT_RETURN_IF_ERROR(NcclStatus(*api_, result, comm_, what));
  }
  return result == NcclResult::kInProgress ? Settle(what, deadline) : absl::OkStatus();
}

absl::Status NcclCommunicator::GroupCall(absl::string_view what,
                                         absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                                         Deadline deadline) {
  return Call(
      what,
      [&call](NcclApi& api, NcclComm* comm) {
        const NcclResult started = api.GroupStart();
        if (started != NcclResult::kSuccess) {
          return started;
        }
        const NcclResult queued = call(api, comm);
        const NcclResult ended = api.GroupEnd();  // Also after an error: the group must close.
        return queued == NcclResult::kSuccess || queued == NcclResult::kInProgress ? ended : queued;
      },
      deadline);
}

absl::Status NcclCommunicator::AsyncError() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return absl::OkStatus();
  }
  NcclResult state = NcclResult::kSuccess;
  const NcclResult asked = api_->CommGetAsyncError(comm_, &state);
  return NcclStatus(*api_, asked == NcclResult::kSuccess ? state : asked, comm_,
                    "NCCL reports an error");
}

absl::StatusOr<NcclReduceOp> NcclCommunicator::ReduceOperator(ReduceOp op, DType dtype,
                                                              Deadline deadline) {
  switch (op) {
    case ReduceOp::kSum:
      return NcclReduceOp::kSum;
    case ReduceOp::kMax:
      return NcclReduceOp::kMax;
    case ReduceOp::kMin:
      return NcclReduceOp::kMin;
    case ReduceOp::kAverage:
      break;
  }
  if (!IsFloating(dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("average of ", DTypeName(dtype), "; allowed: fp32, bf16, fp16, fp64"));
  }
  {
    std::lock_guard lock(mutex_);
    if (const auto found = averages_.find(dtype); found != averages_.end()) {
      return found->second;
    }
  }
  DT_ASSIGN_OR_RETURN(const NcclDType type, ToNcclDType(dtype));
  const auto scalar = Scalar(1.0 / ranks_, dtype);
  NcclReduceOp made = NcclReduceOp::kSum;
  DT_RETURN_IF_ERROR(Call(
      "ncclRedOpCreatePreMulSum",
      [&](NcclApi& api, NcclComm* comm) {
        const NcclResult result = api.RedOpCreatePreMulSum(&made, scalar.data(), type, comm);
        if (result == NcclResult::kSuccess) {
          averages_.emplace(dtype, made);  // Under mutex_, as `call` always is.
        }
        return result;
      },
      deadline));
  return made;
}

absl::StatusOr<void*> NcclCommunicator::Register(void* data, size_t bytes, Deadline deadline) {
  void* handle = nullptr;
  DT_RETURN_IF_ERROR(Call(
      "ncclCommRegister",
      [&](NcclApi& api, NcclComm* comm) {
        const NcclResult result = api.CommRegister(comm, data, bytes, &handle);
        if (result == NcclResult::kSuccess) {
          registrations_.insert(handle);
        }
        return result;
      },
      deadline));
  return handle;
}

void NcclCommunicator::Deregister(void* handle) {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr || registrations_.erase(handle) == 0) {
    return;
  }
  const NcclResult result = api_->CommDeregister(comm_, handle);
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    DT_LOG(Warning) << "ncclCommDeregister: " << api_->ErrorString(result);
  }
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Split(int color, int key,
                                                                          Deadline deadline) {
  const std::string what = absl::StrCat("ncclCommSplit into colour ", color, " with key ", key);
  NcclComm* split = nullptr;
  // The new handle is valid once the parent has settled, which Call waits for.
  DT_RETURN_IF_ERROR(Call(
      what, [&](NcclApi& api, NcclComm* comm) { return api.CommSplit(comm, color, key, &split); },
      deadline));
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api_, split, 0, 1));
  DT_RETURN_IF_ERROR(made->Settle(what, deadline));
  std::lock_guard lock(made->mutex_);
  DT_RETURN_IF_ERROR(
      NcclStatus(*api_, api_->CommShape(split, &made->rank_, &made->ranks_), split, what));
  return made;
}

void NcclCommunicator::DropHandles() {
  for (void* const handle : registrations_) {
    (void)api_->CommDeregister(comm_, handle);
  }
  registrations_.clear();
  for (const auto& [dtype, op] : averages_) {
    (void)api_->RedOpDestroy(op, comm_);
  }
  averages_.clear();
}

absl::Status NcclCommunicator::Close(Deadline deadline) {
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return absl::OkStatus();
    }
    DropHandles();
  }
  absl::Status finalized = Call(
      "ncclCommFinalize", [](NcclApi& api, NcclComm* comm) { return api.CommFinalize(comm); },
      deadline);
  if (!finalized.ok()) {
    Abort();
    return finalized;
  }
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return GoneError("ncclCommDestroy");
  }
  const NcclResult result = api_->CommDestroy(std::exchange(comm_, nullptr));
  return NcclStatus(*api_, result, nullptr, "ncclCommDestroy");
}

void NcclCommunicator::Abort() {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return;
  }
  DropHandles();
  const NcclResult result = api_->CommAbort(std::exchange(comm_, nullptr));
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    DT_LOG(Warning) << "ncclCommAbort: " << api_->ErrorString(result);
  }
}

}  // namespace dtrain::comm
