#include "runtime/checkpoint/journal/device_update.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "base/status.h"
#include "kernels/optimizer/step_verdict.h"
#include "runtime/checkpoint/journal/host_update.h"
#include "runtime/checkpoint/restore/shared_ranges.h"

namespace dtrain {
namespace {

// The journal's thread asks a device this often, which no step feels.
constexpr absl::Duration kAskDeviceEvery = absl::Microseconds(200);

absl::Status AwaitEvent(const DeviceEvent& event, Deadline deadline) {
  while (!event.Done() && !deadline.Expired()) {
    Clock::Real().Sleep(kAskDeviceEvery);
  }
  return event.Wait(deadline);
}

}  // namespace

std::shared_ptr<JournalUpdate> MakeJournalUpdate(const EngineState& engine,
                                                 std::vector<plan::OwnedRange> stored,
                                                 const JournalUpdateOptions& options) {
  if (engine.flat->device().is_host()) {
    return std::make_shared<HostJournalUpdate>(engine, std::move(stored), options);
  }
  return std::make_shared<DeviceJournalUpdate>(engine, std::move(stored), options);
}

DeviceJournalUpdate::DeviceJournalUpdate(const EngineState& engine,
                                         std::vector<plan::OwnedRange> stored,
                                         const JournalUpdateOptions& options)
    : engine_(engine), stored_(std::move(stored)), options_(options) {}

DeviceJournalUpdate::~DeviceJournalUpdate() {
  if (copies_ != nullptr) {  // The streams may still use this memory.
    copies_->Synchronize().IgnoreError();
    device().Synchronize().IgnoreError();
  }
}

size_t DeviceJournalUpdate::gradient_bytes() const {
  return static_cast<size_t>(ElementsOf(stored_)) * DTypeBytes(options_.dtype);
}

absl::Status DeviceJournalUpdate::Allocate() {
  DT_ASSIGN_OR_RETURN(rounded_, DeviceEvent::Create(device(), /*timing=*/false));
  DT_ASSIGN_OR_RETURN(copies_, DeviceStream::Create(device()));
  for (Slot& slot : slots_) {
    if (const absl::Status made = AllocateSlot(slot); !made.ok()) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "there is no page-locked memory for two steps' gradients of %d bytes on this host (%s)",
          gradient_bytes(), made.message()));
    }
  }
  DT_ASSIGN_OR_RETURN(
      part_, DeviceMemory::Create(device(), gradient_bytes(), "the step journal's gradient"));
  return absl::OkStatus();
}

absl::Status DeviceJournalUpdate::AllocateSlot(Slot& slot) const {
  DT_ASSIGN_OR_RETURN(slot.copied, DeviceEvent::Create(device(), /*timing=*/false));
  DT_ASSIGN_OR_RETURN(slot.landed, DeviceEvent::Create(device(), /*timing=*/false));
  DT_ASSIGN_OR_RETURN(slot.verdict,
                      PinnedMemory::Create(device(), sizeof(kernels::StepVerdictNumbers)));
  DT_ASSIGN_OR_RETURN(slot.gradient, PinnedMemory::Create(device(), gradient_bytes()));
  return absl::OkStatus();
}

void DeviceJournalUpdate::Listen(StepHooks& hooks) {
  hooks.gradient_reduced = [weak = weak_from_this()](const ReducedOnDevice& reduced) {
    const auto self = weak.lock();
    return self != nullptr ? self->Reduced(reduced) : absl::OkStatus();
  };
}

int64_t DeviceJournalUpdate::Writes() const {
  int64_t writes = 0;
  for (const at::Tensor& parameter : engine_.flat->parameters()) {
    writes += parameter._version();
  }
  return writes;
}

bool DeviceJournalUpdate::FindsWritten() {
  const auto left = std::exchange(left_, std::nullopt);
  return left.has_value() && *left != Writes();
}

void DeviceJournalUpdate::Begin(const StepEnd& end, bool keeps) {
  end_ = end;
  keeps_ = keeps;
  slot_ = 1 - slot_;
  queued_ = absl::OkStatus();
}

