// The parameters of a module, moved into flat buffers.
//
// Trainable parameters become views of a flat buffer in the layout's order (reverse registration),
// fp32 or, in mixed precision, a 2-byte type; their gradients of a flat fp32 buffer. Values
// that peers read or write live in a SymmetricBuffer, or on a GPU in memory of their own that is
// registered, so that collectives copy nothing: gradients always, weights when they are gathered in
// place. At ZeRO
// stage 3 values are only reserved addresses. Not thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/numeric/dtype.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "runtime/device/device.h"
#include "runtime/memory/reserved_memory.h"
#include "runtime/plan/layout/layout.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// A tensor of a model, by what an engine does with it.
struct HeldTensor {
  enum class Kind { kTrains, kFrozen, kBuffer };
  Kind kind = Kind::kTrains;
  std::string name;
  at::Tensor tensor;
  bool stays = false;  // In the memory where it is.
};
// "parameter conv.weight", "buffer norm.running_mean".
std::string NameOf(const HeldTensor& tensor);

// The memory that holds the values.
enum class ValueMemory {
  kPrivate,
  kSymmetric,  // Peers read them.
  kReserved,   // Nowhere: addresses alone, whose memory comes and goes (shard/gather_memory.h).
};

struct FlatOptions {
  int64_t pad_to_multiple = 1;  // The flat buffers' length in elements; the padding holds zeros.
  bool with_gradients = true;   // A flat gradient buffer as large as that of the values.
  ValueMemory values = ValueMemory::kPrivate;
  bool cast_buffers = false;  // Module buffers to the type of the values, as the parameters are.
};

class FlatParameters {
 public:
  // Describes the parameters of `module` and changes nothing yet. Unimplemented names a trainable
  // parameter that is not a dense tensor on the CPU or on `device`, of fp32 or, when `values` is
  // another, of that type. InvalidArgument names two tensors that share memory and would come apart
  // (parameters tied by set_data, views of one tensor). `device` must outlive this object.
  static absl::StatusOr<std::unique_ptr<FlatParameters>> Describe(torch::nn::Module& module,
                                                                  DType values,
                                                                  const Device& device);
  // Takes the frozen parameters that can be shared out as those that train are (ZeRO stage 3) as
  // parameters() of flat buffers of their own, which are to have no gradients. A
  // parameter stays among frozen() if it lies on another device, or if its type is not fp32, bf16
  // or fp16, or not fp32 where the values are fp32. Null: there are none. REQUIRES: before MoveIn.
  absl::StatusOr<std::unique_ptr<FlatParameters>> TakeFrozen();
  bool CanBeSharedOut(const at::Tensor& frozen) const;  // So.
  // Moves the parameters into flat buffers, one by one so that no two copies of the model exist,
  // and what else computes (frozen parameters, module buffers) to the device. Frozen floating-point
  // parameters are cast to the type of the values; buffers keep the type that the module gave them
  // (tables, counters and running statistics need it), but for FlatOptions::cast_buffers. `keep`
  // sees each parameter before it is rounded to the type of the values: [entry.elements] of its
  // own; reserved values are in no other place afterwards.
  using Keep = absl::FunctionRef<void(const plan::LayoutEntry& entry, const at::Tensor& whole)>;
  absl::Status MoveIn(const FlatOptions& options, Keep keep);

  // parameters()[index] lives in `view` from now on, of its shape and type, not in values().
  void MoveElsewhere(size_t index, const at::Tensor& view);
  bool is_in_values(size_t index) const;

  // FailedPrecondition names a parameter that is in other memory than where it was moved. Compares
  // an address each, some nanoseconds a parameter; what the module holds in its place is
  // RegisteredTensors' to see.
  absl::Status CheckInPlace() const;
  // FailedPrecondition names a parameter that an operation wrote to since RememberVersions: for
  // engines whose values are copies, of masters or of shards, where such a write would be lost.
  void RememberVersions();
  absl::Status CheckUnwritten() const;

  const plan::ParamLayout& layout() const { return layout_; }
  // In the layout's order; shared ones once. Those that train, or of TakeFrozen.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // The gradient of parameters()[i] as a view of gradients(); empty without those.
  const std::vector<at::Tensor>& gradient_views() const { return gradient_views_; }
  // Makes the .grad of every parameter undefined.
  void ClearGradients();
  // Frozen parameters and module buffers: not in the flat buffers, but part of the model.
  const std::vector<NamedTensor>& frozen() const { return frozen_; }
  // Their names and shapes in a layout's form: no memory is laid out by it.
  absl::StatusOr<plan::ParamLayout> FrozenLayout() const;
  const std::vector<NamedTensor>& module_buffers() const { return module_buffers_; }
  // All tensors of the model: those that train, frozen ones, buffers. REQUIRES: before MoveIn.
  std::vector<HeldTensor> Tensors() const;

  DType dtype() const { return dtype_; }    // The type of the values.
  at::Tensor& values() { return values_; }  // [padded elements].
  std::byte* value_bytes() const { return static_cast<std::byte*>(values_.mutable_data_ptr()); }
  at::Tensor& gradients() { return gradients_; }  // [padded elements] fp32.
  // So that collectives of `group` on the values, or on the gradients, copy nothing. REQUIRES: a
  // group of this device's memory; symmetric values, or gradients.
  absl::StatusOr<std::unique_ptr<comm::Registration>> RegisterValues(comm::Group& group) const;
  absl::StatusOr<std::unique_ptr<comm::Registration>> RegisterGradients(comm::Group& group) const;
  const Device& device() const { return device_; }
  // Null when values are not reserved addresses, or gradients no symmetric memory, of the host.
  const std::shared_ptr<ReservedMemory>& value_range() const { return value_range_; }
  const std::shared_ptr<comm::SymmetricBuffer>& gradient_memory() const { return gradient_memory_; }

 private:
  FlatParameters(plan::ParamLayout layout, DType dtype, const Device& device)
      : layout_(std::move(layout)), dtype_(dtype), device_(device) {}
  absl::Status Allocate(const FlatOptions& options);
  // InvalidArgument names two tensors of the module that share memory and would not afterwards.
  absl::Status CheckApart() const;

  plan::ParamLayout layout_;
  const DType dtype_;
  const Device& device_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> homes_;  // By parameter: what it was made a view of.
  std::vector<at::Tensor> gradient_views_;
  std::vector<int64_t> versions_;  // LibTorch's counters of operations that write.
  std::vector<NamedTensor> frozen_;
  std::vector<NamedTensor> module_buffers_;
  std::shared_ptr<comm::SymmetricBuffer> gradient_memory_;
  std::shared_ptr<comm::SymmetricBuffer> value_memory_;
  std::shared_ptr<ReservedMemory> value_range_;
  std::shared_ptr<DeviceMemory> device_gradients_;  // In place of the symmetric ones.
  std::shared_ptr<DeviceMemory> device_values_;
  at::Tensor values_;
  at::Tensor gradients_;
};

}  // namespace dtrain
