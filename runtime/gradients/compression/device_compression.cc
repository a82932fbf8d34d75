#include "runtime/gradients/compression/device_compression.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "runtime/gradients/compression/power_sgd_on_device.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<DeviceCompression>> DeviceCompression::Create(
    const Device& device, comm::DeviceGroup& group, const comm::CompressionOptions& options,
    const std::vector<comm::BucketShape>& shapes) {
  if (options.kind == comm::Compression::kNone || group.size() == 1) {
    return nullptr;
  }
  size_t largest = 0;
  for (const comm::BucketShape& shape : shapes) {
    largest = shape.elements < options.elements_min ? largest : std::max(largest, shape.elements);
  }
  if (largest == 0) {
    return nullptr;
  }
  auto made =
      std::unique_ptr<DeviceCompression>(new DeviceCompression(device, group, options.start_step));
  const bool int8 = options.kind == comm::Compression::kInt8;
  if (int8) {
    DT_ASSIGN_OR_RETURN(made->exchange_,
                        Int8Exchange::Create(device, group, static_cast<int64_t>(largest)));
  }
  for (const comm::BucketShape& shape : shapes) {
    std::unique_ptr<DeviceReduction>& reduction = made->reductions_.emplace_back();
    if (shape.elements < options.elements_min) {
      continue;
    }
    if (int8) {
      DT_ASSIGN_OR_RETURN(reduction,
                          Int8OnDevice::Create(device, group, shape, options, made->exchange_));
    } else {
      DT_ASSIGN_OR_RETURN(reduction, PowerSgdOnDevice::Create(device, group, shape, options));
    }
  }
  return made;
}

DeviceCompression::~DeviceCompression() {
  group_.JoinStream(device_.stream()).IgnoreError();
  device_.Synchronize().IgnoreError();
}

absl::Status DeviceCompression::Start(size_t place, float* data) {
  DT_RETURN_IF_ERROR(reductions_[place]->Start(data));
  started_.push_back(place);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<size_t>> DeviceCompression::Finish() {
  std::vector<size_t> places = std::exchange(started_, {});
  std::vector<DeviceReduction*> reductions;
  for (const size_t place : places) {
    reductions.push_back(reductions_[place].get());
  }
  DT_RETURN_IF_ERROR(comm::AdvanceToEnd(std::move(reductions)));
  return places;
}

int64_t DeviceCompression::bytes() const {
  int64_t bytes = 0;
  if (exchange_ != nullptr) {
    bytes += static_cast<int64_t>(exchange_->sent->bytes() + exchange_->received->bytes());
  }
  for (const auto& reduction : reductions_) {
    bytes += reduction != nullptr ? reduction->bytes() : 0;
  }
  return bytes;
}

}  // namespace dtrain
