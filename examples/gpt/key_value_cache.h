// The keys and values of the tokens that a model has read, for all of its layers: with them each
// further token costs one pass over one token. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "ATen/core/Tensor.h"

struct KeysAndValues {
  at::Tensor keys;    // [batch, kv_heads, tokens, head_dim].
  at::Tensor values;  // The same shape.
};

class KeyValueCache {
 public:
  // Memory follows the tokens that there are, doubled up to `tokens_max`. REQUIRES: layers > 0.
  KeyValueCache(int64_t layers, int64_t tokens_max)
      : tokens_max_(tokens_max), layers_(static_cast<size_t>(layers)) {}

  // Adds k and v [batch, n, kv_heads, head_dim] of the next layer, and gives that layer's of all
  // tokens so far, as views. Each layer of a pass calls it once, in their order.
  // REQUIRES: there are at most `tokens_max` tokens then.
  KeysAndValues Append(const at::Tensor& k, const at::Tensor& v);

  int64_t length() const { return length_; }  // Tokens of the passes that have ended.

 private:
  // The first `length_` tokens of `kept` in memory for `tokens` or more.
  at::Tensor WithRoom(const at::Tensor& kept, const at::Tensor& more, int64_t tokens) const;

  int64_t tokens_max_;
  std::vector<KeysAndValues> layers_;  // Memory for tokens that may not be there yet.
  size_t next_ = 0;                    // The layer whose turn it is.
  int64_t length_ = 0;
};
