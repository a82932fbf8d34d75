// The values of one column of a row group with their levels. Not thread-safe.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/parquet/page_stream.h"

namespace dtrain::plan::parquet {

class ColumnReader {
 public:
  // REQUIRES: `file` and `column` outlive this. Stands before the first entry: call Next.
  ColumnReader(const DataFile& file, const SelectedColumn& column, const ColumnChunk& chunk)
      : column_(column), pages_(file, column, chunk) {}

  // Goes to the next entry, which is a value, a null or an empty list. InvalidArgument: as
  // PageStream::Next, and for levels or values that are damaged.
  absl::Status Next();
  bool at_end() const { return at_end_; }
  // REQUIRES: !at_end(), also of the rest.
  int definition() const { return definition_; }
  int repetition() const { return repetition_; }
  const Value& value() const { return value_; }  // Its bytes are valid until Next.
  PhysicalType type() const { return column_.type; }
  // InvalidArgument with file, column and page: for what the levels of several columns show.
  absl::Status Bad(absl::string_view what) const { return pages_.Bad(what); }

 private:
  absl::Status NextLevel(RunDecoder& levels, int most, int* level) const;

  const SelectedColumn& column_;
  PageStream pages_;
  PageEntries page_;  // Those of its `count` entries that are to come.
  bool at_end_ = false;
  int definition_ = 0;
  int repetition_ = 0;
  Value value_;
};

}  // namespace dtrain::plan::parquet
