// The data pages of one column of a row group: one page and the column's dictionary are in memory.
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/plan/data/data_file.h"
#include "runtime/plan/data/parquet/bit_runs.h"
#include "runtime/plan/data/parquet/footer.h"
#include "runtime/plan/data/parquet/page_header.h"
#include "runtime/plan/data/parquet/row_schema.h"
#include "runtime/plan/data/parquet/values.h"

namespace dtrain::plan::parquet {

// The entries of a page. They read what PageStream holds, until its next page.
struct PageEntries {
  int64_t count = 0;
  RunDecoder repetitions;
  RunDecoder definitions;
  std::unique_ptr<ValueDecoder> values;  // For the entries that are no nulls.
};

class PageStream {
 public:
  // REQUIRES: `file` and `column` outlive this.
  PageStream(const DataFile& file, const SelectedColumn& column, const ColumnChunk& chunk);
  PageStream(const PageStream&) = delete;
  PageStream& operator=(const PageStream&) = delete;

  // Makes `page` the entries of the next data page. False: all entries were given. InvalidArgument:
  // the page is damaged, cut or of a kind that is not read; file, column and page are named.
  absl::StatusOr<bool> Next(PageEntries* page);
  // InvalidArgument with file, column and the page that was read last.
  absl::Status Bad(absl::string_view what) const;

 private:
  absl::Status ReadNext(PageEntries* page);
  absl::StatusOr<PageHeader> ReadHeader() const;
  absl::Status ReadStored(const PageHeader& header);
  absl::Status OpenDictionary(const PageHeader& header);
  absl::Status OpenData(const PageHeader& header, PageEntries* page);
  absl::Status OpenDataV2(const PageHeader& header, PageEntries* page);
  absl::Status OpenValues(const PageHeader& header, absl::string_view bytes, PageEntries* page);

  const DataFile& file_;
  const SelectedColumn& column_;
  const ColumnChunk chunk_;
  int64_t page_at_;  // In the file, of the present page.
  int64_t next_at_;
  int64_t entries_left_;  // In pages that are to come.
  std::string stored_;    // The present page.
  std::string decompressed_;
  std::string dictionary_bytes_;
  std::vector<Value> dictionary_;
  bool has_dictionary_ = false;
};

}  // namespace dtrain::plan::parquet
