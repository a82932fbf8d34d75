// The footer of a file: its schema as a tree, and where the pages of its columns lie. Pure; any
// bytes are safe, and the work is bounded by their number.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/parquet/format.h"

namespace dtrain::plan::parquet {

// What a schema says of the meaning of a group or a leaf, as far as reading depends on it.
enum class Meaning { kNone, kText, kList, kOther };
enum class Repetition { kRequired = 0, kOptional = 1, kRepeated = 2 };

struct SchemaNode {
  std::string name;
  Repetition repetition = Repetition::kRequired;
  Meaning meaning = Meaning::kNone;
  // Levels of a value that is there: how many optional and repeated nodes, and how many repeated
  // ones, lead to it, itself counted.
  int definition_max = 0;
  int repetition_max = 0;
  std::vector<SchemaNode> children;  // Empty: a leaf, which is a column.
  PhysicalType type = PhysicalType::kBoolean;
  size_t column = 0;  // Its number among the leaves.
};

struct FileSchema {
  SchemaNode root;
  size_t columns = 0;
  int64_t rows = 0;
};

// A column that is read.
struct SelectedColumn {
  size_t column = 0;  // Its number in the file.
  std::string path;   // "messages.list.element.role"
  PhysicalType type = PhysicalType::kBoolean;
  int definition_max = 0;
  int repetition_max = 0;
};

// The pages of one column in a row group.
struct ColumnChunk {
  int64_t offset = 0;  // In the file, of its first page.
  int64_t bytes = 0;
  int64_t values = 0;  // Nulls too.
  Codec codec = Codec::kUncompressed;
  PhysicalType type = PhysicalType::kBoolean;
};

struct RowGroup {
  int64_t rows = 0;
  std::vector<ColumnChunk> columns;  // Those that were asked for, in their order.
};

// InvalidArgument: no such footer, or a schema that cannot be.
absl::StatusOr<FileSchema> ParseSchema(absl::string_view footer);

// The row groups with these columns. `pages_end`: where the footer begins, before which all pages
// lie. InvalidArgument: a part cannot be where it should, one of these columns is encrypted or in
// another file, or the rows are not as many as the schema's. REQUIRES: the numbers of `columns`
// ascend.
absl::StatusOr<std::vector<RowGroup>> ParseRowGroups(absl::string_view footer,
                                                     const FileSchema& schema,
                                                     absl::Span<const SelectedColumn> columns,
                                                     int64_t pages_end);

}  // namespace dtrain::plan::parquet
