#include "gpt/key_value_cache.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace {

constexpr int64_t kFirstTokens = 64;

}  // namespace

at::Tensor KeyValueCache::WithRoom(const at::Tensor& kept, const at::Tensor& more,
                                   int64_t tokens) const {
  if (kept.defined() && kept.size(2) >= tokens) {
    return kept;
  }
  const int64_t twice = kept.defined() ? 2 * kept.size(2) : kFirstTokens;
  const int64_t room = std::max(tokens, std::min(tokens_max_, twice));
  at::Tensor larger = at::empty({more.size(0), more.size(2), room, more.size(3)}, more.options());
  if (length_ > 0) {
    larger.narrow(2, 0, length_).copy_(kept.narrow(2, 0, length_));
  }
  return larger;
}

KeysAndValues KeyValueCache::Append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = length_ + k.size(1);
  TORCH_CHECK(tokens <= tokens_max_, "a cache for ", tokens_max_, " tokens is asked for ", tokens);
  KeysAndValues& kept = layers_[next_];
  kept.keys = WithRoom(kept.keys, k, tokens);
  kept.values = WithRoom(kept.values, v, tokens);
  kept.keys.narrow(2, length_, k.size(1)).copy_(k.transpose(1, 2));
  kept.values.narrow(2, length_, v.size(1)).copy_(v.transpose(1, 2));
  KeysAndValues all{kept.keys.narrow(2, 0, tokens), kept.values.narrow(2, 0, tokens)};
  if (++next_ == layers_.size()) {
    next_ = 0;
    length_ = tokens;
  }
  return all;
}
