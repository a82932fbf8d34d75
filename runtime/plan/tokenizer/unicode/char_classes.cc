#include "runtime/plan/tokenizer/unicode/char_classes.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "runtime/plan/tokenizer/unicode/unicode_additions.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kCodePoints = 0x110000;

bool IsSpace(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsAsciiPunctuation(uint32_t c) {
  return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) ||
         (c >= 123 && c <= 126);
}

uint8_t OfCategory(int category) {
  switch (category) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kUpper | kLower;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kUpper | kLower;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber | kNumeric;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    default:
      return 0;
  }
}

std::vector<uint8_t> AllClasses() {
  std::vector<uint8_t> classes(kCodePoints);
  for (uint32_t c = 0; c < kCodePoints; ++c) {
    classes[c] = OfCategory(utf8proc_category(static_cast<utf8proc_int32_t>(c)));
  }
  for (const AddedRange& range : kAddedRanges) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      classes[c] = static_cast<uint8_t>(OfCategory(range.category) & ~kPunctuation);
    }
  }
  for (const CodePointRange& range : kNotYetPunctuation) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      classes[c] = static_cast<uint8_t>(classes[c] & ~kPunctuation);
    }
  }
  for (const uint32_t c : kOncePunctuation) {
    classes[c] = static_cast<uint8_t>(classes[c] | kPunctuation);
  }
  for (const CodePointRange& range : kNewlyNumeric) {
    for (uint32_t c = range.first; c <= range.last; ++c) {
      classes[c] = static_cast<uint8_t>(classes[c] | kNumeric);
    }
  }
  for (uint32_t c = 0; c <= 0x3000; ++c) {
    classes[c] = static_cast<uint8_t>(classes[c] | (IsSpace(c) ? kSpace : 0) |
                                      (c == '\n' || c == '\r' ? kNewline : 0) |
                                      (IsAsciiPunctuation(c) ? kPunctuation : 0));
  }
  return classes;
}

}  // namespace

int CategoryOf(uint32_t code_point) {
  const AddedRange* const range =
      std::lower_bound(std::begin(kAddedRanges), std::end(kAddedRanges), code_point,
                       [](const AddedRange& one, uint32_t c) { return one.last < c; });
  return range != std::end(kAddedRanges) && range->first <= code_point
             ? static_cast<int>(range->category)
             : static_cast<int>(utf8proc_category(static_cast<utf8proc_int32_t>(code_point)));
}

CharClasses::CharClasses() {
  const std::vector<uint8_t> classes = AllClasses();
  std::map<std::vector<uint8_t>, uint16_t> known;
  for (size_t block = 0; block < index_.size(); ++block) {
    const auto begin = classes.begin() + static_cast<std::ptrdiff_t>(block << 8);
    const auto [found, is_new] = known.emplace(std::vector<uint8_t>(begin, begin + 256),
                                               static_cast<uint16_t>(blocks_.size() >> 8));
    if (is_new) {
      blocks_.insert(blocks_.end(), begin, begin + 256);
    }
    index_[block] = found->second;
  }
}

const CharClasses& CharClasses::Get() {
  static const CharClasses* const kClasses = new CharClasses();
  return *kClasses;
}

}  // namespace dtrain::plan
