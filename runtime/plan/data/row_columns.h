// The columns that are wanted of a table's rows, such as those of a Parquet file, and how long a
// row may be. Values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dtrain::plan {

// The most bytes of one document, and so of a line, or of a row as JSON: a few of them have to fit
// into memory.
inline constexpr int64_t kDocumentBytesMax = int64_t{64} << 20;

struct RowColumn {
  std::string name;
  std::vector<std::string> members;  // If it holds objects, these of their members. Empty: all.
};

struct RowColumns {
  std::vector<RowColumn> columns;  // Those that a table has are read.
  std::string advice;  // Ends the error of a table that has none: "; --text-key names another".
};

}  // namespace dtrain::plan
