#include "runtime/plan/data/megatron_index.h"

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/check.h"
#include "base/status.h"
#include "runtime/plan/data/data_file.h"

namespace dtrain::plan {
namespace {

// Megatron's codes of numpy's types. Tokens are whole numbers, and none is negative.
enum : uint8_t { kU8 = 1, kI8 = 2, kI16 = 3, kI32 = 4, kI64 = 5, kF64 = 6, kF32 = 7, kU16 = 8 };

template <typename T>
T At(absl::string_view bytes, int64_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

int Width(uint8_t type) {
  switch (type) {
    case kU8:
      return 1;
    case kU16:
      return 2;
    case kI32:
      return 4;
    case kI64:
      return 8;
    default:
      return 0;
  }
}

template <typename T>
absl::StatusOr<T> ReadOne(const DataFile& file, int64_t offset) {
  T value{};
  DT_RETURN_IF_ERROR(file.ReadAt(offset, {reinterpret_cast<char*>(&value), sizeof(value)}));
  return value;
}

}  // namespace

absl::StatusOr<MegatronIndex> ParseMegatronHeader(absl::string_view head, int64_t file_bytes,
                                                  absl::string_view path) {
  const auto bad = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrFormat("token index %s: %s", path, what));
  };
  if (!absl::StartsWith(head, kMegatronMagic)) {
    return bad("it does not begin with MMIDIDX and two zero bytes, as Megatron's indices do");
  }
  if (static_cast<int64_t>(head.size()) < kMegatronHeaderBytes) {
    return bad(absl::StrFormat("it ends at byte %d, inside the 34-byte header", file_bytes));
  }
  if (At<uint64_t>(head, 9) != 1) {
    return bad(absl::StrFormat("the version at byte 9 is %d, want 1", At<uint64_t>(head, 9)));
  }
  const auto type = At<uint8_t>(head, 17);
  if (Width(type) == 0) {
    return bad(absl::StrFormat(
        "the type of tokens at byte 17 is %d; want 1 (u8), 4 (i32), 5 (i64) or 8 (u16)", type));
  }
  const auto sequences = At<uint64_t>(head, 18);
  const auto documents = At<uint64_t>(head, 26);
  const auto most = static_cast<uint64_t>(file_bytes);  // So that the products cannot overflow.
  const MegatronIndex index{Width(type), static_cast<int64_t>(sequences),
                            static_cast<int64_t>(documents)};
  if (sequences > most || documents > most || index.bytes() != file_bytes) {
    return bad(
        absl::StrFormat("it has %d bytes, which do not fit %d sequences and %d entries of "
                        "documents as its header promises",
                        file_bytes, sequences, documents));
  }
  if (sequences == 0) {
    return bad("it lists no sequence");
  }
  return index;
}

std::string MakeMegatronHeader(const MegatronIndex& index) {
  DT_CHECK(index.bytes_per_token == 2 || index.bytes_per_token == 4) << index.bytes_per_token;
  std::string header(kMegatronMagic);
  const auto add = [&](const auto value) {
    header.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  add(uint64_t{1});
  add(index.bytes_per_token == 2 ? uint8_t{kU16} : uint8_t{kI32});
  add(static_cast<uint64_t>(index.sequences));
  add(static_cast<uint64_t>(index.document_entries));
  return header;
}

std::string MegatronSibling(absl::string_view path) {
  if (absl::EndsWith(path, ".bin")) {
    return absl::StrCat(path.substr(0, path.size() - 4), ".idx");
  }
  if (absl::EndsWith(path, ".idx")) {
    return absl::StrCat(path.substr(0, path.size() - 4), ".bin");
  }
  return "";
}

absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& index_path, int64_t data_bytes,
                                                DataStore* store) {
  DT_ASSIGN_OR_RETURN(const DataFile file, DataFile::Open(index_path, "token index", store));
  DT_ASSIGN_OR_RETURN(const std::string head, file.Head(kMegatronHeaderBytes));
  DT_ASSIGN_OR_RETURN(const MegatronIndex index,
                      ParseMegatronHeader(head, file.bytes(), index_path));
  const int64_t last = index.sequences - 1;
  DT_ASSIGN_OR_RETURN(const auto first_at, ReadOne<int64_t>(file, index.pointers_offset()));
  DT_ASSIGN_OR_RETURN(const auto last_at,
                      ReadOne<int64_t>(file, index.pointers_offset() + 8 * last));
  DT_ASSIGN_OR_RETURN(const auto last_tokens,
                      ReadOne<int32_t>(file, index.lengths_offset() + 4 * last));
  if (first_at != 0 || last_at < 0 || last_at > data_bytes || last_tokens < 0 ||
      last_at + int64_t{last_tokens} * index.bytes_per_token != data_bytes) {
    return file.Bad(absl::StrFormat(
        "its sequences begin at byte %d and the last one has %d tokens at byte %d, but the .bin "
        "file beside it has %d bytes; copy both files again, or write them in one row",
        first_at, last_tokens, last_at, data_bytes));
  }
  return index;
}

}  // namespace dtrain::plan
