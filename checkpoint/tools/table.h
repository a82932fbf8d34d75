// A table of text with aligned columns, for people. Not thread-safe.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace dtrain::checkpoint {

class Table {
 public:
  explicit Table(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }
  // Control characters, which a tensor's name may hold, become '?'. REQUIRES: as many cells as
  // heads.
  void Add(std::vector<std::string> row);
  bool has_rows() const { return rows_.size() > 1; }
  // The lines, the row of heads first. Columns in `to_the_right` are aligned right, as numbers are.
  std::string Text(const std::vector<size_t>& to_the_right) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace dtrain::checkpoint
