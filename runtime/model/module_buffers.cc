#include "runtime/model/module_buffers.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {
namespace {

constexpr int kBufferComparisons = 2;
constexpr int64_t kBufferAlign = 16;  // Suits every type of buffer.

int64_t VersionOf(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

std::vector<const void*> AddressesOf(const std::vector<NamedTensor>& buffers) {
  std::vector<const void*> addresses;
  for (const NamedTensor& buffer : buffers) {
    addresses.push_back(buffer.tensor.has_storage() ? buffer.tensor.const_data_ptr() : nullptr);
  }
  return addresses;
}

std::vector<at::Tensor> CopiesOf(const std::vector<NamedTensor>& buffers) {
  std::vector<at::Tensor> copies;
  for (const NamedTensor& buffer : buffers) {
    copies.push_back(buffer.tensor.clone());
  }
  return copies;
}

// "norm." of "norm.running_mean".
std::string PrefixOfLast(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }

// By buffer: the counter of its layer, where that is BatchNorm of torch; else -1.
std::vector<int> CountersOf(const std::vector<NamedTensor>& buffers) {
  constexpr char kCounter[] = "num_batches_tracked";
  std::map<std::string, int> counters;  // By what stands before the name.
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (absl::EndsWith(buffers[i].name, kCounter)) {
      counters[PrefixOfLast(buffers[i].name)] = static_cast<int>(i);
    }
  }
  std::vector<int> of_each;
  for (const NamedTensor& buffer : buffers) {
    const auto found = counters.find(PrefixOfLast(buffer.name));
    of_each.push_back(found == counters.end() ? -1 : found->second);
  }
  return of_each;
}

// Some of the buffers one behind the other in memory, as they travel.
class Packed {
 public:
  Packed(const std::vector<NamedTensor>& buffers, const std::vector<bool>& which) {
    for (size_t i = 0; i < buffers.size(); ++i) {
      if (which[i] && buffers[i].tensor.numel() > 0) {
        places_.push_back({buffers[i].tensor, bytes_});
        bytes_ += (static_cast<int64_t>(buffers[i].tensor.nbytes()) + kBufferAlign - 1) /
                  kBufferAlign * kBufferAlign;
      }
    }
  }
  int64_t bytes() const { return bytes_; }
  struct Place {
    at::Tensor tensor;
    int64_t begin = 0;
    // The tensor's values in `memory` [bytes].
    at::Tensor In(const at::Tensor& memory) const {
      return memory.narrow(0, begin, static_cast<int64_t>(tensor.nbytes()))
          .view(tensor.scalar_type())
          .view(tensor.sizes());
    }
  };
  const std::vector<Place>& places() const { return places_; }

 private:
  std::vector<Place> places_;
  int64_t bytes_ = 0;
};

// The mean over `ranks` parts of `gathered`, summed in their order.
at::Tensor MeanOf(const Packed::Place& place, const at::Tensor& gathered, int64_t part,
                  int64_t ranks) {
  at::Tensor sum = place.In(gathered.narrow(0, 0, part)).to(at::kDouble);
  for (int64_t rank = 1; rank < ranks; ++rank) {
    sum = sum + place.In(gathered.narrow(0, rank * part, part)).to(at::kDouble);
  }
  return sum / static_cast<double>(ranks);
}

}  // namespace

ModuleBuffers::ModuleBuffers(const std::vector<NamedTensor>& buffers, Policy policy,
                             const Ranks& ranks)
    : buffers_(buffers),
      policy_(policy),
      ranks_(ranks),
      first_addresses_(AddressesOf(buffers)),
      changed_(buffers.size()),
      counters_(CountersOf(buffers)),
      unseen_(buffers.size()) {
  Remember();
}

std::vector<int64_t> ModuleBuffers::Versions() const {
  std::vector<int64_t> versions;
  for (const NamedTensor& buffer : buffers_) {
    versions.push_back(VersionOf(buffer.tensor));
  }
  return versions;
}

std::vector<bool> ModuleBuffers::WrittenSince(const std::vector<int64_t>& versions) const {
  std::vector<bool> written;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    written.push_back(VersionOf(buffers_[i].tensor) != versions[i]);
  }
  return written;
}

absl::Status ModuleBuffers::CheckInPlace() const {
  const std::vector<const void*> addresses = AddressesOf(buffers_);
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (addresses[i] != first_addresses_[i]) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "buffer %s is in other memory (set_data) than when Engine::Create took the module, which "
          "CUDA graphs do not see; write into the buffer (copy_), or set cuda_graphs=false",
          buffers_[i].name));
    }
  }
  return absl::OkStatus();
}

void ModuleBuffers::NoteWrites(const std::vector<bool>& written) {
  for (size_t i = 0; i < written.size(); ++i) {
    changed_[i] = changed_[i] || written[i];
  }
}

void ModuleBuffers::Remember() {
  versions_ = Versions();
  addresses_ = AddressesOf(buffers_);
  changed_.assign(buffers_.size(), false);
  copies_.clear();
  if (!alone() && policy_ != Policy::kLocal && steps_ < kBufferComparisons) {
    const at::NoGradGuard no_grad;
    copies_ = CopiesOf(buffers_);
  }
}

