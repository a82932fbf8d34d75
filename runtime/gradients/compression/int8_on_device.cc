#include "runtime/gradients/compression/int8_on_device.h"

#include <algorithm>
#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "base/status.h"
#include "runtime/gradients/packed_on_device.h"
#include "runtime/memory/tensor_over.h"

namespace dtrain {
namespace {

// Whole runs, so that kernels take 16 bytes at a time. Blocks lie as on the host, whose parts end
// elsewhere.
int64_t PartOf(int64_t elements, int64_t ranks) {
  const int64_t part = (elements + ranks - 1) / ranks;
  return (part + kAlignedRun - 1) / kAlignedRun * kAlignedRun;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Int8Exchange>> Int8Exchange::Create(const Device& device,
                                                                   comm::DeviceGroup& group,
                                                                   int64_t elements) {
  const auto ranks = static_cast<int64_t>(group.size());
  const size_t bytes = PackedRunBytes(ranks * PartOf(elements, ranks));
  auto made = std::make_shared<Int8Exchange>();
  constexpr absl::string_view kWhat = "a gradient bucket in int8 (comm.compression)";
  DT_ASSIGN_OR_RETURN(made->sent, DeviceMemory::Create(device, bytes, kWhat));
  DT_ASSIGN_OR_RETURN(made->received, DeviceMemory::Create(device, bytes, kWhat));
  DT_ASSIGN_OR_RETURN(made->sent_registration, group.RegisterDevice(made->sent->data(), bytes));
  DT_ASSIGN_OR_RETURN(made->received_registration,
                      group.RegisterDevice(made->received->data(), bytes));
  return made;
}

Int8OnDevice::Int8OnDevice(const Device& device, comm::DeviceGroup& group,
                           const comm::BucketShape& shape, const comm::CompressionOptions& options,
                           std::shared_ptr<Int8Exchange> exchange)
    : device_(device),
      group_(group),
      name_(shape.name),
      elements_(static_cast<int64_t>(shape.elements)),
      error_feedback_(options.error_feedback),
      ranks_(group.size()),
      part_(PartOf(elements_, ranks_)),
      exchange_(std::move(exchange)) {}

absl::StatusOr<std::unique_ptr<Int8OnDevice>> Int8OnDevice::Create(
    const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
    const comm::CompressionOptions& options, std::shared_ptr<Int8Exchange> exchange) {
  auto made = std::unique_ptr<Int8OnDevice>(
      new Int8OnDevice(device, group, shape, options, std::move(exchange)));
  DT_RETURN_IF_ERROR(made->MakeMemory());
  return made;
}

absl::Status Int8OnDevice::MakeMemory() {
  const int64_t elements = (ranks_ + 1) * part_;
  DT_ASSIGN_OR_RETURN(memory_,
                      DeviceMemory::Create(device_, static_cast<size_t>(elements) * sizeof(float),
                                           "what int8 rounds away (comm.compression)"));
  memories_ = TensorOver(memory_, elements, at::kFloat, device_.tensors());
  DT_ASSIGN_OR_RETURN(ready_, DeviceEvent::Create(device_, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(flag_, FiniteFlag::Create(device_, elements_));
  return absl::OkStatus();
}

absl::Status Int8OnDevice::QueuePack(const float* data, comm::CudaStream* stream) const {
  const kernels::CudaKernelTable& kernels = device_.kernels();
  const CudaStream on = Device::KernelStream(stream);
  DT_RETURN_IF_ERROR(device_.Check(device_.api().StreamWaitEvent(stream, ready_->handle()),
                                   "cudaStreamWaitEvent"));
  DT_RETURN_IF_ERROR(
      (error_feedback_ ? kernels.accumulate : kernels.copy)(elements_, {data}, {values()}, on));
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    float* const part = values() + rank * part_;
    DT_RETURN_IF_ERROR(QueuePackInt8(kernels, {part}, part_, sent() + PackedRunBytes(rank * part_),
                                     error_feedback_ ? part : nullptr, on));
  }
  return absl::OkStatus();
}

absl::Status Int8OnDevice::QueueSum(comm::CudaStream* stream) const {
  const kernels::CudaKernelTable& kernels = device_.kernels();
  const CudaStream on = Device::KernelStream(stream);
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    DT_RETURN_IF_ERROR(QueueUnpackInt8(kernels, received() + PackedRunBytes(rank * part_), part_,
                                       part_, {sum()}, /*add=*/error_feedback_ || rank > 0, on));
  }
  return QueuePackInt8(kernels, {sum()}, part_, received() + PackedRunBytes(group_.rank() * part_),
                       error_feedback_ ? sum() : nullptr, on);
}

absl::Status Int8OnDevice::QueueResult(float* data, comm::CudaStream* stream) const {
  const CudaStream on = Device::KernelStream(stream);
  for (int64_t start = 0; start < elements_; start += part_) {
    DT_RETURN_IF_ERROR(QueueUnpackInt8(device_.kernels(), received() + PackedRunBytes(start), part_,
                                       std::min(part_, elements_ - start), {data + start},
                                       /*add=*/false, on));
  }
  return flag_->Queue(data, on);
}

absl::Status Int8OnDevice::Start(float* data) {
  if (error_feedback_) {
    const at::NoGradGuard no_grad;
    // A step that is not finite was skipped, and must leave nothing behind. All ranks saw that sum.
    memories_.masked_fill_(flag_->Broken(), 0);
  }
  DT_RETURN_IF_ERROR(ready_->Record());
  DT_RETURN_IF_ERROR(
      group_.Then([this, data](comm::CudaStream* stream) { return QueuePack(data, stream); }));
  const auto bytes_of = [this](std::byte* from, int64_t elements) {
    return comm::Buffer{from, PackedRunBytes(elements), DType::kUInt8, device_.place()};
  };
  const comm::Buffer all = bytes_of(received(), ranks_ * part_);
  DT_RETURN_IF_ERROR(
      group_.AllToAll(bytes_of(sent(), ranks_ * part_), all, {.name = name_}).status());
  DT_RETURN_IF_ERROR(group_.Then([this](comm::CudaStream* stream) { return QueueSum(stream); }));
  const comm::Buffer own = bytes_of(received() + PackedRunBytes(group_.rank() * part_), part_);
  DT_RETURN_IF_ERROR(group_.AllGather(own, all, {.name = name_}).status());
  return group_.Then([this, data](comm::CudaStream* stream) { return QueueResult(data, stream); });
}

}  // namespace dtrain
