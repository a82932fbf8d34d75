#include "runtime/gradients/compression/power_sgd_on_device.h"

#include <utility>

#include "ATen/Functions.h"
#include "ATen/core/grad_mode.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace dtrain {

absl::StatusOr<std::unique_ptr<PowerSgdOnDevice>> PowerSgdOnDevice::Create(
    const Device& device, comm::DeviceGroup& group, const comm::BucketShape& shape,
    const comm::CompressionOptions& options) {
  auto made = std::unique_ptr<PowerSgdOnDevice>(new PowerSgdOnDevice(device, group, shape));
  DT_ASSIGN_OR_RETURN(made->factors_, FactorsOnDevice::Create(device, shape, options));
  DT_ASSIGN_OR_RETURN(made->summed_, DeviceEvent::Create(device, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(made->done_, DeviceEvent::Create(device, /*timing=*/false));
  DT_ASSIGN_OR_RETURN(made->flag_, FiniteFlag::Create(device, made->elements_));
  return made;
}

at::Tensor PowerSgdOnDevice::TensorOf(float* data) const {
  return at::from_blob(
      data, {elements_}, [](void*) {}, at::TensorOptions(at::kFloat).device(device_.tensors()),
      device_.tensors());
}

absl::Status PowerSgdOnDevice::Sum(const at::Tensor& values, const char* what) {
  DT_RETURN_IF_ERROR(
      group_
          .AllReduce({values.mutable_data_ptr(), values.nbytes(), DType::kFloat32, device_.place()},
                     comm::ReduceOp::kSum, {.name = absl::StrCat(what, name_)})
          .status());
  return group_.Then([this](comm::CudaStream* stream) {
    return device_.Check(device_.api().EventRecord(summed_->handle(), stream), "cudaEventRecord");
  });
}

absl::Status PowerSgdOnDevice::Start(float* data) {
  const at::NoGradGuard no_grad;
  data_ = data;
  second_ = false;
  factors_->MakeFirst(TensorOf(data));
  return Sum(factors_->first(), "P of ");
}

absl::StatusOr<bool> PowerSgdOnDevice::Advance() {
  const at::NoGradGuard no_grad;
  DT_RETURN_IF_ERROR(group_.Await(summed_->handle(), device_.stream()));
  if (second_ || !factors_->has_second()) {
    DT_RETURN_IF_ERROR(Finish());
    return true;
  }
  second_ = true;
  factors_->MakeSecond();
  DT_RETURN_IF_ERROR(Sum(factors_->second(), "Q of "));
  return false;
}

absl::Status PowerSgdOnDevice::Finish() {
  factors_->Expand(TensorOf(data_));
  DT_RETURN_IF_ERROR(flag_->Queue(data_, device_.kernel_stream()));
  factors_->Forget(flag_->Broken());
  DT_RETURN_IF_ERROR(done_->Record());
  return group_.Then([this](comm::CudaStream* stream) {
    return device_.Check(device_.api().StreamWaitEvent(stream, done_->handle()),
                         "cudaStreamWaitEvent");
  });
}

}  // namespace dtrain
