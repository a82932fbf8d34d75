#include "runtime/plan/tokenizer/unicode/regex_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/plan/tokenizer/unicode/char_classes.h"
#include "runtime/plan/tokenizer/unicode/unicode_additions.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kCodePointsEnd = 0x110000;

// The two letters of a category by utf8proc's number.
constexpr absl::string_view kCategories[] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

// The scripts that tokenizers cut by, with what Unicode 15 and 16 have added (Scripts.txt).
struct Script {
  absl::string_view name;
  absl::string_view added;
};
constexpr Script kScripts[] = {
    {"Arabic", "\\x{897}\\x{10ec2}-\\x{10ec4}\\x{10efc}-\\x{10eff}"},
    {"Cyrillic", "\\x{1c89}\\x{1c8a}\\x{1e030}-\\x{1e06d}\\x{1e08f}"},
    {"Devanagari", "\\x{11b00}-\\x{11b09}"},
    {"Greek", ""},
    {"Han", "\\x{2b739}\\x{2ebf0}-\\x{2ee5d}\\x{31350}-\\x{323af}"},
    {"Hangul", ""},
    {"Hebrew", ""},
    {"Hiragana", "\\x{1b132}"},
    {"Katakana", "\\x{1b155}"},
    {"Latin", "\\x{a7cb}-\\x{a7cd}\\x{a7da}-\\x{a7dc}\\x{1df25}-\\x{1df2a}"},
    {"Thai", ""}};

// All code points that are no members, but for surrogates, which no text has.
std::string Others(absl::FunctionRef<bool(uint32_t)> is_member) {
  std::string ranges;
  uint32_t begin = kCodePointsEnd;  // The open range begins here; the end: none is open.
  for (uint32_t c = 0; c <= kCodePointsEnd; ++c) {
    const bool is_surrogate = c >= 0xd800 && c < 0xe000;
    if (c < kCodePointsEnd && !is_surrogate && !is_member(c)) {
      begin = std::min(begin, c);
    } else if (begin < c) {
      absl::StrAppendFormat(&ranges, "\\x{%x}-\\x{%x}", begin, c - 1);
      begin = kCodePointsEnd;
    }
  }
  return ranges;
}

bool IsCategory(absl::string_view name) {
  return !name.empty() && std::any_of(std::begin(kCategories), std::end(kCategories),
                                      [&](absl::string_view category) {
                                        return category.substr(0, name.size()) == name;
                                      });
}

std::string Added(absl::string_view category) {
  std::string ranges;
  for (const AddedRange& range : kAddedRanges) {
    if (kCategories[range.category].substr(0, category.size()) == category) {
      absl::StrAppendFormat(&ranges, "\\x{%x}-\\x{%x}", range.first, range.last);
    }
  }
  return ranges;
}

bool IsWordCategory(int category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

}  // namespace

bool IsWordCharacter(uint32_t code_point) {
  return IsWordCategory(CategoryOf(code_point)) || (code_point >= 0x24b6 && code_point <= 0x24e9) ||
         (code_point >= 0x1f130 && code_point <= 0x1f149) ||
         (code_point >= 0x1f150 && code_point <= 0x1f169) ||
         (code_point >= 0x1f170 && code_point <= 0x1f189);
}

std::string PropertyClass(absl::string_view name, bool negated) {
  if (IsCategory(name)) {
    const std::string added = Added(name);
    // Characters that PCRE2 does not know yet are unassigned to it.
    const bool has_unassigned = absl::StartsWith("Cn", name);
    if (has_unassigned || (negated && !added.empty())) {
      return Others([&](uint32_t c) {
        return absl::StartsWith(kCategories[CategoryOf(c)], name) == negated;
      });
    }
    return absl::StrCat(negated ? "\\P{" : "\\p{", name, "}", added);
  }
  for (const Script& script : kScripts) {
    if (!negated && absl::EqualsIgnoreCase(script.name, name)) {
      // Without "sc:" PCRE2 takes the characters that several scripts share too.
      return absl::StrCat("\\p{sc:", script.name, "}", script.added);
    }
  }
  return "";
}

std::string WordClass(bool negated) {
  if (negated) {
    return Others(IsWordCharacter);
  }
  std::string members =
      "\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";
  for (const absl::string_view name : {"L", "M", "Nd", "Nl", "Pc"}) {
    members += PropertyClass(name, /*negated=*/false);
  }
  return members;
}

}  // namespace dtrain::plan
