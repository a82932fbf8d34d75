#include "runtime/shard/quantized_on_device.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/cuda_table.h"
#include "runtime/gradients/packed_on_device.h"

namespace dtrain {

QuantizedOnDevice::QuantizedOnDevice(const Device& device, comm::DeviceGroup& group,
                                     const plan::ShardPlan& shards, DType dtype)
    : device_(device),
      group_(group),
      shards_(shards),
      dtype_(dtype),
      is_packed_(shards.buckets().size(), 0) {}

absl::StatusOr<std::unique_ptr<QuantizedOnDevice>> QuantizedOnDevice::Create(
    const Device& device, comm::DeviceGroup& group, const plan::ShardPlan& shards, DType dtype) {
  auto made =
      std::unique_ptr<QuantizedOnDevice>(new QuantizedOnDevice(device, group, shards, dtype));
  DT_RETURN_IF_ERROR(made->MakeMemory());
  return made;
}

absl::Status QuantizedOnDevice::MakeMemory() {
  constexpr absl::string_view kWhat = "weights in int8 blocks (zero_quantized_weights)";
  const int64_t largest = shards_.largest_bucket();
  DT_ASSIGN_OR_RETURN(
      packed_, DeviceMemory::Create(device_, PackedRunBytes(shards_.shard_elements()), kWhat));
  DT_ASSIGN_OR_RETURN(received_, DeviceMemory::Create(device_, PackedRunBytes(largest), kWhat));
  if (dtype_ == DType::kFloat16) {
    const auto part = static_cast<size_t>(largest / group_.size());
    DT_ASSIGN_OR_RETURN(wide_, DeviceMemory::Create(device_, part * sizeof(float), kWhat));
  }
  DT_ASSIGN_OR_RETURN(packed_registration_,
                      group_.RegisterDevice(packed_->data(), packed_->bytes()));
  DT_ASSIGN_OR_RETURN(received_registration_,
                      group_.RegisterDevice(received_->data(), received_->bytes()));
  for (size_t bucket = 0; bucket < is_packed_.size(); ++bucket) {
    DT_ASSIGN_OR_RETURN(auto event, DeviceEvent::Create(device_, /*timing=*/false));
    ready_.push_back(std::move(event));
  }
  return absl::OkStatus();
}

QuantizedOnDevice::~QuantizedOnDevice() {
  group_.JoinStream(device_.stream()).IgnoreError();  // It may be at work on this memory.
  device_.Synchronize().IgnoreError();
}

// Gathers under way read the packed values before any are packed anew: one stream does both.
void QuantizedOnDevice::Invalidate() {
  std::fill(is_packed_.begin(), is_packed_.end(), uint8_t{0});
}

std::byte* QuantizedOnDevice::PackedPart(int bucket) const {
  return static_cast<std::byte*>(packed_->data()) +
         PackedRunBytes(shards_.part(bucket, group_.rank()).local);
}

// Behind the update, which is on the compute stream.
absl::Status QuantizedOnDevice::QueuePack(int bucket, const std::byte* share) {
  DeviceEvent& ready = *ready_[static_cast<size_t>(bucket)];
  DT_RETURN_IF_ERROR(ready.Record());
  const int64_t elements = shards_.part(bucket, group_.rank()).flat.elements();
  return group_.Then([this, event = ready.handle(), share, elements,
                      out = PackedPart(bucket)](comm::CudaStream* stream) -> absl::Status {
    DT_RETURN_IF_ERROR(
        device_.Check(device_.api().StreamWaitEvent(stream, event), "cudaStreamWaitEvent"));
    kernels::ConstFlat from{share, dtype_};
    if (wide_ != nullptr) {
      DT_RETURN_IF_ERROR(
          device_.kernels().copy(elements, from, {wide_->data()}, Device::KernelStream(stream)));
      from = {wide_->data()};
    }
    return QueuePackInt8(device_.kernels(), from, elements, out, nullptr,
                         Device::KernelStream(stream));
  });
}

absl::Status QuantizedOnDevice::QueueUnpack(int64_t part, kernels::MutableFlat whole) {
  return group_.Then([this, part, whole](comm::CudaStream* stream) -> absl::Status {
    const kernels::CudaKernelTable& kernels = device_.kernels();
    const CudaStream on = Device::KernelStream(stream);
    const auto* from = static_cast<const std::byte*>(received_->data());
    auto* to = static_cast<std::byte*>(whole.data);
    for (int rank = 0; rank < group_.size(); ++rank) {
      const kernels::MutableFlat values{to, dtype_};
      DT_RETURN_IF_ERROR(
          QueueUnpackInt8(kernels, from, part, part,
                          wide_ == nullptr ? values : kernels::MutableFlat{wide_->data()},
                          /*add=*/false, on));
      if (wide_ != nullptr) {
        DT_RETURN_IF_ERROR(kernels.copy(part, {wide_->data()}, values, on));
      }
      from += PackedRunBytes(part);
      to += static_cast<size_t>(part) * DTypeBytes(dtype_);
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<comm::Work> QuantizedOnDevice::Start(int bucket, const std::byte* share,
                                                    kernels::MutableFlat whole,
                                                    const std::string& name) {
  if (uint8_t& packed = is_packed_[static_cast<size_t>(bucket)]; packed == 0) {
    DT_RETURN_IF_ERROR(QueuePack(bucket, share));
    packed = 1;
  }
  const int64_t part = shards_.part(bucket, group_.rank()).flat.elements();
  const size_t bytes = PackedRunBytes(part);
  DT_ASSIGN_OR_RETURN(
      comm::Work work,
      group_.AllGather({PackedPart(bucket), bytes, DType::kUInt8, device_.place()},
                       {received_->data(), bytes * static_cast<size_t>(group_.size()),
                        DType::kUInt8, device_.place()},
                       {.name = name}));
  DT_RETURN_IF_ERROR(QueueUnpack(part, whole));
  return work;
}

int64_t QuantizedOnDevice::bytes() const {
  return static_cast<int64_t>(packed_->bytes() + received_->bytes() +
                              (wide_ != nullptr ? wide_->bytes() : 0));
}

}  // namespace dtrain
