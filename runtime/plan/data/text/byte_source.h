// The bytes of a file or of standard input from front to back, decompressed where they are gzip's
// or Zstandard's, and lines of JSON where they are a table's: the first bytes tell it, not the
// name. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/row_columns.h"

namespace dtrain::plan {

// Stands for standard input where a path is expected.
inline constexpr absl::string_view kStandardInput("-");

class ByteSource {
 public:
  // If it is a table, its rows with these columns are read. NotFound: there is no such file.
  // InvalidArgument: it is a folder, a Parquet file that ParquetRows does not read, or holds text
  // in a form that is not read (Arrow, bzip2, xz); Unimplemented: it is of a kind that is no text
  // (zip, NumPy). The message names the form or kind.
  static absl::StatusOr<std::unique_ptr<ByteSource>> Open(const std::string& path,
                                                          const RowColumns& columns = {});
  virtual ~ByteSource() = default;

  // Fills `into` from its start and gives the number of bytes, below its size only at the end.
  // InvalidArgument: compressed data are damaged or end early; the message names the file.
  virtual absl::StatusOr<size_t> Read(absl::Span<char> into) = 0;
  // How many bytes of the file have been read: with compression fewer than Read gave.
  virtual int64_t bytes_consumed() const = 0;
  // Whether the lines are rows of a table, each an object of JSON.
  virtual bool has_rows() const { return false; }
  // Leaves out up to `lines` lines without reading them, and gives their number. REQUIRES: nothing
  // was read.
  virtual int64_t SkipLines(int64_t /*lines*/) { return 0; }
};

}  // namespace dtrain::plan
