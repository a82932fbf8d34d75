#include "runtime/plan/tokenizer/tokenizer_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

constexpr size_t kDepthMax = 64;
constexpr size_t kFieldsMax = 4096;  // Fields of one object outside the vocabulary.
constexpr uint64_t kIdEnd = 1 << 24;

// Takes the events of nlohmann's parser. A handler returns false to stop it; `problem_` says why.
class Reader {
 public:
  absl::StatusOr<TokenizerFile> Read(absl::string_view text, absl::string_view name) {
    const bool ok = Json::sax_parse(text.begin(), text.end(), this);
    if (!ok || !problem_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %s", name, problem_.empty() ? "no JSON document" : problem_));
    }
    return std::move(file_);
  }

  // The names and signatures are those that nlohmann asks for.
  // NOLINTBEGIN(readability-identifier-naming)
  bool null() { return Value(nullptr); }
  bool boolean(bool value) { return Value(value); }
  bool number_integer(int64_t value) { return Value(value); }
  bool number_unsigned(uint64_t value) {
    if (place_ != Place::kVocab) {
      return Value(value);
    }
    if (value >= kIdEnd) {
      return Stop(absl::StrFormat("the token \"%s\" has the id %d; ids are below %d",
                                  token_.substr(0, 100), value, kIdEnd));
    }
    file_.vocab.emplace_back(std::move(token_), static_cast<uint32_t>(value));
    return true;
  }
  bool number_float(double value, const std::string& /*text*/) { return Value(value); }
  bool string(std::string& value) {
    if (place_ == Place::kMerges) {
      const size_t space = value.find(' ');
      if (space == std::string::npos || value.find(' ', space + 1) != std::string::npos) {
        return Stop(absl::StrFormat("the merge \"%s\" is not two tokens and a space",
                                    value.substr(0, 100)));
      }
      file_.merges.emplace_back(value.substr(0, space), value.substr(space + 1));
      return true;
    }
    if (place_ == Place::kMerge) {
      if (merge_parts_ == 2) {
        return Stop("a merge has more than two tokens");
      }
      (merge_parts_++ == 0 ? file_.merges.back().first : file_.merges.back().second) =
          std::move(value);
      return true;
    }
    return Value(std::move(value));
  }
  bool binary(Json::binary_t& /*value*/) { return Stop("binary data"); }
  bool start_object(size_t /*size*/) {
    if (IsModelField("vocab")) {
      place_ = Place::kVocab;
      open_.back()->operator[](key_) = Json::object();
      return true;
    }
    return Open(Json::object());
  }
  bool key(std::string& key) {
    if (place_ == Place::kVocab) {
      token_ = std::move(key);
      return true;
    }
    if (open_.back()->contains(key) || open_.back()->size() >= kFieldsMax) {
      return Stop(
          absl::StrFormat("the field \"%s\" appears twice, or there are more than %d fields",
                          key.substr(0, 100), kFieldsMax));
    }
    key_ = std::move(key);
    return true;
  }
  bool end_object() {
    if (place_ == Place::kVocab) {
      place_ = Place::kRest;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool start_array(size_t /*size*/) {
    if (place_ == Place::kMerges) {
      place_ = Place::kMerge;
      merge_parts_ = 0;
      file_.merges.emplace_back();
      return true;
    }
    if (IsModelField("merges")) {
      place_ = Place::kMerges;
      open_.back()->operator[](key_) = Json::array();
      return true;
    }
    return Open(Json::array());
  }
  bool end_array() {
    if (place_ == Place::kMerge) {
      place_ = Place::kMerges;
      return merge_parts_ == 2 || Stop("a merge has less than two tokens");
    }
    if (place_ == Place::kMerges) {
      place_ = Place::kRest;
    } else {
      open_.pop_back();
    }
    return true;
  }
  bool parse_error(size_t byte, const std::string& /*token*/, const Json::exception& error) {
    const std::string what = error.what();
    const size_t bracket = what.find("] ");
    return Stop(absl::StrCat("byte ", byte, ": ",
                             bracket == std::string::npos ? what : what.substr(bracket + 2)));
  }
  // NOLINTEND(readability-identifier-naming)

 private:
  enum class Place { kRest, kVocab, kMerges, kMerge };

  bool Stop(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  // Whether the value that begins is the field `name` of the object "model" of the document.
  bool IsModelField(absl::string_view name) const {
    return place_ == Place::kRest && open_.size() == 2 && outer_key_ == "model" && key_ == name &&
           open_.back()->is_object();
  }

  // Puts a value where it belongs; nullptr: there it may not stand.
  Json* Put(Json value) {
    if (place_ != Place::kRest) {
      Stop(place_ == Place::kVocab ? "a token of the vocabulary has no number as its id"
                                   : "a merge is not two tokens");
      return nullptr;
    }
    if (open_.empty()) {
      file_.rest = std::move(value);
      return &file_.rest;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }

  bool Value(Json value) { return Put(std::move(value)) != nullptr; }

  bool Open(Json value) {
    if (open_.size() >= kDepthMax) {
      return Stop(absl::StrFormat("nested deeper than %d levels", kDepthMax));
    }
    if (open_.size() == 1) {
      outer_key_ = key_;
    }
    Json* const made = Put(std::move(value));
    if (made == nullptr) {
      return false;
    }
    open_.push_back(made);
    return true;
  }

  TokenizerFile file_;
  std::string problem_;
  Place place_ = Place::kRest;
  std::vector<Json*> open_;  // The objects and arrays that are not closed. Only the last one grows.
  std::string key_;
  std::string outer_key_;  // The key of the document's field that is open.
  std::string token_;
  int merge_parts_ = 0;
};

}  // namespace

absl::StatusOr<TokenizerFile> ReadTokenizerFile(absl::string_view text, absl::string_view name) {
  return Reader().Read(text, name);
}

}  // namespace dtrain::plan
