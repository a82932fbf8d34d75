// Decompresses blocks of Snappy (format_description.txt of google/snappy) and LZ4
// (lz4_Block_format.md of lz4/lz4). Pure; any input is safe, and no more memory is taken than the
// output needs.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace dtrain::plan::parquet {

// Makes `out` the `bytes` that `block` holds. InvalidArgument says why it does not hold them.
absl::Status DecompressSnappy(absl::string_view block, size_t bytes, std::string* out);
absl::Status DecompressLz4(absl::string_view block, size_t bytes, std::string* out);

}  // namespace dtrain::plan::parquet
