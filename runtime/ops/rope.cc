#include "kernels/layers/rope.h"

#include <algorithm>
#include <vector>

#include "ATen/Functions.h"
#include "ATen/TensorOperators.h"
#include "dtrain/ops.h"
#include "runtime/ops/fused.h"
#include "runtime/ops/rope_shape.h"
#include "torch/csrc/autograd/custom_function.h"

namespace dtrain::ops {
namespace {

using kernels::CudaKernelTable;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- ATen ----

// cos or sin of every token, [batch or 1, sequence, 1, rotary_dim / 2].
at::Tensor RowsOf(const at::Tensor& table, const RopeOptions& options, const RopeShape& shape) {
  if (!options.positions.defined()) {
    return table.narrow(0, 0, shape.sequence).unsqueeze(0).unsqueeze(2);
  }
  return table.index_select(0, options.positions.reshape({-1}))
      .view({shape.batch, shape.sequence, 1, table.size(1)});
}

at::Tensor Composite(const at::Tensor& x, const RopeTable& table, const RopeOptions& options,
                     const RopeShape& shape) {
  const at::Tensor cos = RowsOf(table.cos, options, shape);
  const at::Tensor sin = RowsOf(table.sin, options, shape);
  const int64_t half = shape.rotary_dim / 2;
  const at::Tensor rotary = x.narrow(-1, 0, shape.rotary_dim);
  const bool interleaved = options.form == RopeForm::kInterleaved;
  const at::Tensor pairs =
      interleaved ? rotary.unflatten(-1, {half, 2}) : rotary.unflatten(-1, {2, half});
  const int64_t side = interleaved ? -1 : -2;
  const at::Tensor a = pairs.select(side, 0);
  const at::Tensor b = pairs.select(side, 1);
  const at::Tensor rotated = at::stack({a * cos - b * sin, b * cos + a * sin}, side)
                                 .flatten(-2)
                                 .to(x.scalar_type());  // The tables are fp32.
  return at::cat({rotated, x.narrow(-1, shape.rotary_dim, shape.head_dim - shape.rotary_dim)}, -1);
}

// ---- Kernels ----

// The arguments that a rotation and its backward have in common.
struct Rotation {
  at::Tensor cos, sin, positions;  // Positions may be undefined.
  RopeForm form;
  RopeShape shape;
};

Rotation RotationOf(const RopeTable& table, const RopeOptions& options, const RopeShape& shape) {
  return {table.cos, table.sin, options.positions, options.form, shape};
}

void Save(AutogradContext* context, const Rotation& rotation) {
  context->save_for_backward({rotation.cos, rotation.sin, rotation.positions});
  const RopeShape& shape = rotation.shape;
  context->saved_data["form"] = static_cast<int64_t>(rotation.form);
  context->saved_data["shape"] =
      std::vector<int64_t>{shape.batch, shape.sequence, shape.head_dim, shape.rotary_dim};
}

Rotation Restore(AutogradContext* context) {
  const variable_list saved = context->get_saved_variables();
  const std::vector<int64_t> shape = context->saved_data["shape"].toIntVector();
  return {saved[0],
          saved[1],
          saved[2],
          static_cast<RopeForm>(context->saved_data["form"].toInt()),
          {shape[0], shape[1], shape[2], shape[3]}};
}

template <class T>
kernels::RopeArgs<T> ArgsOf(const Rotation& rotation, bool inverse) {
  kernels::RopeArgs<T> args;
  args.form = rotation.form == RopeForm::kInterleaved ? kernels::RopeForm::kInterleaved
                                                      : kernels::RopeForm::kHalfSplit;
  args.inverse = inverse;
  args.tokens = rotation.shape.batch * rotation.shape.sequence;
  args.sequence = std::max<int64_t>(1, rotation.shape.sequence);
  args.head_dim = rotation.shape.head_dim;
  args.rotary_dim = rotation.shape.rotary_dim;
  args.cos = rotation.cos.const_data_ptr<float>();
  args.sin = rotation.sin.const_data_ptr<float>();
  if (rotation.positions.defined()) {
    args.positions = rotation.positions.const_data_ptr<int64_t>();
  }
  return args;
}

// x [batch, sequence, heads, head_dim], dense.
template <class T>
at::Tensor Turn(const at::Tensor& x, const Rotation& rotation, bool inverse) {
  RECORD_FUNCTION("dtrain::rope", Inputs(x, rotation.cos, rotation.sin));
  at::Tensor out = at::empty_like(x);
  kernels::RopeArgs<T> args = ArgsOf<T>(rotation, inverse);
  const int64_t row = x.size(2) * x.size(3);
  args.parts[0] = {x.size(2), true, Data<T>(x), MutableData<T>(out), row, row};
  Launch(rotation.cos, args, kernels::RopeCpu,
         OfType<T>(&CudaKernelTable::rope, &CudaKernelTable::rope_bf16));
  return out;
}

class RopeFunction : public torch::autograd::Function<RopeFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const Rotation& rotation) {
    Save(context, rotation);
    return x.scalar_type() == at::kFloat ? Turn<float>(x, rotation, false)
                                         : Turn<BFloat16>(x, rotation, false);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Rotation rotation = Restore(context);
    const at::Tensor dy = gradients[0].contiguous();
    return {dy.scalar_type() == at::kFloat ? Turn<float>(dy, rotation, true)
                                           : Turn<BFloat16>(dy, rotation, true),
            at::Tensor()};
  }
};

