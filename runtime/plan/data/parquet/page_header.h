// The header in front of each page. Pure; any bytes are safe.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/parquet/format.h"

namespace dtrain::plan::parquet {

enum class PageKind { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

struct PageHeader {
  int64_t header_bytes = 0;
  PageKind kind = PageKind::kData;
  int64_t bytes = 0;  // Decompressed, with the levels.
  int64_t stored_bytes = 0;
  std::optional<uint32_t> crc;  // CRC-32 of the stored bytes.
  int64_t values = 0;           // Nulls too.
  Encoding encoding = Encoding::kPlain;
  // In version 1, levels stand in the decompressed bytes with their lengths.
  Encoding definition_encoding = Encoding::kRle;
  Encoding repetition_encoding = Encoding::kRle;
  // In version 2, levels stand in front of what is compressed.
  int64_t definition_bytes = 0;
  int64_t repetition_bytes = 0;
  bool is_compressed = true;
};

// The header that `bytes` begin with. OutOfRange: they end inside it; InvalidArgument: it is none,
// or its numbers cannot be.
absl::StatusOr<PageHeader> ParsePageHeader(absl::string_view bytes);

}  // namespace dtrain::plan::parquet
