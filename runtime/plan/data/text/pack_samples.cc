#include "runtime/plan/data/text/pack_samples.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace dtrain::plan {

std::vector<std::vector<uint32_t>> PackSamples(absl::Span<const int32_t> lengths,
                                               int64_t row_length) {
  std::vector<uint32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
  std::vector<std::vector<uint32_t>> rows;
  std::set<std::pair<int64_t, size_t>> room;  // Tokens left and the row, of rows that are not full.
  for (const uint32_t sample : order) {
    const int64_t length = lengths[sample];
    DT_CHECK(length >= 1 && length <= row_length) << length << " of " << row_length;
    const auto fullest = room.lower_bound({length, 0});
    size_t row = rows.size();
    int64_t left = row_length;
    if (fullest == room.end()) {
      rows.emplace_back();
    } else {
      std::tie(left, row) = *fullest;
      room.erase(fullest);
    }
    rows[row].push_back(sample);
    if (left > length) {
      room.emplace(left - length, row);
    }
  }
  return rows;
}

}  // namespace dtrain::plan
