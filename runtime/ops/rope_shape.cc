#include "runtime/ops/rope_shape.h"

#include <algorithm>

#include "ATen/core/Tensor.h"

namespace dtrain::ops {
namespace {

void CheckPositions(const at::Tensor& positions, int64_t batch, int64_t sequence, int64_t limit) {
  TORCH_CHECK(positions.scalar_type() == at::kLong && positions.is_contiguous() &&
                  positions.sizes() == at::IntArrayRef({batch, sequence}),
              "rope positions are contiguous int64 [batch, sequence] = [", batch, ", ", sequence,
              "], not ", positions.scalar_type(), " ", positions.sizes());
  if (!positions.is_cpu() || positions.numel() == 0) {
    return;  // On a device the reader would have to wait.
  }
  const int64_t* const begin = positions.const_data_ptr<int64_t>();
  const auto [least, most] = std::minmax_element(begin, begin + positions.numel());
  TORCH_CHECK(*least >= 0 && *most < limit, "rope positions lie in [0, ", limit,
              "), the table's; these run from ", *least, " to ", *most,
              ": make the table longer or check where documents begin");
}

}  // namespace

RopeShape CheckedRopeShape(int64_t batch, int64_t sequence, int64_t head_dim,
                           const RopeTable& table, const RopeOptions& options) {
  TORCH_CHECK(table.cos.dim() == 2 && table.cos.sizes() == table.sin.sizes() &&
                  table.cos.scalar_type() == at::kFloat && table.sin.scalar_type() == at::kFloat,
              "a rope table is fp32 cos and sin [positions, rotary_dim / 2], not ",
              table.cos.sizes(), " and ", table.sin.sizes());
  const int64_t rotary_dim = 2 * table.cos.size(1);
  TORCH_CHECK(rotary_dim <= head_dim, "the rope table rotates ", rotary_dim,
              " elements of a head, which has ", head_dim);
  const int64_t limit = table.cos.size(0);
  if (options.positions.defined()) {
    CheckPositions(options.positions, batch, sequence, limit);
  } else {
    TORCH_CHECK(sequence <= limit, "a sequence of ", sequence, " tokens needs a rope table of as ",
                "many positions; this one has ", limit);
  }
  return {batch, sequence, head_dim, rotary_dim};
}

int64_t QkvHeadDim(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  TORCH_CHECK(heads > 0 && kv_heads > 0 && heads % kv_heads == 0, "RopeQkv takes heads, a ",
              "multiple of kv_heads, not ", heads, " and ", kv_heads);
  const int64_t all = heads + 2 * kv_heads;
  TORCH_CHECK(qkv.dim() == 3 && qkv.size(2) % all == 0,
              "RopeQkv takes qkv [batch, sequence, (heads + 2 kv_heads) head_dim] with heads + 2 ",
              "kv_heads = ", all, ", not ", qkv.sizes());
  return qkv.size(2) / all;
}

}  // namespace dtrain::ops
