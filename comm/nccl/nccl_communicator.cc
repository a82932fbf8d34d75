#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/numeric/float16.h"
#include "base/status.h"
#include "comm/nccl/nccl_abort.h"
#include "comm/nccl/nccl_status.h"

namespace dtrain::comm {
namespace {

// NCCL starts a thread for each call of a non-blocking communicator (groupLaunchNonBlocking in
// src/group.cc of NCCL 2.28.9), which takes some 50 us. The polls before the first sleep last about
// twice that.
constexpr int kPollsAwake = 256;
constexpr auto kPollInterval = std::chrono::microseconds(50);
constexpr int kNoColor = -1;  // NCCL_SPLIT_NOCOLOR.

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
  const auto kept = std::make_shared<const std::string>(name);
  NcclComm* comm = nullptr;
  const NcclResult result =
      scalable ? api->CommInitRankScalable(&comm, ranks, ids, rank, kept->c_str())
               : api->CommInitRankConfig(&comm, ranks, ids[0], rank, kept->c_str());
  DT_RETURN_IF_ERROR(NcclStatus(*api, result, nullptr, what));
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api, comm, rank, ranks, kept));
  const absl::Status settled = made->Settle(what, deadline);
  if (!settled.ok()) {
    AbortOrEndProcess(std::move(made), kAbortBound, what);
    return settled;
  }
  return made;
}

NcclCommunicator::~NcclCommunicator() { Abort(); }

absl::Status NcclCommunicator::Settle(absl::string_view what, Deadline deadline) {
  for (int polls = 0;; ++polls) {
    {
      std::lock_guard lock(mutex_);
      if (ending_ || comm_ == nullptr) {
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
    if (polls < kPollsAwake) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

absl::Status NcclCommunicator::Call(absl::string_view what,
                                    absl::FunctionRef<NcclResult(NcclApi&, NcclComm*)> call,
                                    Deadline deadline) {
  std::lock_guard alone(call_mutex_);
  NcclResult result = NcclResult::kSuccess;
  {
    std::lock_guard lock(mutex_);
    if (ending_ || comm_ == nullptr) {
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
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || comm_ == nullptr) {
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
        if (result == NcclResult::kSuccess && handle != nullptr) {  // Null: NCCL keeps nothing.
          ++registrations_[handle];
        }
        return result;
      },
      deadline));
  return handle;
}

void NcclCommunicator::Deregister(void* handle) {
  // NCCL's thread of a call under way reads the registrations.
  std::lock_guard alone(call_mutex_);
  std::lock_guard lock(mutex_);
  const auto found = registrations_.find(handle);
  if (ending_ || comm_ == nullptr || found == registrations_.end()) {
    return;
  }
  if (--found->second == 0) {
    registrations_.erase(found);
  }
  const NcclResult result = api_->CommDeregister(comm_, handle);
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    DT_LOG(Warning) << "ncclCommDeregister: " << api_->ErrorString(result);
  }
}

absl::StatusOr<std::unique_ptr<NcclCommunicator>> NcclCommunicator::Split(int color, int key,
                                                                          Deadline deadline) {
  const std::string what = absl::StrCat("ncclCommSplit into colour ", color, " with key ", key);
  // NCCL stores the new communicator there before this one has settled, which Call waits for.
  NcclComm** slot = nullptr;
  DT_RETURN_IF_ERROR(Call(
      what,
      [&](NcclApi& api, NcclComm* comm) {
        slot = splits_.emplace_back(std::make_unique<NcclComm*>(nullptr)).get();
        return api.CommSplit(comm, std::max(color, kNoColor), key, slot);
      },
      deadline));
  DT_ASSIGN_OR_RETURN(NcclComm* const split, TakeSplit(what, slot));
  if (split == nullptr) {
    return nullptr;
  }
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api_, split, 0, 1, name_));
  const absl::Status settled = made->Settle(what, deadline);
  if (!settled.ok()) {
    AbortOrEndProcess(std::move(made), kAbortBound, what);
    return settled;
  }
  std::lock_guard lock(made->mutex_);
  DT_RETURN_IF_ERROR(
      NcclStatus(*api_, api_->CommShape(split, &made->rank_, &made->ranks_), split, what));
  return made;
}

absl::StatusOr<NcclComm*> NcclCommunicator::TakeSplit(absl::string_view what, NcclComm** slot) {
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return GoneError(what);  // Abort ends what the split made too.
  }
  const auto found = std::find_if(splits_.begin(), splits_.end(),
                                  [slot](const auto& kept) { return kept.get() == slot; });
  NcclComm* const made = **found;
  splits_.erase(found);
  return made;
}

void NcclCommunicator::DropHandles() {
  for (const auto& [handle, uses] : registrations_) {
    for (int use = 0; use < uses; ++use) {
      (void)api_->CommDeregister(comm_, handle);
    }
  }
  registrations_.clear();
  for (const auto& [dtype, op] : averages_) {
    (void)api_->RedOpDestroy(op, comm_);
  }
  averages_.clear();
}

absl::Status NcclCommunicator::Close(Deadline deadline) {
  {
    std::lock_guard alone(call_mutex_);
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return absl::OkStatus();
    }
    if (!ending_) {
      DropHandles();
    }
  }
  DT_RETURN_IF_ERROR(Call(
      "ncclCommFinalize", [](NcclApi& api, NcclComm* comm) { return api.CommFinalize(comm); },
      deadline));
  std::lock_guard lock(mutex_);
  if (comm_ == nullptr) {
    return GoneError("ncclCommDestroy");
  }
  gone_ = true;
  const NcclResult result = api_->CommDestroy(std::exchange(comm_, nullptr));
  return NcclStatus(*api_, result, nullptr, "ncclCommDestroy");
}

void NcclCommunicator::Abort() {
  ending_ = true;
  NcclComm* comm = nullptr;
  std::vector<std::unique_ptr<NcclComm*>> splits;
  {
    std::lock_guard lock(mutex_);
    if (comm_ == nullptr) {
      return;
    }
    registrations_.clear();
    averages_.clear();
    comm = std::exchange(comm_, nullptr);  // No other thread reaches it from now on.
    gone_ = true;
    splits.swap(splits_);
  }
  AbortOne(comm);
  // Its jobs have ended. A split whose caller gave up may have left a communicator, perhaps an
  // unfinished one.
  for (const auto& slot : splits) {
    if (*slot != nullptr) {
      AbortOne(*slot);
    }
  }
}

void NcclCommunicator::AbortOne(NcclComm* comm) {
  const NcclResult result = api_->CommAbort(comm);
  if (result != NcclResult::kSuccess && result != NcclResult::kInProgress) {
    DT_LOG(Warning) << "ncclCommAbort: " << api_->ErrorString(result);
  }
}

}  // namespace dtrain::comm
