// Tokens that are found in the text itself, before it is cut into words: special tokens such as
// "<|endoftext|>", and others that were added to a vocabulary. Immutable; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"

namespace dtrain::plan {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool single_word = false;  // Only where no letter or digit stands beside it.
  bool lstrip = false;       // Takes the spaces before it too.
  bool rstrip = false;
  bool normalized = false;  // Is sought in the normalized text.
  bool special = false;

  static absl::StatusOr<AddedToken> FromJson(const Json& json, const std::string& where);
};

// Finds some added tokens in a text.
class AddedTokenFinder {
 public:
  // `patterns` are the texts to seek, one for each token; empty ones are never found.
  AddedTokenFinder(std::vector<AddedToken> tokens, const std::vector<std::string>& patterns);

  // Called with the text between tokens, or with a token.
  using Visit = absl::FunctionRef<absl::Status(absl::string_view text, const AddedToken* token)>;

  // Visits the parts of `text` in order: at each place the longest token that begins there.
  absl::Status ForEachPart(absl::string_view text, bool special_tokens, Visit visit) const;

 private:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
    const AddedToken* token = nullptr;
  };
  std::optional<Match> Next(absl::string_view text, size_t from) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};                   // The bytes with which tokens begin.
  std::optional<char> only_begin_;                   // If there is one alone.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;    // Node and byte to node: a trie.
  absl::flat_hash_map<uint32_t, uint32_t> ends_at_;  // Node to token.
};

}  // namespace dtrain::plan
