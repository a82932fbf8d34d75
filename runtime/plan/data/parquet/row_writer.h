// Assembles rows from the columns of a row group and writes them as JSON: Dremel's record assembly
// (Melnik et al., VLDB 2010). A null member of an object is left out. Not thread-safe.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/parquet/column_reader.h"
#include "runtime/plan/data/parquet/row_schema.h"

namespace dtrain::plan::parquet {

// `text` as a string of JSON. Bytes that are not UTF-8 stay, which readers of JSON refuse.
void AppendJsonText(absl::string_view text, std::string* out);

class RowWriter {
 public:
  // REQUIRES: both outlive this; the readers stand before their first entry.
  RowWriter(const RowSchema& schema, std::vector<std::unique_ptr<ColumnReader>> readers)
      : schema_(schema), readers_(std::move(readers)) {}

  // Goes to the first row.
  absl::Status Begin();
  // Appends the row as one object to `out`, which is empty. The errors of ColumnReader;
  // InvalidArgument: the columns have different numbers of rows or elements, or the row is longer
  // than kDocumentBytesMax.
  absl::Status Append(std::string* out);
  // InvalidArgument: there are more rows.
  absl::Status End() const;

 private:
  absl::Status AppendValue(const RowValue& value, std::string* out);
  absl::Status AppendObject(const std::vector<RowValue>& members, std::string* out);
  absl::Status AppendList(const RowValue& list, std::string* out);
  void AppendLeaf(const ColumnReader& reader, std::string* out) const;
  // Whether all columns of `value` have a definition level below `definition`. InvalidArgument:
  // some have, and some not.
  absl::StatusOr<bool> AreBelow(const RowValue& value, int definition) const;
  // The same for entries that stay in the list whose elements begin at `repetition`.
  absl::StatusOr<bool> HaveMore(const RowValue& value, int repetition) const;
  absl::Status Skip(const RowValue& value);  // One entry of each column.

  const RowSchema& schema_;
  std::vector<std::unique_ptr<ColumnReader>> readers_;
};

}  // namespace dtrain::plan::parquet
