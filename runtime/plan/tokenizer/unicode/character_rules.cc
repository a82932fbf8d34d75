#include "runtime/plan/tokenizer/unicode/character_rules.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "runtime/plan/tokenizer/unicode/unicode_additions.h"
#include "runtime/plan/tokenizer/unicode/utf8_text.h"

namespace dtrain::plan {
namespace {

constexpr uint32_t kDottedCapitalI = 0x130;

// `tokenizers` knows accents and controls by Unicode 8 and marks by Unicode 9. These came later, up
// to Unicode 14; kAddedRanges has those after it.
constexpr CodePointRange kLaterAccents[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8e1},     {0x9fe, 0x9fe},
    {0xafa, 0xaff},     {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},
    {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0x180f, 0x180f},   {0x1885, 0x1886},   {0x1abf, 0x1ace},   {0x1df6, 0x1dfb},
    {0xa82c, 0xa82c},   {0xa8c5, 0xa8c5},   {0xa8ff, 0xa8ff},   {0xa9bd, 0xa9bd},
    {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85},
    {0x11070, 0x11070}, {0x11073, 0x11074}, {0x110c2, 0x110c2}, {0x111c9, 0x111c9},
    {0x111cf, 0x111cf}, {0x1123e, 0x1123e}, {0x1133b, 0x1133b}, {0x11438, 0x1143f},
    {0x11442, 0x11444}, {0x11446, 0x11446}, {0x1145e, 0x1145e}, {0x1182f, 0x11837},
    {0x11839, 0x1183a}, {0x1193b, 0x1193c}, {0x1193e, 0x1193e}, {0x11943, 0x11943},
    {0x119d4, 0x119d7}, {0x119da, 0x119db}, {0x119e0, 0x119e0}, {0x11a01, 0x11a0a},
    {0x11a33, 0x11a38}, {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47}, {0x11a51, 0x11a56},
    {0x11a59, 0x11a5b}, {0x11a8a, 0x11a96}, {0x11a98, 0x11a99}, {0x11c30, 0x11c36},
    {0x11c38, 0x11c3d}, {0x11c3f, 0x11c3f}, {0x11c92, 0x11ca7}, {0x11caa, 0x11cb0},
    {0x11cb2, 0x11cb3}, {0x11cb5, 0x11cb6}, {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a},
    {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47}, {0x11d90, 0x11d91},
    {0x11d95, 0x11d95}, {0x11d97, 0x11d97}, {0x11ef3, 0x11ef4}, {0x16f4f, 0x16f4f},
    {0x16fe4, 0x16fe4}, {0x1cf00, 0x1cf2d}, {0x1cf30, 0x1cf46}, {0x1e000, 0x1e006},
    {0x1e008, 0x1e018}, {0x1e01b, 0x1e021}, {0x1e023, 0x1e024}, {0x1e026, 0x1e02a},
    {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e944, 0x1e94a}};
constexpr CodePointRange kLaterControls[] = {
    {0x890, 0x891}, {0x8e2, 0x8e2}, {0x110cd, 0x110cd}, {0x13430, 0x1343f}};
constexpr CodePointRange kLaterMarks[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},
    {0xafa, 0xaff},     {0xb55, 0xb55},     {0xc04, 0xc04},     {0xc3c, 0xc3c},
    {0xd00, 0xd00},     {0xd3b, 0xd3c},     {0xd81, 0xd81},     {0xeba, 0xeba},
    {0x1715, 0x1715},   {0x180f, 0x180f},   {0x1abf, 0x1ace},   {0x1cf7, 0x1cf7},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0xa8ff, 0xa8ff},   {0x10d24, 0x10d27},
    {0x10eab, 0x10eac}, {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070},
    {0x11073, 0x11074}, {0x110c2, 0x110c2}, {0x11145, 0x11146}, {0x111c9, 0x111c9},
    {0x111ce, 0x111cf}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e}, {0x1182c, 0x1183a},
    {0x11930, 0x11935}, {0x11937, 0x11938}, {0x1193b, 0x1193e}, {0x11940, 0x11940},
    {0x11942, 0x11943}, {0x119d1, 0x119d7}, {0x119da, 0x119e0}, {0x119e4, 0x119e4},
    {0x11a01, 0x11a0a}, {0x11a33, 0x11a39}, {0x11a3b, 0x11a3e}, {0x11a47, 0x11a47},
    {0x11a51, 0x11a5b}, {0x11a8a, 0x11a99}, {0x11d31, 0x11d36}, {0x11d3a, 0x11d3a},
    {0x11d3c, 0x11d3d}, {0x11d3f, 0x11d45}, {0x11d47, 0x11d47}, {0x11d8a, 0x11d8e},
    {0x11d90, 0x11d91}, {0x11d93, 0x11d97}, {0x11ef3, 0x11ef6}, {0x16f4f, 0x16f4f},
    {0x16f7f, 0x16f87}, {0x16fe4, 0x16fe4}, {0x16ff0, 0x16ff1}, {0x1cf00, 0x1cf2d},
    {0x1cf30, 0x1cf46}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}};
