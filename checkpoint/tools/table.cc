#include "checkpoint/tools/table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/text.h"

namespace dtrain::checkpoint {

void Table::Add(std::vector<std::string> row) {
  for (std::string& cell : row) {
    cell = Printable(std::move(cell));
  }
  rows_.push_back(std::move(row));
}

std::string Table::Text(const std::vector<size_t>& to_the_right) const {
  std::vector<size_t> widths(rows_[0].size(), 0);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool right = std::count(to_the_right.begin(), to_the_right.end(), i) > 0;
      const std::string space(widths[i] - row[i].size(), ' ');
      absl::StrAppend(&line, "  ", right ? space : "", row[i], right ? "" : space);
    }
    line.resize(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, line, "\n");
  }
  return text;
}

}  // namespace dtrain::checkpoint