// q and k of a fused projection, turned.
template <class T>
void TurnQk(const at::Tensor& qkv, at::Tensor& q, at::Tensor& k, const Rotation& rotation) {
  RECORD_FUNCTION("dtrain::rope_qkv", Inputs(qkv, rotation.cos, rotation.sin));
  kernels::RopeArgs<T> args = ArgsOf<T>(rotation, false);
  const int64_t head_dim = rotation.shape.head_dim;
  const T* from = Data<T>(qkv);
  int part = 0;
  for (at::Tensor* const out : {&q, &k}) {
    const int64_t heads = out->size(2);
    args.parts[part++] = {heads, true, from, MutableData<T>(*out), qkv.size(2), heads * head_dim};
    from += heads * head_dim;
  }
  Launch(rotation.cos, args, kernels::RopeCpu,
         OfType<T>(&CudaKernelTable::rope, &CudaKernelTable::rope_bf16));
}

// The gradient of a fused projection from those of its parts, of which some may be undefined.
template <class T>
at::Tensor TurnBack(const variable_list& gradients, const std::vector<int64_t>& heads,
                    const Rotation& rotation, const at::TensorOptions& options) {
  const RopeShape& shape = rotation.shape;
  const int64_t width = (heads[0] + heads[1] + heads[2]) * shape.head_dim;
  variable_list dense;
  for (size_t part = 0; part < 3; ++part) {
    dense.push_back(
        gradients[part].defined()
            ? gradients[part].contiguous()
            : at::zeros({shape.batch, shape.sequence, heads[part], shape.head_dim}, options));
  }
  RECORD_FUNCTION("dtrain::rope_qkv_backward",
                  Inputs(dense[0], dense[1], dense[2], rotation.cos, rotation.sin));
  at::Tensor dqkv = at::empty({shape.batch, shape.sequence, width}, options);
  kernels::RopeArgs<T> args = ArgsOf<T>(rotation, true);
  T* to = MutableData<T>(dqkv);
  for (size_t part = 0; part < 3; ++part) {
    const int64_t row = heads[part] * shape.head_dim;
    args.parts[part] = {heads[part], part < 2, Data<T>(dense[part]), to, row, width};
    to += row;
  }
  Launch(rotation.cos, args, kernels::RopeCpu,
         OfType<T>(&CudaKernelTable::rope, &CudaKernelTable::rope_bf16));
  return dqkv;
}

