// The rows of a Parquet file as lines of JSON, with the columns that are wanted. Pages are read and
// decompressed one at a time for each of them, so that memory does not grow with the file or its
// row groups. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/parquet/footer.h"
#include "runtime/plan/data/parquet/row_schema.h"
#include "runtime/plan/data/parquet/row_writer.h"
#include "runtime/plan/data/row_columns.h"

namespace dtrain::plan::parquet {

class ParquetRows {
 public:
  // InvalidArgument: it is no whole Parquet file, is encrypted, has none of the columns, or one of
  // a type or with a codec that is not read; the file and the column are named.
  static absl::StatusOr<std::unique_ptr<ParquetRows>> Open(const std::string& path,
                                                           const RowColumns& wanted);

  // Makes `line` the next row, without an end of line. False: there is none. The errors of
  // ColumnReader and RowWriter.
  absl::StatusOr<bool> Next(std::string* line);
  // Leaves out those row groups that are within the next `rows` rows, and gives their rows.
  // REQUIRES: a row group was not begun.
  int64_t SkipGroups(int64_t rows);
  // Bytes of the file in proportion to the rows that were given or left out; all at the end.
  int64_t bytes_consumed() const;

 private:
  explicit ParquetRows(DataFile file) : file_(std::move(file)) {}
  absl::Status ReadFooter(const RowColumns& wanted);
  absl::Status CheckColumns() const;
  absl::Status OpenGroup(const RowGroup& group);

  const DataFile file_;
  RowSchema schema_;
  std::vector<RowGroup> groups_;
  int64_t rows_ = 0;
  int64_t row_ = 0;         // The next one's number.
  size_t next_group_ = 0;   // Behind the present one.
  int64_t group_left_ = 0;  // Rows of the present one.
  std::unique_ptr<RowWriter> writer_;
};

}  // namespace dtrain::plan::parquet
