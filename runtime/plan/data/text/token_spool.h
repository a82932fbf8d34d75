// The documents of one split while a corpus is made: tokens, the documents' lengths and, for
// instruction data, masks, in files of a working folder that are longer with each document. A run
// that was interrupted goes on from the lengths that its journal holds. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/unique_fd.h"

namespace dtrain::plan {

struct SpoolSize {
  int64_t documents = 0;
  int64_t tokens = 0;
  bool operator==(const SpoolSize&) const = default;

  Json ToJson() const { return Json::array({documents, tokens}); }
  static absl::StatusOr<SpoolSize> FromJson(const Json& json);
};

// A file that grows at its end.
class GrowingFile {
 public:
  // Opens or creates it, and cuts it to `bytes`. DataLoss: it is shorter.
  static absl::StatusOr<GrowingFile> Open(const std::string& path, int64_t bytes);
  absl::Status Append(const void* data, size_t bytes);
  // All that was appended is on disk when it returns.
  absl::Status Sync();
  const std::string& path() const { return path_; }

 private:
  absl::Status Flush();

  std::string path_;
  UniqueFd fd_;
  std::string buffer_;
};

struct SpoolFiles {
  std::string prefix;       // "FOLDER/train": .tokens, .lengths and .mask follow.
  int bytes_per_token = 2;  // Or 4.
  bool is_masked = false;

  std::string tokens() const { return prefix + ".tokens"; }
  std::string lengths() const { return prefix + ".lengths"; }  // int32 each.
  std::string mask() const { return prefix + ".mask"; }
};

class TokenSpool {
 public:
  // Goes on behind what `size` says.
  static absl::StatusOr<TokenSpool> Open(const SpoolFiles& files, const SpoolSize& size);

  // REQUIRES: ids fit the width; `mask` has as many elements where the spool is masked, else none.
  absl::Status Append(absl::Span<const uint32_t> ids, absl::Span<const uint8_t> mask);
  absl::Status Sync();
  const SpoolFiles& files() const { return files_; }
  const SpoolSize& size() const { return size_; }

 private:
  TokenSpool(SpoolFiles files, SpoolSize size, GrowingFile tokens, GrowingFile lengths,
             GrowingFile mask)
      : files_(std::move(files)),
        size_(size),
        tokens_(std::move(tokens)),
        lengths_(std::move(lengths)),
        mask_(std::move(mask)) {}

  SpoolFiles files_;
  SpoolSize size_;
  GrowingFile tokens_;
  GrowingFile lengths_;
  GrowingFile mask_;
  std::string narrow_;  // Reused.
};

}  // namespace dtrain::plan
