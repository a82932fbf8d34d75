#include "runtime/plan/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "base/status.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {

absl::Status Tokenizer::Encode(absl::string_view text, const EncodeOptions& options,
                               std::vector<uint32_t>* ids) const {
  const size_t size = ids->size();
  std::string storage;
  absl::Status status = EncodeUtf8(RepairedUtf8(text, &storage), options, ids);
  if (!status.ok()) {
    ids->resize(size);
  }
  return status;
}

std::string Tokenizer::Decode(absl::Span<const uint32_t> ids, bool skip_special) const {
  return DecodeIds(ids, skip_special);
}

void Tokenizer::SetEnds(std::optional<uint32_t> begin, std::optional<uint32_t> end,
                        const std::vector<uint32_t>& other_stops) {
  begin_ = begin;
  end_ = end;
  stops_.clear();
  if (end.has_value()) {
    stops_.push_back(*end);
  }
  for (const uint32_t stop : other_stops) {
    if (std::find(stops_.begin(), stops_.end(), stop) == stops_.end()) {
      stops_.push_back(stop);
    }
  }
}

std::string StreamDecoder::Push(uint32_t id) {
  ids_.push_back(id);
  std::string text = tokenizer_.Decode(ids_, skip_special_);
  // U+FFFD at the end may be a character whose bytes are not all there.
  if (text.size() <= emitted_.size() || absl::EndsWith(text, "\xEF\xBF\xBD") ||
      !absl::StartsWith(text, emitted_)) {
    return "";
  }
  std::string part = text.substr(emitted_.size());
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(context_));
  context_ = ids_.size();
  emitted_ = tokenizer_.Decode(ids_, skip_special_);
  return part;
}

std::string StreamDecoder::Finish() {
  const std::string text = tokenizer_.Decode(ids_, skip_special_);
  std::string part = absl::StartsWith(text, emitted_) ? text.substr(emitted_.size()) : "";
  ids_.clear();
  context_ = 0;
  emitted_.clear();
  return part;
}

}  // namespace dtrain::plan
