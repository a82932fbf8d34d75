// Tokenizer::Load: finds the files of a tokenizer and what stands beside them.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/ranks/tiktoken_file.h"
#include "runtime/plan/tokenizer/sentencepiece_model.h"
#include "runtime/plan/tokenizer/tokenizer.h"
#include "runtime/plan/tokenizer/tokenizer_json.h"

namespace dtrain::plan {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = 256 << 20;
constexpr size_t kConfigBytesMax = 16 << 20;

// The first of the files by which a folder is known.
absl::StatusOr<std::string> FileIn(const std::string& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tekken.json"}) {
    if (FileExists(folder + "/" + name)) {
      return folder + "/" + name;
    }
  }
  std::vector<std::string> found;
  std::error_code error;
  for (auto walk = fs::directory_iterator(folder, error);
       !error && walk != fs::directory_iterator(); walk.increment(error)) {
    if (walk->path().extension() == ".tiktoken") {
      found.push_back(walk->path().string());
    }
  }
  if (found.size() == 1) {
    return found[0];
  }
  if (found.size() > 1) {
    std::sort(found.begin(), found.end());
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has several tiktoken files, such as %s and %s; name one of them",
                        folder, found[0], found[1]));
  }
  return absl::NotFoundError(absl::StrFormat(
      "%s has no tokenizer: no tokenizer.json, tokenizer.model, tekken.json or *.tiktoken",
      folder));
}

// A file of a model folder that may be missing; a null value then. What is damaged is an error.
absl::StatusOr<Json> OptionalJson(const std::string& path) {
  if (!FileExists(path)) {
    return Json();
  }
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kConfigBytesMax));
  return ParseJson(text, path);
}

// "bos_token": a text, or an object with "content".
std::optional<uint32_t> TokenOf(const Json& config, const char* name, const Tokenizer& tokenizer) {
  if (!config.is_object() || !config.contains(name)) {
    return std::nullopt;
  }
  const Json& value = config[name];
  const Json text = value.is_object() ? value.value("content", Json()) : value;
  return text.is_string() ? tokenizer.TokenId(text.get<std::string>()) : std::nullopt;
}

// "eos_token_id": an id or several.
std::vector<uint32_t> IdsOf(const Json& config, const char* name, const Tokenizer& tokenizer) {
  std::vector<uint32_t> ids;
  const Json value = config.is_object() ? config.value(name, Json()) : Json();
  for (const Json& id : value.is_array() ? value : Json::array({value})) {
    if (id.is_number_unsigned() && id.get<uint64_t>() < tokenizer.vocab_size()) {
      ids.push_back(id.get<uint32_t>());
    }
  }
  return ids;
}

absl::Status ReadEnds(const std::string& folder, Tokenizer* tokenizer) {
  std::optional<uint32_t> begin = tokenizer->begin_token();
  std::optional<uint32_t> end = tokenizer->end_token();
  std::vector<uint32_t> stops;
  bool begin_is_named = false;
  bool end_is_named = false;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    DT_ASSIGN_OR_RETURN(const Json config, OptionalJson(absl::StrCat(folder, "/", name)));
    const std::optional<uint32_t> named_begin = TokenOf(config, "bos_token", *tokenizer);
    const std::optional<uint32_t> named_end = TokenOf(config, "eos_token", *tokenizer);
    begin = named_begin.has_value() && !begin_is_named ? named_begin : begin;
    end = named_end.has_value() && !end_is_named ? named_end : end;
    begin_is_named = begin_is_named || named_begin.has_value();
    end_is_named = end_is_named || named_end.has_value();
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    DT_ASSIGN_OR_RETURN(const Json config, OptionalJson(absl::StrCat(folder, "/", name)));
    const std::vector<uint32_t> ends = IdsOf(config, "eos_token_id", *tokenizer);
    const std::vector<uint32_t> begins = IdsOf(config, "bos_token_id", *tokenizer);
    begin = begin.has_value() || begins.empty() ? begin : begins[0];
    end = end.has_value() || ends.empty() ? end : ends[0];
    stops.insert(stops.end(), ends.begin(), ends.end());
  }
  tokenizer->SetEnds(begin, end, stops);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> FromFile(const std::string& path,
                                                    const TokenizerOptions& options) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kFileBytesMax));
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (absl::EndsWith(path, ".json") || (first != std::string::npos && text[first] == '{')) {
    return TokenizerFromJson(text, path);
  }
  // Llama 3 calls a tiktoken file tokenizer.model too.
  if (absl::EndsWith(path, ".tiktoken") || LooksLikeTiktoken(text)) {
    return TokenizerFromTiktoken(text, path, options);
  }
  return TokenizerFromSentencePiece(text, path);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path,
                                                           const TokenizerOptions& options) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: there is no such tokenizer; give a model's folder, a tokenizer.json, a "
        "tokenizer.model or a tiktoken file",
        path));
  }
  std::string file = path;
  if (fs::is_directory(status)) {
    DT_ASSIGN_OR_RETURN(file, FileIn(path));
  }
  DT_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, FromFile(file, options));
  const std::string folder = fs::path(file).parent_path().string();
  DT_RETURN_IF_ERROR(ReadEnds(folder.empty() ? "." : folder, tokenizer.get()));
  return tokenizer;
}

}  // namespace dtrain::plan