constexpr CodePointRange kChineseRanges[] = {
    {0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
    {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};

struct LowerRange {
  CodePointRange upper;
  uint32_t lower;
};
// Capitals that utf8proc does not know yet.
constexpr LowerRange kLaterCapitals[] = {
    {{0x1c89, 0x1c89}, 0x1c8a},   {{0xa7cb, 0xa7cb}, 0x264},  {{0xa7cc, 0xa7cc}, 0xa7cd},
    {{0xa7ce, 0xa7ce}, 0xa7cf},   {{0xa7d2, 0xa7d2}, 0xa7d3}, {{0xa7d4, 0xa7d4}, 0xa7d5},
    {{0xa7da, 0xa7da}, 0xa7db},   {{0xa7dc, 0xa7dc}, 0x19b},  {{0x10d50, 0x10d65}, 0x10d70},
    {{0x16ea0, 0x16eb8}, 0x16ebb}};

// REQUIRES: `ranges` are in order.
template <typename Ranges>
bool IsIn(const Ranges& ranges, uint32_t c) {
  const auto* const behind =
      std::upper_bound(std::begin(ranges), std::end(ranges), c,
                       [](uint32_t value, const auto& range) { return value < range.first; });
  return behind != std::begin(ranges) && c <= std::prev(behind)->last;
}

bool IsDropped(uint32_t c, utf8proc_category_t category) {
  return c == 0xfffd || category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_CO ||
         (category == UTF8PROC_CATEGORY_CF && !IsIn(kLaterControls, c));
}

constexpr uint32_t kAhomMedialRa = 0x1171e;  // Has another category since Unicode 16.

bool IsAccent(uint32_t c, utf8proc_category_t category) {
  constexpr uint32_t kTagalogPamudpod = 0x1734;  // Has another category since Unicode 14.
  return c == kTagalogPamudpod || c == kAhomMedialRa ||
         (category == UTF8PROC_CATEGORY_MN && !IsIn(kLaterAccents, c) && !IsIn(kAddedRanges, c));
}

bool IsMark(uint32_t c, utf8proc_category_t category) {
  const bool is_vedic = c == 0x1cf2 || c == 0x1cf3;  // Have another category since Unicode 12.
  const bool is_mark = category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
                       category == UTF8PROC_CATEGORY_ME;
  return is_vedic || c == kAhomMedialRa ||
         (is_mark && !IsIn(kLaterMarks, c) && !IsIn(kAddedRanges, c));
}

uint32_t LowerOf(uint32_t c) {
  for (const LowerRange& range : kLaterCapitals) {
    if (c >= range.upper.first && c <= range.upper.last) {
      return range.lower + (c - range.upper.first);
    }
  }
  return static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

std::vector<uint8_t> AllRules() {
  std::vector<uint8_t> rules(0x110000);
  for (uint32_t c = 0; c < rules.size(); ++c) {
    const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
    const bool is_capital = c == kDottedCapitalI || LowerOf(c) != c;
    rules[c] = static_cast<uint8_t>(
        (IsDropped(c, category) ? kDropped : 0) | (IsIn(kChineseRanges, c) ? kChinese : 0) |
        (IsAccent(c, category) ? kAccent : 0) | (IsMark(c, category) ? kMark : 0) |
        (is_capital ? kCapital : 0));
  }
  return rules;
}

}  // namespace

uint8_t RulesOf(uint32_t code_point) {
  static const std::vector<uint8_t> rules = AllRules();
  return rules[code_point];
}

void AppendLower(uint32_t code_point, std::string* text) {
  if (code_point == kDottedCapitalI) {  // Becomes two characters.
    text->append("i\u0307");
  } else {
    AppendCodePoint(LowerOf(code_point), text);
  }
}

std::string Lowercased(absl::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const uint32_t c = NextCodePoint(text, &i);
    if ((RulesOf(c) & kCapital) != 0) {
      AppendLower(c, &lower);
    } else {
      lower.append(text.data() + begin, i - begin);
    }
  }
  return lower;
}

std::string WithoutMarks(absl::string_view text) {
  std::string left;
  left.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    if ((RulesOf(NextCodePoint(text, &i)) & kMark) == 0) {
      left.append(text.data() + begin, i - begin);
    }
  }
  return left;
}

}  // namespace dtrain::plan
