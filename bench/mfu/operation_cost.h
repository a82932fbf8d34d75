// The arithmetic and the bytes that an operation needs, from the shapes of its inputs. Pure; free
// of LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "bench/mfu/breakdown.h"

namespace dtrain::bench {

using Shapes = std::vector<std::vector<int64_t>>;

struct OperationCost {
  std::string label;  // "mm 512x768x3072" (rows x summed x columns).
  double flop = 0;
  double bytes = 0;  // Each operand and the result once.
};

// Products (aten::mm, addmm, bmm) and attention, forward and backward, which is taken as causal and
// without what the backward computes again; of attention the CPU's and CUDA's own forms. None for
// other operations and unknown shapes.
std::optional<OperationCost> CostOf(absl::string_view name, const Shapes& inputs,
                                    int64_t element_bytes);

// One call of an operation as a profile shows it.
struct OperationCall {
  std::string name;
  Shapes inputs;
  int64_t element_bytes = 4;
  double seconds = 0;  // Includes the operations that it called.
};

// Calls of one operation on one shape.
struct OperationGroup {
  OperationCost each;
  Work work = Work::kGemm;
  int64_t calls = 0;
  double seconds = 0;  // All calls together.

  double flops_per_s() const { return seconds > 0 ? each.flop * double(calls) / seconds : 0; }
  double flop_per_byte() const { return each.bytes > 0 ? each.flop / each.bytes : 0; }
};

// The calls whose cost is known, by label, the longest first.
std::vector<OperationGroup> GroupCalls(const std::vector<OperationCall>& calls);

}  // namespace dtrain::bench
