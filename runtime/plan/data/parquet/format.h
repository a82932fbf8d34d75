// The numbers of Parquet's format (parquet.thrift of apache/parquet-format), and the limits within
// which files are read. Values.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace dtrain::plan::parquet {

inline constexpr absl::string_view kMagic("PAR1");
inline constexpr absl::string_view kEncryptedMagic("PARE");

// A page is in memory as a whole, stored and decompressed.
inline constexpr int64_t kPageBytesMax = int64_t{512} << 20;
// The same for a dictionary's page, which stays in memory with all its values. Writers end one at a
// few MB.
inline constexpr int64_t kDictionaryBytesMax = int64_t{64} << 20;
inline constexpr int64_t kFooterBytesMax = int64_t{256} << 20;

enum class PhysicalType {
  kBoolean = 0,
  kInt32 = 1,
  kInt64 = 2,
  kInt96 = 3,
  kFloat = 4,
  kDouble = 5,
  kByteArray = 6,
  kFixedLengthByteArray = 7,
};

// Those that are read; EncodingName has all.
enum class Encoding {
  kPlain = 0,
  kPlainDictionary = 2,
  kRle = 3,
  kDeltaBinaryPacked = 5,
  kDeltaLengthByteArray = 6,
  kDeltaByteArray = 7,
  kRleDictionary = 8,
};

// Those that are read; CodecName has all.
enum class Codec {
  kUncompressed = 0,
  kSnappy = 1,
  kGzip = 2,
  kZstd = 6,
  kLz4Raw = 7,
};

}  // namespace dtrain::plan::parquet
