#include <cmath>
#include <memory>

#include "ATen/Functions.h"
#include "base/check.h"
#include "dtrain/linear.h"
#include "dtrain/lora.h"
#include "dtrain/ops.h"

namespace dtrain {
namespace {

// A module that holds one matrix, so that its name ends as in PEFT's files: lora_A.weight.
struct MatrixModule : torch::nn::Module {
  explicit MatrixModule(at::Tensor matrix) {
    weight = register_parameter("weight", std::move(matrix));
  }
  at::Tensor weight;
};

}  // namespace

void LowRankLayer::AddLowRank(int64_t rank, double scale, double dropout) {
  DT_CHECK(!has_low_rank()) << "a layer has one correction at most";
  auto& layer = dynamic_cast<torch::nn::Module&>(*this);
  const Shape shape = low_rank_shape();
  const double bound = 1.0 / std::sqrt(static_cast<double>(shape.in));
  const auto parameters = layer.parameters(/*recurse=*/false);
  const auto options = parameters.empty() ? at::TensorOptions(at::kFloat)
                                          : parameters.front().options().requires_grad(false);
  const auto add = [&](const char* name, const at::Tensor& matrix) {
    return layer.register_module(name, std::make_shared<MatrixModule>(matrix))->weight;
  };
  a_ = add("lora_A", at::empty({rank, shape.in}, options).uniform_(-bound, bound));
  b_ = add("lora_B", at::zeros({shape.out, rank}, options));
  scale_ = scale;
  dropout_ = dropout;
}

at::Tensor LowRankLayer::LowRankWeight() const {
  if (!has_low_rank()) {
    return {};
  }
  const at::Tensor product = at::matmul(b_.to(at::kFloat), a_.to(at::kFloat)) * scale_;
  return low_rank_shape().transposed ? product.t() : product;
}

at::Tensor LowRankLayer::LowRank(const at::Tensor& x, bool training) const {
  const at::Tensor kept = dropout_ > 0 ? ops::Dropout(x, dropout_, training) : x;
  return at::linear(at::linear(kept, a_), b_) * scale_;
}

LinearImpl::LinearImpl(int64_t in, int64_t out, bool with_bias) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));
  // He et al.'s uniform with a = sqrt(5), whose bound is the same; torch::nn::Linear draws it so.
  weight = register_parameter("weight", at::empty({out, in}).uniform_(-bound, bound));
  if (with_bias) {
    bias = register_parameter("bias", at::empty({out}).uniform_(-bound, bound));
  }
}

at::Tensor LinearImpl::forward(const at::Tensor& x) {
  at::Tensor y = at::linear(x, weight, bias);
  return has_low_rank() ? y + LowRank(x, is_training()) : y;
}

}  // namespace dtrain
