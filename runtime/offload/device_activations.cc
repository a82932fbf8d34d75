#include "runtime/offload/device_activations.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "runtime/device/device_stream.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain {
namespace {

// Sizes of page-locked memory: an eighth of their power of two apart, so that batches of varying
// length find memory that fits; what is more than twice as large is left for others.
constexpr size_t kSmallestStep = 4096;
constexpr size_t kStepsOfPower = 8;
constexpr size_t kSpareMax = 2;
// How much page-locked memory is kept, as a multiple of the most that was in use at once: batches
// of other lengths leave behind sizes that none asks for again.
constexpr size_t kPinnedMax = 2;

size_t PlaceBytes(size_t bytes) {
  const size_t step = std::max(kSmallestStep, std::bit_floor(bytes) / kStepsOfPower);
  return (bytes + step - 1) / step * step;
}

}  // namespace

class DeviceActivations::Kept final : public ActivationStore::Kept {
 public:
  Kept(std::shared_ptr<Tier> tier, const at::Tensor& tensor);
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() override;

  enum class State {
    kLeaving,  // Near; its copy to the place is queued, and the compute stream does not wait yet.
    kFar,      // In its place alone.
    kComing,   // In its place; the copy from there to `near` is queued.
    kStays,    // Near alone: there was no place, or a copy failed.
  };
  const std::shared_ptr<Tier> tier;
  const std::vector<int64_t> sizes;
  const std::vector<int64_t> strides;
  const at::ScalarType type;
  const size_t bytes;

  // Guarded by the tier's mutex.
  State state = State::kStays;
  at::Tensor near;
  std::unique_ptr<Place> place;  // Null: none.
  std::list<Kept*>::iterator order;
};

// Page-locked memory, and what was queued with it last.
struct DeviceActivations::Place {
  size_t bytes = 0;
  std::unique_ptr<PinnedMemory> memory;
  std::unique_ptr<DeviceEvent> written;  // On the stream of copies that leave.
  std::unique_ptr<DeviceEvent> read;     // On the stream of copies that come.
  uint64_t freed = 0;                    // Its number among the places that were given back.
};

class DeviceActivations::Tier {
 public:
  Tier(const Device& device, bool wait_written)
      : device_(device.Again()),
        leaving_max_(wait_written ? 0 : static_cast<size_t>(plan::kActivationsInFlight)) {}
  ~Tier() { Synchronize().IgnoreError(); }  // Copies still use the memory.
  absl::Status Open();

  const Device& device() const { return *device_; }
  void Put(Kept& kept);
  at::Tensor Get(Kept& kept);
  void Remove(Kept& kept);
  absl::Status Synchronize() const;

  absl::Status status() const;
  int64_t far_bytes() const;
  int64_t TakePeakFarBytes();

 private:
  // REQUIRES: the mutex is held.
  absl::Status Send(Kept& kept);
  void LetGo(Kept& kept);
  void Fetch(Kept& kept);
  absl::Status QueueFetch(const Kept& kept, const at::Tensor& near) const;
  // Later work of `stream` comes after what the compute stream holds now.
  absl::Status Follow(const DeviceStream& stream) const;
  absl::Status ComputeAfter(const DeviceEvent& event) const;
  absl::StatusOr<std::unique_ptr<Place>> TakePlace(size_t bytes);
  absl::StatusOr<std::unique_ptr<Place>> MakePlace(size_t bytes) const;
  void GiveBack(std::unique_ptr<Place> place);
  // Gives up memory that is free, the longest ago first, until at most `bytes` are left in all.
  // Waits where a copy still uses it.
  absl::Status KeepAtMost(size_t bytes);

  const std::unique_ptr<Device> device_;
  const size_t leaving_max_;
  std::unique_ptr<DeviceStream> out_;
  std::unique_ptr<DeviceStream> in_;
  std::unique_ptr<DeviceEvent> now_;  // The end of the compute stream, recorded again and again.

  mutable std::mutex mutex_;
  absl::Status status_;
  std::list<Kept*> order_;                              // In the order of Put.
  std::deque<Kept*> leaving_;                           // The longest ago first.
  std::multimap<size_t, std::unique_ptr<Place>> free_;  // By bytes.
  // Bytes of places: in use, the most at once, free.
  size_t used_ = 0;
  size_t used_most_ = 0;
  size_t free_bytes_ = 0;
  uint64_t freed_ = 0;  // Places that were given back.
  int64_t far_bytes_ = 0;
  int64_t peak_far_bytes_ = 0;
};

DeviceActivations::Kept::Kept(std::shared_ptr<Tier> owner, const at::Tensor& tensor)
    : tier(std::move(owner)),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      type(tensor.scalar_type()),
      bytes(tensor.nbytes()),
      near(tensor.detach()) {
  tier->Put(*this);
}

DeviceActivations::Kept::~Kept() { tier->Remove(*this); }