absl::Status DeviceJournalUpdate::Reduced(const ReducedOnDevice& reduced) {
  reduced_ = reduced;
  if (!end_.updates()) {  // The host knows that no weight changes.
    return absl::OkStatus();
  }
  if (keeps_ && last_copy_ != nullptr) {
    DT_RETURN_IF_ERROR(
        device().Check(device().api().StreamWaitEvent(device().stream(), last_copy_->handle()),
                       "cudaStreamWaitEvent"));
  }
  DT_RETURN_IF_ERROR(Round(reduced.gradient));
  if (keeps_) {
    queued_ = QueueCopy();
  }
  return absl::OkStatus();
}

// An update takes all that this rank owns, of which `stored_` is a part.
absl::Status DeviceJournalUpdate::Round(const GradientMemory& gradient) {
  const bool narrow = options_.dtype == DType::kBFloat16;
  const size_t width = DTypeBytes(options_.dtype);
  absl::Status status;
  for (const plan::OwnedRange& own : engine_.owned) {
    const auto round = [&](plan::FlatRange part, int64_t kept) {
      float* const values = gradient.at(part.begin, own.local_of(part.begin));
      void* const to = kept < 0 || !keeps_ ? nullptr
                                           : static_cast<std::byte*>(part_->data()) +
                                                 static_cast<size_t>(kept) * width;
      if (narrow) {
        status.Update(device().kernels().round_to_bf16(
            part.elements(), values, values, static_cast<BFloat16*>(to), device().kernel_stream()));
      } else if (to != nullptr) {
        status.Update(
            device().Copy(to, values, static_cast<size_t>(part.elements()) * sizeof(float)));
      }
    };
    ForStoredParts(stored_, own.flat, round);
  }
  return status;
}

absl::Status DeviceJournalUpdate::QueueCopy() {
  const Slot& slot = slots_[slot_];
  DT_RETURN_IF_ERROR(rounded_->Record());
  DT_RETURN_IF_ERROR(copies_->WaitFor(*rounded_));
  last_copy_ = slot.copied.get();
  DT_RETURN_IF_ERROR(copies_->Copy(slot.gradient->data(), part_->data(), gradient_bytes()));
  return copies_->Record(*slot.copied);
}

bool DeviceJournalUpdate::End() {
  left_ = Writes();
  if (keeps_) {
    const Slot& slot = slots_[slot_];
    queued_.Update(
        device().Copy(slot.verdict->data(), reduced_.verdict, sizeof(kernels::StepVerdictNumbers)));
    queued_.Update(slot.landed->Record());
  }
  return false;  // The writes since the update before were found ahead of this one.
}

absl::Status DeviceJournalUpdate::AwaitSlot(const Slot& slot, bool with_gradient) const {
  const Deadline deadline = Deadline::After(options_.timeout);
  DT_RETURN_IF_ERROR(AwaitEvent(*slot.landed, deadline));
  return with_gradient ? AwaitEvent(*slot.copied, deadline) : absl::OkStatus();
}

LateUpdate DeviceJournalUpdate::Take() {
  return [this, slot = &slots_[slot_], end = end_, queued = queued_,
          reduced = reduced_]() -> absl::StatusOr<KeptUpdate> {
    DT_RETURN_IF_ERROR(queued);
    return Read(*slot, end, reduced);
  };
}

absl::StatusOr<KeptUpdate> DeviceJournalUpdate::Read(const Slot& slot, StepEnd end,
                                                     const ReducedOnDevice& reduced) const {
  DT_RETURN_IF_ERROR(device().Check(device().api().SetDevice(device().place().index),
                                    "cudaSetDevice"));  // The thread's own.
  DT_RETURN_IF_ERROR(AwaitSlot(slot, end.updates()));
  DT_RETURN_IF_ERROR(reduced.health());  // Results of a broken collective are worthless.
  kernels::StepVerdictNumbers verdict;
  std::memcpy(&verdict, slot.verdict->data(), sizeof(verdict));
  end.loss_sum = verdict.loss_sum;
  end.sum_of_squares = verdict.sum_of_squares;
  end.finite = end.count == 0 || verdict.skip == 0;
  KeptUpdate kept{std::move(end), {}};
  if (kept.end.updates()) {
    kept.gradient = {static_cast<const std::byte*>(slot.gradient->data()), gradient_bytes()};
  }
  return kept;
}

void DeviceJournalUpdate::Await() {
  if (keeps_ && queued_.ok()) {
    AwaitSlot(slots_[slot_], end_.updates()).IgnoreError();  // The thread finds the same.
  }
}

}  // namespace dtrain