void ModuleBuffers::FindChanged() {
  const at::NoGradGuard no_grad;
  NoteWrites(WrittenSince(versions_));
  const std::vector<const void*> addresses = AddressesOf(buffers_);
  for (size_t i = 0; i < addresses.size(); ++i) {
    changed_[i] = changed_[i] || addresses[i] != addresses_[i];
  }
  for (size_t i = 0; i < counters_.size(); ++i) {
    const bool counted = counters_[i] >= 0 && changed_[static_cast<size_t>(counters_[i])];
    changed_[i] = changed_[i] || counted;
  }
  for (size_t i = 0; i < copies_.size(); ++i) {
    unseen_[i] = unseen_[i] || (!changed_[i] && !copies_[i].equal(buffers_[i].tensor));
  }
  NoteWrites(unseen_);
}

bool ModuleBuffers::Changed() {
  if (alone() || policy_ == Policy::kLocal) {
    return false;
  }
  FindChanged();
  ++steps_;
  return std::any_of(changed_.begin(), changed_.end(), [](bool changed) { return changed; });
}

absl::StatusOr<std::vector<bool>> ModuleBuffers::ChangedOnAny() {
  const size_t count = buffers_.size();
  std::vector<uint8_t> mine(changed_.begin(), changed_.end());
  std::vector<uint8_t> all(count * static_cast<size_t>(ranks_.hosts.size()));
  DT_ASSIGN_OR_RETURN(
      const comm::Work work,
      ranks_.hosts.AllGather({mine.data(), count, DType::kUInt8, {}},
                             {all.data(), all.size(), DType::kUInt8, {}},
                             {.name = "which module buffers changed", .caller_waits = true}));
  DT_RETURN_IF_ERROR(work.Wait());
  std::vector<bool> any(count);
  for (size_t i = 0; i < all.size(); ++i) {
    any[i % count] = any[i % count] || all[i] != 0;
  }
  return any;
}

// On a GPU one block for every step: who asks CUDA for memory waits.
absl::StatusOr<at::Tensor> ModuleBuffers::Memory(int64_t bytes) {
  if (ranks_.of_devices == nullptr) {
    return at::zeros({bytes}, at::TensorOptions(at::kByte));
  }
  if (memory_ == nullptr) {
    const Packed all(buffers_, std::vector<bool>(buffers_.size(), true));
    const int64_t parts = policy_ == Policy::kAverage ? 1 + ranks_.hosts.size() : 1;
    DT_ASSIGN_OR_RETURN(
        memory_, DeviceMemory::Create(ranks_.device, static_cast<size_t>(all.bytes() * parts),
                                      "module buffers on their way"));
  }
  return TensorOver(memory_, bytes, at::kByte, ranks_.device.tensors());
}

ModuleBuffers::~ModuleBuffers() {
  if (memory_ != nullptr) {
    ranks_.of_devices->JoinStream(ranks_.device.stream()).IgnoreError();
  }
}

absl::Status ModuleBuffers::Spread(const std::vector<bool>& which, bool average) {
  const Packed packed(buffers_, which);
  if (packed.bytes() == 0) {
    return absl::OkStatus();
  }
  const bool on_device = ranks_.of_devices != nullptr;
  comm::Group& group = on_device ? *ranks_.of_devices : ranks_.hosts;
  const int64_t gathered = average ? packed.bytes() * group.size() : 0;
  DT_ASSIGN_OR_RETURN(const at::Tensor memory, Memory(packed.bytes() + gathered));
  const at::Tensor mine = memory.narrow(0, 0, packed.bytes());
  for (const Packed::Place& place : packed.places()) {
    place.In(mine).copy_(place.tensor);
  }
  const at::Tensor result = average ? memory.narrow(0, packed.bytes(), gathered) : mine;
  const auto buffer_of = [&](const at::Tensor& tensor) {
    return comm::Buffer{tensor.mutable_data_ptr(), tensor.nbytes(), DType::kUInt8,
                        ranks_.device.place()};
  };
  const comm::CollectiveOptions options{.name = "module buffers", .caller_waits = !on_device};
  DT_ASSIGN_OR_RETURN(const comm::Work work,
                      average ? group.AllGather(buffer_of(mine), buffer_of(result), options)
                              : group.Broadcast(buffer_of(mine), 0, options));
  DT_RETURN_IF_ERROR(on_device ? ranks_.of_devices->JoinStream(ranks_.device.stream())
                               : work.Wait());
  for (const Packed::Place& place : packed.places()) {
    if (average && place.tensor.is_floating_point()) {
      place.tensor.copy_(MeanOf(place, result, packed.bytes(), group.size()));
    } else {
      place.tensor.copy_(place.In(result));  // Rank 0's stand first.
    }
  }
  return absl::OkStatus();
}

absl::Status ModuleBuffers::MakeOneSet() {
  const at::NoGradGuard no_grad;
  DT_ASSIGN_OR_RETURN(const std::vector<bool> which, ChangedOnAny());
  return Spread(which, policy_ == Policy::kAverage);
}

absl::Status ModuleBuffers::BeginEvaluation() {
  if (alone()) {
    return absl::OkStatus();
  }
  const at::NoGradGuard no_grad;
  if (policy_ == Policy::kLocal) {
    own_ = CopiesOf(buffers_);
    return Spread(std::vector<bool>(buffers_.size(), true), /*average=*/false);
  }
  FindChanged();
  DT_RETURN_IF_ERROR(MakeOneSet());
  Remember();
  return absl::OkStatus();
}

void ModuleBuffers::EndEvaluation() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < own_.size(); ++i) {
    buffers_[i].tensor.copy_(own_[i]);
  }
  own_.clear();
}

}  // namespace dtrain
