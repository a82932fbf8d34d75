#include "runtime/offload/host_activations.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "runtime/offload/nameless_file.h"
#include "runtime/plan/memory/offload_plan.h"

namespace dtrain {
namespace {

constexpr char kWhat[] = "activations";
constexpr char kSetting[] = "activation_checkpointing.nvme_path";
constexpr int64_t kFileAlign = 4096;

absl::Span<std::byte> BytesOf(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

}  // namespace

class HostActivations::Kept final : public ActivationStore::Kept {
 public:
  // A place for the bytes of `tensor`.
  Kept(std::shared_ptr<Tier> tier, const at::Tensor& tensor);
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() override;

  enum class State {
    kQueued,   // Near; the thread will write it.
    kFar,      // Far alone.
    kReading,  // Far; the thread reads it into `near`.
    kRead,     // Far and near.
    kStays,    // Near alone: the tier could not take it.
  };
  const std::shared_ptr<Tier> tier;
  const std::vector<int64_t> sizes;
  const std::vector<int64_t> strides;
  const at::ScalarType type;
  const int64_t bytes;

  // Guarded by the tier's mutex.
  State state = State::kQueued;
  at::Tensor near;
  std::condition_variable changed;

  at::Tensor far;       // Host memory; undefined: in the file.
  int64_t offset = -1;  // In the file; -1: no place there.
  std::list<Kept*>::iterator place;
  std::weak_ptr<Kept> self;
};

// Places, and the ways there and back.
class HostActivations::Tier {
 public:
  explicit Tier(const ActivationCheckpointingConfig& config) : folder_(config.nvme_path) {}
  absl::Status OpenFile() {
    DT_ASSIGN_OR_RETURN(file_, OpenNamelessFile(folder_, kSetting));
    return absl::OkStatus();
  }

  void Add(Kept& kept);
  void Remove(Kept& kept);
  void Write(Kept& kept);
  void Read(Kept& kept);
  // `kept` and up to `count` that were put before it.
  std::vector<std::shared_ptr<Kept>> Backwards(const Kept& kept, int64_t count) const;

  mutable std::mutex mutex;
  absl::Status status;
  int64_t far_bytes = 0;
  int64_t peak_far_bytes = 0;

 private:
  bool Reserve(Kept& kept);

