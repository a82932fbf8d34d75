#include "ATen/Functions.h"
#include "dtrain/ops.h"
#include "runtime/ops/rope_shape.h"

namespace dtrain::ops {
namespace {

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
  return Composite(x, table, options, shape);
}

Qkv RopeQkv(const at::Tensor& qkv, int64_t heads, int64_t kv_heads, const RopeTable& table,
            const RopeOptions& options) {
  const int64_t head_dim = QkvHeadDim(qkv, heads, kv_heads);
  const RopeShape shape = CheckedRopeShape(qkv.size(0), qkv.size(1), head_dim, table, options);
  const auto all = qkv.unflatten(-1, {heads + 2 * kv_heads, head_dim});
  const auto parts = all.split_with_sizes({heads, kv_heads, kv_heads}, 2);
  return {Composite(parts[0], table, options, shape), Composite(parts[1], table, options, shape),
          parts[2]};
}

}  // namespace dtrain::ops
