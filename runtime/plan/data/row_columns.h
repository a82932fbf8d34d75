// The columns that are wanted of a table's rows, such as those of a Parquet file. Values.
#pragma once

#include <string>
#include <vector>

namespace dtrain::plan {

struct RowColumn {
  std::string name;
  std::vector<std::string> members;  // If it holds objects, these of their members. Empty: all.
};

struct RowColumns {
  std::vector<RowColumn> columns;  // Those that a table has are read.
  std::string advice;  // Ends the error of a table that has none: "; --text-key names another".
};

}  // namespace dtrain::plan