  const std::string folder_;
  UniqueFd file_;
  std::list<Kept*> order_;             // In the order of Put.
  std::map<int64_t, int64_t> in_use_;  // Offset in the file -> bytes.
  int64_t reserved_ = 0;               // Bytes of the file.
};

HostActivations::Kept::Kept(std::shared_ptr<Tier> owner, const at::Tensor& tensor)
    : tier(std::move(owner)),
      sizes(tensor.sizes().vec()),
      strides(tensor.strides().vec()),
      type(tensor.scalar_type()),
      bytes(static_cast<int64_t>(tensor.nbytes())),
      near(tensor.detach()) {
  tier->Add(*this);
}

HostActivations::Kept::~Kept() { tier->Remove(*this); }

void HostActivations::Tier::Add(Kept& kept) {
  if (!file_.valid()) {
    kept.far = at::empty({kept.bytes}, at::kByte);
  }
  std::lock_guard lock(mutex);
  kept.place = order_.insert(order_.end(), &kept);
  if (file_.valid() && !Reserve(kept)) {
    kept.state = Kept::State::kStays;
    return;
  }
  far_bytes += kept.bytes;
  peak_far_bytes = std::max(peak_far_bytes, far_bytes);
}

// The first gap that is large enough.
bool HostActivations::Tier::Reserve(Kept& kept) {
  const int64_t bytes = (kept.bytes + kFileAlign - 1) / kFileAlign * kFileAlign;
  int64_t begin = 0;
  for (const auto& [used_begin, used_bytes] : in_use_) {
    if (begin + bytes <= used_begin) {
      break;
    }
    begin = used_begin + used_bytes;
  }
  if (begin + bytes > reserved_) {
    const absl::Status done = ReserveBlocks(file_, begin + bytes, folder_, kSetting);
    status.Update(done);
    if (!done.ok()) {
      return false;
    }
    reserved_ = begin + bytes;
  }
  kept.offset = begin;
  in_use_[begin] = bytes;
  return true;
}

void HostActivations::Tier::Remove(Kept& kept) {
  std::lock_guard lock(mutex);
  order_.erase(kept.place);
  if (kept.far.defined() || kept.offset >= 0) {
    in_use_.erase(kept.offset);
    far_bytes -= kept.bytes;
  }
}

void HostActivations::Tier::Write(Kept& kept) {
  const absl::Span<std::byte> near = BytesOf(kept.near);
  absl::Status done;
  if (kept.far.defined()) {
    std::memcpy(kept.far.mutable_data_ptr(), near.data(), near.size());
  } else {
    done = WriteAt(file_.get(), kept.offset, near, kWhat);
  }
  std::lock_guard lock(mutex);
  status.Update(done);
  kept.state = done.ok() ? Kept::State::kFar : Kept::State::kStays;
  if (done.ok()) {
    kept.near.reset();  // With the lock: who finds it far finds its memory free.
  }
  kept.changed.notify_all();
}

void HostActivations::Tier::Read(Kept& kept) {
  const absl::Span<std::byte> near = BytesOf(kept.near);
  absl::Status done;
  if (kept.far.defined()) {
    std::memcpy(near.data(), kept.far.const_data_ptr(), near.size());
  } else {
    done = ReadAt(file_.get(), kept.offset, near, kWhat);
  }
  if (!done.ok()) {
    std::memset(near.data(), 0, near.size());
  }
  std::lock_guard lock(mutex);
  status.Update(done);
  kept.state = Kept::State::kRead;
  kept.changed.notify_all();
}

std::vector<std::shared_ptr<HostActivations::Kept>> HostActivations::Tier::Backwards(
    const Kept& kept, int64_t count) const {
  std::vector<std::shared_ptr<Kept>> found;
  std::lock_guard lock(mutex);
  for (auto at = kept.place;; --at) {
    found.push_back((*at)->self.lock());  // Null while another thread drops it.
    if (at == order_.begin() || --count < 0) {
      break;
    }
  }
  found.erase(std::remove(found.begin(), found.end(), nullptr), found.end());
  return found;
}

absl::StatusOr<std::shared_ptr<ActivationStore>> HostActivations::Create(
    const ActivationCheckpointingConfig& config) {
  auto tier = std::make_shared<Tier>(config);
  if (config.tier == ActivationCheckpointingConfig::Tier::kFile) {
    DT_RETURN_IF_ERROR(tier->OpenFile());
  }
  return std::shared_ptr<ActivationStore>(new HostActivations(config, std::move(tier)));
}

HostActivations::HostActivations(const ActivationCheckpointingConfig& config,
                                 std::shared_ptr<Tier> tier)
    : ActivationStore(config),
      tier_(std::move(tier)),
      worker_({.name = "dtrain-keeper", .queue_capacity = plan::kActivationsInFlight}) {}

HostActivations::~HostActivations() = default;

bool HostActivations::IsNear(const at::Tensor& tensor) const { return tensor.device().is_cpu(); }

std::shared_ptr<ActivationStore::Kept> HostActivations::Put(const at::Tensor& tensor) {
  auto kept = std::make_shared<Kept>(tier_, tensor);
  kept->self = kept;
  if (kept->state == Kept::State::kStays) {
    return kept;
  }
  worker_.Submit([kept] {
    if (kept.use_count() > 1) {  // Otherwise backward has finished with it.
      kept->tier->Write(*kept);
    }
  });
  if (config().wait_written) {
    std::unique_lock lock(tier_->mutex);
    kept->changed.wait(lock, [&] { return kept->state != Kept::State::kQueued; });
  }
  return kept;
}

// Does nothing when the tensor is near, or on its way.
void HostActivations::StartReading(const std::shared_ptr<Kept>& kept) {
  const auto is_far = [&] { return kept->state == Kept::State::kFar; };
  {
    std::lock_guard lock(tier_->mutex);
    if (!is_far()) {
      return;
    }
  }
  at::Tensor near = at::empty_strided(kept->sizes, kept->strides, kept->type);
  {
    std::lock_guard lock(tier_->mutex);
    if (!is_far()) {
      return;
    }
    kept->state = Kept::State::kReading;
    kept->near = std::move(near);
  }
  worker_.Submit([kept] { kept->tier->Read(*kept); });
}

at::Tensor HostActivations::Get(const std::shared_ptr<ActivationStore::Kept>& given) {
  const auto kept = std::static_pointer_cast<Kept>(given);
  while (true) {
    for (const auto& one : tier_->Backwards(*kept, plan::kActivationsReadAhead)) {
      StartReading(one);
    }
    std::unique_lock lock(tier_->mutex);
    kept->changed.wait(lock, [&] { return kept->state != Kept::State::kReading; });
    switch (kept->state) {
      case Kept::State::kQueued:
      case Kept::State::kStays:
        return kept->near;
      case Kept::State::kRead:
        kept->state = Kept::State::kFar;
        return std::exchange(kept->near, at::Tensor());
      default:
        break;  // Another thread took it: read it again.
    }
  }
}

void HostActivations::Settle() {
  std::promise<void> done;
  worker_.Submit([&done] { done.set_value(); });
  done.get_future().wait();
}

absl::Status HostActivations::status() const {
  std::lock_guard lock(tier_->mutex);
  return tier_->status;
}

int64_t HostActivations::far_bytes() const {
  std::lock_guard lock(tier_->mutex);
  return tier_->far_bytes;
}

int64_t HostActivations::TakePeakFarBytes() {
  std::lock_guard lock(tier_->mutex);
  return std::exchange(tier_->peak_far_bytes, tier_->far_bytes);
}

}  // namespace dtrain
