// The columns of a file that become JSON values of its rows. Pure.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/parquet/footer.h"
#include "runtime/plan/data/row_columns.h"

namespace dtrain::plan::parquet {

// A value of a row: text, a number, a truth value, an object or a list. It is null where the
// definition level is below `present`.
struct RowValue {
  enum class Kind { kLeaf, kObject, kList };
  std::string name;
  Kind kind = Kind::kLeaf;
  int present = 0;
  // In a list: where the definition level is below `element`, it is empty; its second and later
  // elements begin at the repetition level `repetition`.
  int element = 0;
  int repetition = 0;
  std::vector<RowValue> children;  // Members; or of a list the element.
  // Its leaves are these of the selected columns.
  size_t columns_begin = 0;
  size_t columns_end = 0;
};

struct RowSchema {
  std::vector<RowValue> members;
  std::vector<SelectedColumn> columns;
};

// The wanted columns that the schema has. InvalidArgument: it has none of them, or no whole form
// (those that it has are named), one twice, one without a wanted member, or one of a type that is
// no JSON value.
absl::StatusOr<RowSchema> SelectColumns(const SchemaNode& root, const RowColumns& wanted);

}  // namespace dtrain::plan::parquet
