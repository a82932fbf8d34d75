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
  // If it holds objects, these of their members are read, and all of them must be there. Empty: all
  // that are there are read.
  std::vector<std::string> members;
  std::vector<std::string> members_if_there = {};  // Beside `members`, which are some then.
};

struct RowColumns {
  std::vector<RowColumn> columns;  // Those that a table has are read.
  std::string advice;  // Ends the error of a table that lacks them: "; --text-key names another".
  // A table must have all columns of one of these sets. Empty: any one of `columns` will do.
  std::vector<std::vector<std::string>> forms = {};
};

}  // namespace dtrain::plan
