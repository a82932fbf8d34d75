// The parameters of a module, moved into flat buffers.
//
// Trainable parameters and their gradients become views of two flat fp32 buffers in the layout's
// order (reverse registration). What peers read or write lives in a SymmetricBuffer, so that
// collectives copy nothing: gradients always, values when they are gathered. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/symmetric_buffer.h"
#include "runtime/plan/layout.h"

namespace torch::nn {
class Module;
}

namespace dtrain {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

struct FlatOptions {
  int64_t pad_to_multiple = 1;  // The flat buffers' length in elements; the padding holds zeros.
  bool with_gradients = true;   // A flat gradient buffer as large as that of the values.
  bool values_symmetric = false;
};

class FlatParameters {
 public:
  // Unimplemented names a trainable parameter that is not a dense fp32 CPU tensor.
  static absl::StatusOr<std::unique_ptr<FlatParameters>> Create(torch::nn::Module& module,
                                                                const FlatOptions& options = {});

  const plan::ParamLayout& layout() const { return layout_; }
  // Trainable parameters, in the layout's order; shared ones once.
  const std::vector<at::Tensor>& parameters() const { return parameters_; }
  // The gradient of parameters()[i] as a view of gradients(); empty without those.
  const std::vector<at::Tensor>& gradient_views() const { return gradient_views_; }
  // Makes the .grad of every parameter undefined.
  void ClearGradients();
  // Frozen parameters and module buffers: not in the flat buffers, but part of the model.
  const std::vector<NamedTensor>& frozen() const { return frozen_; }
  const std::vector<NamedTensor>& module_buffers() const { return module_buffers_; }

  at::Tensor& values() { return values_; }        // [padded elements] fp32.
  at::Tensor& gradients() { return gradients_; }  // The same shape.
  // Null when they are not symmetric.
  const std::shared_ptr<comm::SymmetricBuffer>& value_memory() const { return value_memory_; }
  const std::shared_ptr<comm::SymmetricBuffer>& gradient_memory() const { return gradient_memory_; }

 private:
  explicit FlatParameters(plan::ParamLayout layout) : layout_(std::move(layout)) {}
  absl::Status Allocate(const FlatOptions& options);
  void MoveIn(const std::vector<NamedTensor>& trainable);

  plan::ParamLayout layout_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> gradient_views_;
  std::vector<NamedTensor> frozen_;
  std::vector<NamedTensor> module_buffers_;
  std::shared_ptr<comm::SymmetricBuffer> gradient_memory_;
  std::shared_ptr<comm::SymmetricBuffer> value_memory_;
  at::Tensor values_;
  at::Tensor gradients_;
};

}  // namespace dtrain