class RopeQkvFunction : public torch::autograd::Function<RopeQkvFunction> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& qkv, int64_t heads,
                               int64_t kv_heads, const Rotation& rotation) {
    context->set_materialize_grads(false);
    Save(context, rotation);
    context->saved_data["heads"] = std::vector<int64_t>{heads, kv_heads, kv_heads};
    context->saved_data["bf16"] = qkv.scalar_type() == at::kBFloat16;
    const RopeShape& shape = rotation.shape;
    at::Tensor q = at::empty({shape.batch, shape.sequence, heads, shape.head_dim}, qkv.options());
    at::Tensor k =
        at::empty({shape.batch, shape.sequence, kv_heads, shape.head_dim}, qkv.options());
    if (qkv.scalar_type() == at::kFloat) {
      TurnQk<float>(qkv, q, k, rotation);
    } else {
      TurnQk<BFloat16>(qkv, q, k, rotation);
    }
    const at::Tensor v =
        qkv.narrow(-1, (heads + kv_heads) * shape.head_dim, kv_heads * shape.head_dim)
            .unflatten(-1, {kv_heads, shape.head_dim});
    return {q, k, v};
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const Rotation rotation = Restore(context);
    const std::vector<int64_t> heads = context->saved_data["heads"].toIntVector();
    const bool bf16 = context->saved_data["bf16"].toBool();
    const at::TensorOptions options =
        rotation.cos.options().dtype(bf16 ? at::kBFloat16 : at::kFloat);
    return {bf16 ? TurnBack<BFloat16>(gradients, heads, rotation, options)
                 : TurnBack<float>(gradients, heads, rotation, options),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Whether kernels take the table and the positions: they must be on the device of x.
bool TableFusable(const at::Tensor& x, const RopeTable& table, const RopeOptions& options) {
  return Fusable(table.cos) && Fusable(table.sin) && table.cos.device() == x.device() &&
         table.sin.device() == x.device() &&
         (!options.positions.defined() || options.positions.device() == x.device());
}

}  // namespace

RopeTable MakeRopeTable(int64_t positions, int64_t rotary_dim, double theta) {
  TORCH_CHECK(rotary_dim > 0 && rotary_dim % 2 == 0, "a rope table has an even rotary_dim, not ",
              rotary_dim);
  TORCH_CHECK(theta > 0, "a rope table has a theta above 0, not ", theta);
  const at::Tensor exponents =
      at::arange(0, rotary_dim, 2, at::kDouble) / (-static_cast<double>(rotary_dim));
  return MakeRopeTable(positions, at::pow(theta, exponents));
}

RopeTable MakeRopeTable(int64_t positions, const at::Tensor& inverse_frequencies) {
  TORCH_CHECK(positions >= 0, "a rope table has 0 or more positions, not ", positions);
  TORCH_CHECK(inverse_frequencies.dim() == 1 && inverse_frequencies.scalar_type() == at::kDouble,
              "inverse frequencies are fp64 [rotary_dim / 2], not ",
              inverse_frequencies.scalar_type(), " ", inverse_frequencies.sizes());
  const at::Tensor angles =
      at::outer(at::arange(positions, inverse_frequencies.options()), inverse_frequencies);
  return {angles.cos().to(at::kFloat), angles.sin().to(at::kFloat)};
}

at::Tensor Rope(const at::Tensor& x, const RopeTable& table, const RopeOptions& options) {
  TORCH_CHECK(x.dim() == 4, "Rope takes x [batch, sequence, heads, head_dim], not ", x.sizes());
  const RopeShape shape = CheckedRopeShape(x.size(0), x.size(1), x.size(3), table, options);
  if (Fusable(x) && TableFusable(x, table, options)) {
    return RopeFunction::apply(x, RotationOf(table, options, shape));
  }
  return Composite(x, table, options, shape);
}

Qkv RopeQkv(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const RopeTable& table,
            const RopeOptions& options) {
  const int64_t head_dim = QkvHeadDim(qkv, heads, kv_heads);
  const RopeShape shape = CheckedRopeShape(qkv.size(0), qkv.size(1), head_dim, table, options);
  if (Fusable(qkv) && TableFusable(qkv, table, options)) {
    const variable_list out =
        RopeQkvFunction::apply(qkv, heads, kv_heads, RotationOf(table, options, shape));
    return {out[0], out[1], out[2]};
  }
  const auto all = qkv.unflatten(-1, {heads + 2 * kv_heads, head_dim});
  const auto parts = all.split_with_sizes({heads, kv_heads, kv_heads}, 2);
  return {Composite(parts[0], table, options, shape), Composite(parts[1], table, options, shape),
          parts[2]};
}

}  // namespace dtrain::ops
