// The index of Megatron-LM's token files: PREFIX.idx beside PREFIX.bin, which holds the tokens of
// all sequences one after the other, without a header.
//
// Little-endian: "MMIDIDX\0\0", u64 version 1, u8 type of the tokens, u64 sequences, u64 entries of
// the list of documents, then i32 lengths (in tokens), i64 offsets (in bytes) and i64 documents
// (the number of each one's first sequence, and the number of sequences last). Pure but for the
// reads.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/plan/data/data_store.h"

namespace dtrain::plan {

inline constexpr absl::string_view kMegatronMagic("MMIDIDX\0\0", 9);
inline constexpr int64_t kMegatronHeaderBytes = 34;

struct MegatronIndex {
  int bytes_per_token = 0;  // 1, 2, 4 or 8.
  int64_t sequences = 0;
  int64_t document_entries = 0;

  int64_t lengths_offset() const { return kMegatronHeaderBytes; }
  int64_t pointers_offset() const { return lengths_offset() + 4 * sequences; }
  int64_t documents_offset() const { return pointers_offset() + 8 * sequences; }
  int64_t bytes() const { return documents_offset() + 8 * document_entries; }
};

// Reads the header of an index of `file_bytes` bytes that begins with `head` (its first 34 bytes,
// or all of it). InvalidArgument names `path`; any input is safe.
absl::StatusOr<MegatronIndex> ParseMegatronHeader(absl::string_view head, int64_t file_bytes,
                                                  absl::string_view path);
// The 34 bytes of a header. REQUIRES: bytes_per_token is 2 (u16) or 4 (i32).
std::string MakeMegatronHeader(const MegatronIndex& index);

// "corpus.idx" for "corpus.bin", and the other way round; "" if `path` ends with neither.
std::string MegatronSibling(absl::string_view path);

// Reads PREFIX.idx and checks that the sequences fill a file of `data_bytes` bytes, from its first
// byte to its last: the tokens can then be read as one row. `store`: as DataFile::Open.
absl::StatusOr<MegatronIndex> ReadMegatronIndex(const std::string& index_path, int64_t data_bytes,
                                                DataStore* store);

}  // namespace dtrain::plan
