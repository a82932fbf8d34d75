// Makes tokens of texts for a corpus: a model's tokenizer, or one token for each byte.
//
// Thread-safe after it is made.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/tokenizer_files.h"

namespace dtrain::plan {

class TextEncoder {
 public:
  // Each byte is a token; 0 ends a document.
  static std::unique_ptr<TextEncoder> OfBytes();
  // The tokenizer of a folder or file (tokenizer.h). If a folder's config.json says the model's
  // vocabulary, and that is smaller than the tokenizer's, it is of another model: InvalidArgument
  // names both sizes. `end_token` is the text of the token that ends documents; empty: the one that
  // the files name, and FailedPrecondition if they name none.
  static absl::StatusOr<std::unique_ptr<TextEncoder>> OfTokenizer(const std::string& path,
                                                                  const std::string& end_token);
  // The same for tokens that are only read: no end token is looked for.
  static absl::StatusOr<std::unique_ptr<TextEncoder>> ForDecoding(const std::string& path);
  virtual ~TextEncoder() = default;

  // Appends the tokens of `text`, in which no special token is looked for.
  virtual absl::Status Encode(absl::string_view text, std::vector<uint32_t>* ids) const = 0;
  virtual std::string Decode(absl::Span<const uint32_t> ids) const = 0;
  // The id of a token by its text; nothing: there is none.
  virtual std::optional<uint32_t> TokenId(absl::string_view token) const = 0;

  const std::string& kind() const { return kind_; }  // "bytes", "byte-level BPE", ...
  const std::string& identity() const { return identity_; }
  uint32_t vocabulary() const { return vocabulary_; }  // All ids are below it.
  uint32_t end_token() const { return end_token_; }
  // The files of its tokenizer, which a corpus keeps; none where texts are only read.
  const NamedTexts& files() const { return files_; }

 protected:
  std::string kind_;
  std::string identity_;
  uint32_t vocabulary_ = 0;
  uint32_t end_token_ = 0;
  NamedTexts files_;
};

}  // namespace dtrain::plan