absl::Status DeviceActivations::Tier::Open() {
  DT_ASSIGN_OR_RETURN(now_, DeviceEvent::Create(*device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(out_, DeviceStream::Create(*device_));
  DT_ASSIGN_OR_RETURN(in_, DeviceStream::Create(*device_));
  return absl::OkStatus();
}

absl::Status DeviceActivations::Tier::Synchronize() const {
  absl::Status status;
  for (const auto* stream : {&out_, &in_}) {
    if (*stream != nullptr) {
      status.Update((*stream)->Synchronize());
    }
  }
  return status;
}

absl::Status DeviceActivations::Tier::Follow(const DeviceStream& stream) const {
  DT_RETURN_IF_ERROR(now_->Record());
  return stream.WaitFor(*now_);
}

absl::Status DeviceActivations::Tier::ComputeAfter(const DeviceEvent& event) const {
  return device_->Check(device_->api().StreamWaitEvent(device_->stream(), event.handle()),
                        "cudaStreamWaitEvent");
}

absl::StatusOr<std::unique_ptr<DeviceActivations::Place>> DeviceActivations::Tier::MakePlace(
    size_t bytes) const {
  auto place = std::make_unique<Place>();
  place->bytes = PlaceBytes(bytes);
  DT_ASSIGN_OR_RETURN(place->memory, PinnedMemory::Create(*device_, place->bytes));
  DT_ASSIGN_OR_RETURN(place->written, DeviceEvent::Create(*device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(place->read, DeviceEvent::Create(*device_, /*timing=*/false));
  return place;
}

absl::Status DeviceActivations::Tier::KeepAtMost(size_t bytes) {
  while (!free_.empty() && used_ + free_bytes_ > bytes) {
    const auto oldest = std::min_element(
        free_.begin(), free_.end(),
        [](const auto& a, const auto& b) { return a.second->freed < b.second->freed; });
    const Place& place = *oldest->second;
    if (!place.written->Done() || !place.read->Done()) {
      DT_RETURN_IF_ERROR(Synchronize());
    }
    free_bytes_ -= place.bytes;
    free_.erase(oldest);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DeviceActivations::Place>> DeviceActivations::Tier::TakePlace(
    size_t bytes) {
  std::unique_ptr<Place> place;
  if (const auto found = free_.lower_bound(bytes);
      found != free_.end() && found->first <= kSpareMax * bytes) {
    place = std::move(free_.extract(found).mapped());
    free_bytes_ -= place->bytes;
  } else {
    const size_t wanted = PlaceBytes(bytes);
    DT_RETURN_IF_ERROR(KeepAtMost(kPinnedMax * std::max(used_most_, used_ + wanted) - wanted));
    auto made = MakePlace(bytes);
    if (!made.ok() && !free_.empty()) {
      DT_RETURN_IF_ERROR(KeepAtMost(0));  // Memory of other sizes is given up.
      made = MakePlace(bytes);
    }
    if (!made.ok()) {
      return absl::Status(
          made.status().code(),
          absl::StrCat("activation_checkpointing.cpu_checkpointing: ", made.status().message()));
    }
    place = *std::move(made);
  }
  used_ += place->bytes;
  used_most_ = std::max(used_most_, used_);
  return place;
}

void DeviceActivations::Tier::GiveBack(std::unique_ptr<Place> place) {
  const size_t bytes = place->bytes;
  place->freed = ++freed_;
  used_ -= bytes;
  free_bytes_ += bytes;
  free_.emplace(bytes, std::move(place));
}

absl::Status DeviceActivations::Tier::Send(Kept& kept) {
  DT_ASSIGN_OR_RETURN(kept.place, TakePlace(kept.bytes));
  const Place& place = *kept.place;
  DT_RETURN_IF_ERROR(Follow(*out_));
  DT_RETURN_IF_ERROR(
      out_->WaitFor(*place.read));  // The place may still be read for the tensor before.
  DT_RETURN_IF_ERROR(out_->Copy(place.memory->data(), kept.near.const_data_ptr(), kept.bytes));
  return out_->Record(*place.written);
}

void DeviceActivations::Tier::Put(Kept& kept) {
  std::lock_guard lock(mutex_);
  kept.order = order_.insert(order_.end(), &kept);
  bool capturing = false;
  absl::Status sent = device_->Check(
      device_->api().StreamIsCapturing(device_->stream(), &capturing), "cudaStreamIsCapturing");
  if (capturing) {
    return;
  }
  if (sent.ok()) {
    sent = Send(kept);
  }
  status_.Update(sent);
  if (!sent.ok()) {
    return;
  }
  kept.state = Kept::State::kLeaving;
  far_bytes_ += static_cast<int64_t>(kept.bytes);
  peak_far_bytes_ = std::max(peak_far_bytes_, far_bytes_);
  leaving_.push_back(&kept);
  while (leaving_.size() > leaving_max_) {
    LetGo(*leaving_.front());
    leaving_.pop_front();
  }
}

// Gives the tensor's memory to the work that is queued from now on.
void DeviceActivations::Tier::LetGo(Kept& kept) {
  const absl::Status waits = ComputeAfter(*kept.place->written);
  status_.Update(waits);
  kept.state = waits.ok() ? Kept::State::kFar : Kept::State::kStays;
  if (waits.ok()) {
    kept.near.reset();
  } else {
    far_bytes_ -= static_cast<int64_t>(kept.bytes);
  }
}

absl::Status DeviceActivations::Tier::QueueFetch(const Kept& kept, const at::Tensor& near) const {
  const Place& place = *kept.place;
  DT_RETURN_IF_ERROR(Follow(*in_));  // Earlier work may still use the memory of `near`.
  DT_RETURN_IF_ERROR(in_->WaitFor(*place.written));
  DT_RETURN_IF_ERROR(in_->Copy(near.mutable_data_ptr(), place.memory->data(), kept.bytes));
  return in_->Record(*place.read);
}

void DeviceActivations::Tier::Fetch(Kept& kept) {
  if (kept.state != Kept::State::kFar) {
    return;
  }
  const at::Tensor near = at::empty_strided(
      kept.sizes, kept.strides, at::TensorOptions(kept.type).device(device_->tensors()));
  const absl::Status queued = QueueFetch(kept, near);
  status_.Update(queued);
  kept.near = near;
  kept.state = Kept::State::kComing;
  if (!queued.ok()) {
    kept.near.zero_();
    kept.state = Kept::State::kStays;
    far_bytes_ -= static_cast<int64_t>(kept.bytes);
  }
}

at::Tensor DeviceActivations::Tier::Get(Kept& kept) {
  std::lock_guard lock(mutex_);
  int64_t ahead = plan::kActivationsReadAhead;
  for (auto at = kept.order;; --at) {
    Fetch(**at);
    if (at == order_.begin() || --ahead < 0) {
      break;
    }
  }
  if (kept.state != Kept::State::kComing) {
    return kept.near;
  }
  status_.Update(ComputeAfter(*kept.place->read));
  kept.state = Kept::State::kFar;
  return std::exchange(kept.near, at::Tensor());
}

void DeviceActivations::Tier::Remove(Kept& kept) {
  std::lock_guard lock(mutex_);
  order_.erase(kept.order);
  leaving_.erase(std::remove(leaving_.begin(), leaving_.end(), &kept), leaving_.end());
  if (kept.state == Kept::State::kLeaving) {  // The memory goes, and a copy may still be at it.
    status_.Update(ComputeAfter(*kept.place->written));
  } else if (kept.state == Kept::State::kComing) {
    status_.Update(ComputeAfter(*kept.place->read));
  }
  if (kept.state != Kept::State::kStays) {
    far_bytes_ -= static_cast<int64_t>(kept.bytes);
  }
  if (kept.place != nullptr) {
    GiveBack(std::move(kept.place));
  }
}

absl::Status DeviceActivations::Tier::status() const {
  std::lock_guard lock(mutex_);
  return status_;
}

int64_t DeviceActivations::Tier::far_bytes() const {
  std::lock_guard lock(mutex_);
  return far_bytes_;
}

int64_t DeviceActivations::Tier::TakePeakFarBytes() {
  std::lock_guard lock(mutex_);
  return std::exchange(peak_far_bytes_, far_bytes_);
}

absl::StatusOr<std::shared_ptr<ActivationStore>> DeviceActivations::Create(
    const ActivationCheckpointingConfig& config, const Device& device) {
  auto tier = std::make_shared<Tier>(device, config.wait_written);
  DT_RETURN_IF_ERROR(tier->Open());
  return std::shared_ptr<ActivationStore>(new DeviceActivations(config, std::move(tier)));
}

DeviceActivations::DeviceActivations(const ActivationCheckpointingConfig& config,
                                     std::shared_ptr<Tier> tier)
    : ActivationStore(config), tier_(std::move(tier)) {}

DeviceActivations::~DeviceActivations() = default;

bool DeviceActivations::IsNear(const at::Tensor& tensor) const {
  return tensor.device() == tier_->device().tensors();
}

bool DeviceActivations::Serves(const Device& device) const {
  return !device.is_host() && &device.api() == &tier_->device().api() &&
         device.stream() == tier_->device().stream();
}

std::shared_ptr<ActivationStore::Kept> DeviceActivations::Put(const at::Tensor& tensor) {
  return std::make_shared<Kept>(tier_, tensor);
}

at::Tensor DeviceActivations::Get(const std::shared_ptr<ActivationStore::Kept>& kept) {
  return tier_->Get(static_cast<Kept&>(*kept));
}

void DeviceActivations::Settle() {
  tier_->Synchronize().IgnoreError();  // status() has the error.
}

absl::Status DeviceActivations::status() const { return tier_->status(); }
int64_t DeviceActivations::far_bytes() const { return tier_->far_bytes(); }
int64_t DeviceActivations::TakePeakFarBytes() { return tier_->TakePeakFarBytes(); }

}  // namespace dtrain
