#include "bench/mfu/operation_cost.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace dtrain::bench {
namespace {

double Elements(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), 1.0,
                         [](double all, int64_t size) { return all * static_cast<double>(size); });
}

// The last two inputs that are matrices (addmm has the added one before them).
std::optional<OperationCost> Product(const char* name, const Shapes& inputs, size_t first,
                                     size_t dimensions, double element_bytes, double result_bytes) {
  if (inputs.size() < first + 2 || inputs[first].size() != dimensions ||
      inputs[first + 1].size() != dimensions) {
    return std::nullopt;
  }
  const std::vector<int64_t>& a = inputs[first];
  const std::vector<int64_t>& b = inputs[first + 1];
  const int64_t batch = dimensions == 3 ? a[0] : 1;
  const int64_t rows = a[dimensions - 2];
  const int64_t summed = a[dimensions - 1];
  const int64_t columns = b[dimensions - 1];
  OperationCost cost;
  cost.label = dimensions == 3
                   ? absl::StrFormat("%s %dx%dx%dx%d", name, batch, rows, summed, columns)
                   : absl::StrFormat("%s %dx%dx%d", name, rows, summed, columns);
  const auto result = static_cast<double>(batch * rows * columns);
  cost.flop = 2 * result * static_cast<double>(summed);
  cost.bytes = element_bytes * (Elements(a) + Elements(b)) + result_bytes * result;
  return cost;
}

// Query [batch, heads, length, head_dim], key and value [batch, kv_heads, keys, head_dim]. Two
// products forward, four backward, each over half of the pairs (causal).
std::optional<OperationCost> Attention(bool backward, const Shapes& inputs, double element_bytes) {
  const size_t first = backward ? 1 : 0;  // The gradient of the result comes first.
  if (inputs.size() < first + 3) {
    return std::nullopt;
  }
  const std::vector<int64_t>& query = inputs[first];
  const std::vector<int64_t>& key = inputs[first + 1];
  if (query.size() != 4 || key.size() != 4) {
    return std::nullopt;
  }
  const double pairs = Elements(query) * static_cast<double>(key[2]) / 2;  // Times head_dim.
  const double once = 2 * Elements(query) + 2 * Elements(key);  // Query and result, key and value.
  return OperationCost{
      .label = absl::StrFormat("attention %s %dx%dx%dx%d", backward ? "backward" : "forward",
                               query[0], query[1], query[2], query[3]),
      .flop = (backward ? 8 : 4) * pairs,
      .bytes = element_bytes * (backward ? 2 * once : once)};
}

}  // namespace

std::optional<OperationCost> CostOf(absl::string_view name, const Shapes& inputs,
                                    int64_t element_bytes) {
  const auto bytes = static_cast<double>(element_bytes);
  if (name == "aten::mm" || name == "dtrain::matmul") {
    return Product("mm", inputs, 0, 2, bytes, bytes);
  }
  if (name == "aten::_scaled_mm") {
    return Product("FP8 mm", inputs, 0, 2, bytes, 2);  // From codes of one byte to bf16.
  }
  if (name == "aten::addmm") {
    return Product("mm", inputs, 1, 2, bytes, bytes);
  }
  if (name == "aten::bmm") {
    return Product("bmm", inputs, 0, 3, bytes, bytes);
  }
  // The operations that do the work; those above them only choose.
  if (absl::StartsWith(name, "aten::_scaled_dot_product_") ||
      absl::StartsWith(name, "dtrain::attention")) {
    return Attention(absl::StrContains(name, "backward"), inputs, bytes);
  }
  return std::nullopt;
}

std::vector<OperationGroup> GroupCalls(const std::vector<OperationCall>& calls) {
  std::map<std::string, OperationGroup> groups;
  for (const OperationCall& call : calls) {
    if (const auto cost = CostOf(call.name, call.inputs, call.element_bytes)) {
      OperationGroup& group = groups[cost->label];
      group.each = *cost;
      group.work = WorkOfOperation(call.name);
      ++group.calls;
      group.seconds += call.seconds;
    }
  }
  std::vector<OperationGroup> sorted;
  for (auto& [label, group] : groups) {
    sorted.push_back(std::move(group));
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const OperationGroup& a, const OperationGroup& b) { return a.seconds > b.seconds; });
  return sorted;
}

}  // namespace dtrain::bench
