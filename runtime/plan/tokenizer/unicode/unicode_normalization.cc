#include "runtime/plan/tokenizer/unicode/unicode_normalization.h"

#include <utf8proc.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "runtime/plan/tokenizer/unicode/unicode_additions.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kCodePointEnd = 0x110000;

utf8proc_option_t OptionsOf(NormalForm form) {
  const bool composes = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool is_compatible = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_STABLE |
                                        (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
                                        (is_compatible ? UTF8PROC_COMPAT : 0));
}

void AppendForm(NormalForm form, absl::string_view text, std::string* out) {
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made, OptionsOf(form));
  DT_CHECK_GE(bytes, 0) << utf8proc_errmsg(bytes);  // The text is valid: memory is out.
  out->append(reinterpret_cast<const char*>(made), static_cast<size_t>(bytes));
  std::free(made);
}

// Whether a character never changes in a form, whatever stands beside it, and separates what
// stands before it from what stands behind.
class StableCharacters {
 public:
  explicit StableCharacters(NormalForm form) : stable_(kCodePointEnd, true), inert_(kCodePointEnd) {
    for (uint32_t c = 0; c < kCodePointEnd; ++c) {
      Look(form, c);
    }
    for (const CodePointRange& range : kNotNormalized) {
      for (uint32_t c = range.first; c <= range.last; ++c) {
        stable_[c] = true;
        inert_[c] = true;
      }
    }
  }

  bool IsStable(uint32_t c) const { return stable_[c]; }
  // Whether it does not even join with what follows.
  bool IsInert(uint32_t c) const { return inert_[c]; }

 private:
  void Look(NormalForm form, uint32_t c) {
    const utf8proc_property_t* const property =
        utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
    if (property->combining_class != 0) {
      stable_[c] = false;
    }
    const bool is_hangul = c >= 0xac00 && c <= 0xd7a3;
    if (property->decomp_seqindex == UINT16_MAX && !is_hangul) {
      return;
    }
    std::string one;
    AppendCodePoint(c, &one);
    std::string made;
    AppendForm(form, one, &made);
    if (made != one) {
      stable_[c] = false;
    }
    if (form == NormalForm::kNfc || form == NormalForm::kNfkc) {
      std::array<utf8proc_int32_t, 32> parts{};
      int last_class = UTF8PROC_BOUNDCLASS_START;
      const utf8proc_ssize_t count = utf8proc_decompose_char(
          static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
          static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &last_class);
      if (count > 1 && count <= static_cast<utf8proc_ssize_t>(parts.size())) {
        // The last part joins with the others, so it may join with what stands before it.
        stable_[static_cast<size_t>(parts[static_cast<size_t>(count - 1)])] = false;
      }
    }
  }

  std::vector<bool> stable_;
  std::vector<bool> inert_;
};

const StableCharacters& StableIn(NormalForm form) {
  static const auto* const kNfc = new StableCharacters(NormalForm::kNfc);
  if (form == NormalForm::kNfc) {
    return *kNfc;
  }
  static const std::array<StableCharacters, 3>* const kOthers = new std::array<StableCharacters, 3>{
      StableCharacters(NormalForm::kNfd), StableCharacters(NormalForm::kNfkc),
      StableCharacters(NormalForm::kNfkd)};
  return (*kOthers)[static_cast<size_t>(form) - 1];
}

}  // namespace

absl::string_view Normalized(NormalForm form, absl::string_view text, std::string* storage) {
  const StableCharacters& characters = StableIn(form);
  bool changes = false;
  size_t written = 0;  // Text before is in `storage`, if anything changes.
  size_t start = 0;    // The last stable character, which may join with what follows.
  for (size_t i = 0; i < text.size();) {
    if (static_cast<uint8_t>(text[i]) < 0x80) {  // ASCII is stable in all forms.
      start = i++;
      continue;
    }
    const size_t begin = i;
    const uint32_t c = NextCodePoint(text, &i);
    if (characters.IsStable(c)) {
      start = characters.IsInert(c) ? i : begin;
      continue;
    }
    for (size_t next = i; next < text.size(); i = next) {
      if (characters.IsStable(NextCodePoint(text, &next))) {
        break;
      }
    }
    if (!changes) {
      storage->clear();
      changes = true;
    }
    start = std::max(start, written);
    absl::StrAppend(storage, text.substr(written, start - written));
    AppendForm(form, text.substr(start, i - start), storage);
    written = i;
    start = i;
  }
  if (!changes) {
    return text;
  }
  absl::StrAppend(storage, text.substr(written));
  return *storage;
}

}  // namespace dtrain::plan
