// Any bytes of a Parquet file are read to their end or to a one-line error, and so is each of its
// parts: the first byte of the input says which one it is.
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "runtime/plan/data/parquet/bit_runs.h"
#include "runtime/plan/data/parquet/decompress.h"
#include "runtime/plan/data/parquet/page_header.h"
#include "runtime/plan/data/parquet/parquet_rows.h"
#include "runtime/plan/data/parquet/values.h"
#include "runtime/plan/data/row_columns.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/runtime/plan/data/parquet/parquet_bytes.h"

namespace dtrain {
namespace {

using namespace plan::parquet;  // NOLINT(google-build-using-namespace)

constexpr int kValuesMax = 10000;  // A few bytes can stand for any number of values.

void ReadValues(PhysicalType type, Encoding encoding, absl::string_view bytes) {
  const std::vector<Value> dictionary(3);
  const auto decoder = MakeValueDecoder(type, encoding, bytes, &dictionary);
  Value value;
  for (int i = 0; decoder.ok() && i < kValuesMax && (*decoder)->Next(&value).ok(); ++i) {
    DT_CHECK_LE(static_cast<int64_t>(value.bytes.size()), plan::kDocumentBytesMax);
  }
}

void ReadPart(int part, absl::string_view bytes) {
  std::string out;
  switch (part) {
    case 1:
    case 2:
    case 3:
    case 4:
      if (!bytes.empty()) {
        const auto codec =
            part == 1 ? Codec::kSnappy
                      : (part == 2 ? Codec::kLz4Raw : (part == 3 ? Codec::kGzip : Codec::kZstd));
        const auto size = static_cast<size_t>(static_cast<uint8_t>(bytes[0])) * 9;
        if (Decompress(codec, bytes.substr(1), size, &out).ok()) {
          DT_CHECK_EQ(out.size(), size);
        }
      }
      return;
    case 5:
      ReadValues(PhysicalType::kByteArray, Encoding::kDeltaByteArray, bytes);
      return;
    case 6:
      ReadValues(PhysicalType::kByteArray, Encoding::kDeltaLengthByteArray, bytes);
      return;
    case 7:
      ReadValues(PhysicalType::kInt32, Encoding::kDeltaBinaryPacked, bytes);
      return;
    case 8:
      ReadValues(PhysicalType::kByteArray, Encoding::kRleDictionary, bytes);
      return;
    case 9:
      if (const auto header = ParsePageHeader(bytes); header.ok()) {
        DT_CHECK_LE(header->header_bytes, static_cast<int64_t>(bytes.size()));
      }
      return;
    default:
      return;
  }
}

void ReadFileOf(absl::string_view bytes) {
  static const int file = [] {
    const int fd = memfd_create("fuzz", 0);
    DT_CHECK(fd >= 0);
    return fd;
  }();
  DT_CHECK(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
  DT_CHECK(WriteFully(file, bytes.data(), bytes.size()).ok());
  const plan::RowColumns wanted{{{"text", {}}, {"messages", {"role", "content"}}}, ""};
  const auto rows = ParquetRows::Open(absl::StrCat("/proc/self/fd/", file), wanted);
  if (!rows.ok()) {
    DT_CHECK(rows.status().code() == absl::StatusCode::kInvalidArgument) << rows.status();
    return;
  }
  std::string line;
  for (int i = 0; i < kValuesMax; ++i) {
    const absl::StatusOr<bool> is_row = (*rows)->Next(&line);
    if (!is_row.ok()) {
      DT_CHECK(is_row.status().code() == absl::StatusCode::kInvalidArgument) << is_row.status();
      return;
    }
    if (!*is_row) {
      return;
    }
    DT_CHECK(line.size() >= 2 && line.front() == '{' && line.back() == '}');
    DT_CHECK(line.find('\n') == std::string::npos);
  }
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string file(1, '\0');
  const std::string texts = PlainTexts({"user", "assistant", "user"});
  const TestLevels levels{{0, 1, 0}, {4, 4, 4}};
  const std::string dictionary =
      DictionaryPage(2, PlainTexts({"a", "b"})) +
      DataPage(3, levels, Encoding::kRleDictionary, std::string("\x01\x06\x01", 3));
  const std::vector<ThriftStruct> nodes = {ListNode("messages", 1), GroupNode("list", 2, 1),
                                           GroupNode("element", 1, 2), TextNode("role", 1),
                                           TextNode("content", 1)};
  const std::string snappy =
      Varint(texts.size()) + std::string(1, '\xf0') + static_cast<char>(texts.size() - 1) + texts;
  const std::string deltas("\x08\x01\x08\x0e\x03\x02\xc0\x3f", 8);
  return {
      file + TextParquet({{"one", "", "three"}, {"four"}}),
      file +
          ParquetBytes(nodes, 1,
                       {{2, {{3, DataPage(3, levels, Encoding::kPlain, texts)}, {3, dictionary}}}}),
      file +
          ParquetBytes(
              nodes, 1,
              {{2,
                {{3, DataPageV2(3, levels, Encoding::kPlain, texts.size(), snappy), Codec::kSnappy},
                 {3, dictionary}}}}),
      std::string("\x01\x02\x12\x0c", 4) + "abcd" + std::string("\x26\x04\x00\x01\x0e", 5),
      std::string("\x02\x02\x46", 3) + "abcd" + std::string("\x04\x00\x40", 3) + "last",
      "\x03\x02",
      "\x04\x02",
      "\x05" + deltas + deltas + "abcdefghijklmnopqrstuvwxyz",
      "\x06" + deltas + "abcdefghijklmnopqrstuvwxyz",
      "\x07" + deltas,
      std::string("\x08\x02\x03\x88\xc6\x06\x01", 7),
      "\x09" + DataPageV2(3, levels, Encoding::kPlain, texts.size(), snappy),
  };
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) {
    return 0;
  }
  const absl::string_view input(reinterpret_cast<const char*>(data) + 1, bytes - 1);
  data[0] == 0 ? dtrain::ReadFileOf(input) : dtrain::ReadPart(data[0], input);
  return 0;
}
