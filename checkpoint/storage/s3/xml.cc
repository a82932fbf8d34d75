#include "checkpoint/storage/s3/xml.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace dtrain::checkpoint::s3 {
namespace {

absl::Status Malformed(absl::string_view what, size_t at) {
  return absl::InvalidArgumentError(
      absl::StrCat("XML is not well-formed at byte ", at, ": ", what));
}

bool IsNameByte(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return absl::ascii_isalnum(byte) || c == '_' || c == '-' || c == '.' || c == ':' || byte >= 0x80;
}

void AppendUtf8(uint32_t point, std::string& out) {
  if (point < 0x80) {
    out.push_back(static_cast<char>(point));
    return;
  }
  const int following = point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
  const uint32_t lead = following == 1 ? 0xc0U : following == 2 ? 0xe0U : 0xf0U;
  out.push_back(static_cast<char>(lead | (point >> (6 * following))));
  for (int i = following - 1; i >= 0; --i) {
    out.push_back(static_cast<char>(0x80U | ((point >> (6 * i)) & 0x3fU)));
  }
}

// Appends what the entity between '&' and ';' stands for; false when it is none.
bool AppendEntity(absl::string_view entity, std::string& out) {
  constexpr std::pair<absl::string_view, char> kNamed[] = {
      {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
  for (const auto& [name, character] : kNamed) {
    if (entity == name) {
      out.push_back(character);
      return true;
    }
  }
  uint32_t point = 0;
  const bool parsed = absl::ConsumePrefix(&entity, "#x")  ? absl::SimpleHexAtoi(entity, &point)
                      : absl::ConsumePrefix(&entity, "#") ? absl::SimpleAtoi(entity, &point)
                                                          : false;
  const bool surrogate = point >= 0xd800 && point <= 0xdfff;
  if (!parsed || point == 0 || point > 0x10ffff || surrogate) {
    return false;
  }
  AppendUtf8(point, out);
  return true;
}

class XmlParser {
 public:
  explicit XmlParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<XmlElement> Parse() {
    absl::ConsumePrefix(&text_, "\xef\xbb\xbf");  // A byte order mark.
    while (at_ < text_.size()) {
      DT_RETURN_IF_ERROR(text_[at_] == '<' ? TakeMarkup() : TakeText());
    }
    if (!has_root_ || !open_.empty()) {
      return Malformed("it ends before its root element does", at_);
    }
    return std::move(root_);
  }

 private:
  absl::string_view Rest() const { return text_.substr(at_); }

  // Goes behind the next `mark`, and gives what stands before it.
  absl::StatusOr<absl::string_view> TakeUntil(absl::string_view mark) {
    const size_t found = text_.find(mark, at_);
    if (found == absl::string_view::npos) {
      return Malformed(absl::StrCat("no ", mark, " follows"), at_);
    }
    const absl::string_view taken = text_.substr(at_, found - at_);
    at_ = found + mark.size();
    return taken;
  }

  absl::Status TakeText() {
    const absl::string_view text = Rest().substr(0, Rest().find('<'));
    if (open_.empty()) {
      if (!absl::StripAsciiWhitespace(text).empty()) {
        return Malformed("text outside of the root element", at_);
      }
      at_ += text.size();
      return absl::OkStatus();
    }
    constexpr size_t kEntityBytesMax = 12;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '&') {
        open_.back().text.push_back(text[i]);
        continue;
      }
      const size_t end = text.substr(0, std::min(text.size(), i + kEntityBytesMax)).find(';', i);
      if (end == absl::string_view::npos ||
          !AppendEntity(text.substr(i + 1, end - i - 1), open_.back().text)) {
        return Malformed("unknown entity", at_ + i);
      }
      i = end;
    }
    at_ += text.size();
    return absl::OkStatus();
  }

  absl::Status TakeMarkup() {
    constexpr absl::string_view kData = "<![CDATA[";
    if (absl::StartsWith(Rest(), "<!--")) {
      at_ += 4;
      return TakeUntil("-->").status();
    }
    if (absl::StartsWith(Rest(), "<?")) {
      return TakeUntil("?>").status();
    }
    if (absl::StartsWith(Rest(), kData) && !open_.empty()) {
      at_ += kData.size();
      DT_ASSIGN_OR_RETURN(const absl::string_view data, TakeUntil("]]>"));
      open_.back().text.append(data.data(), data.size());
      return absl::OkStatus();
    }
    if (absl::StartsWith(Rest(), "<!")) {
      return Malformed("document types are not allowed", at_);
    }
    return absl::StartsWith(Rest(), "</") ? TakeEnd() : TakeBegin();
  }

  absl::StatusOr<std::string> TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsNameByte(text_[at_])) {
      ++at_;
    }
    absl::string_view name = text_.substr(begin, at_ - begin);
    const size_t colon = name.rfind(':');
    if (colon != absl::string_view::npos) {
      name.remove_prefix(colon + 1);
    }
    if (name.empty()) {
      return Malformed("a name is missing", begin);
    }
    return std::string(name);
  }

  // Goes to the end of a tag, over its attributes; true when the tag closes its element itself.
  absl::StatusOr<bool> SkipAttributes() {
    char quote = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (quote != 0) {
        quote = c == quote ? '\0' : quote;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (c == '<') {
        return Malformed("'<' inside of a tag", at_);
      } else if (c == '>') {
        return text_[at_++ - 1] == '/';
      }
    }
    return Malformed("a tag does not end", at_);
  }

  absl::Status TakeBegin() {
    if (has_root_ && open_.empty()) {
      return Malformed("a second root element", at_);
    }
    if (open_.size() == kXmlDepthMax || ++elements_ > kXmlElementsMax) {
      return Malformed("more elements than are allowed", at_);
    }
    ++at_;
    XmlElement element;
    DT_ASSIGN_OR_RETURN(element.name, TakeName());
    if (at_ < text_.size() && text_[at_] != '>' && text_[at_] != '/' &&
        !absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
      return Malformed("a name holds a character that it may not", at_);
    }
    DT_ASSIGN_OR_RETURN(const bool closed, SkipAttributes());
    has_root_ = true;
    open_.push_back(std::move(element));
    if (closed) {
      Close();
    }
    return absl::OkStatus();
  }

  absl::Status TakeEnd() {
    at_ += 2;
    DT_ASSIGN_OR_RETURN(const std::string name, TakeName());
    DT_ASSIGN_OR_RETURN(const absl::string_view space, TakeUntil(">"));
    if (open_.empty() || open_.back().name != name || !absl::StripAsciiWhitespace(space).empty()) {
      return Malformed(absl::StrCat("</", name, "> closes nothing"), at_);
    }
    Close();
    return absl::OkStatus();
  }

  void Close() {
    XmlElement element = std::move(open_.back());
    open_.pop_back();
    if (open_.empty()) {
      root_ = std::move(element);
    } else {
      open_.back().children.push_back(std::move(element));
    }
  }

  absl::string_view text_;
  size_t at_ = 0;
  size_t elements_ = 0;
  bool has_root_ = false;
  std::vector<XmlElement> open_;  // From the root to the element that is being read.
  XmlElement root_;
};

}  // namespace

const XmlElement* XmlElement::Child(absl::string_view child) const {
  const auto found = std::find_if(children.begin(), children.end(),
                                  [&](const XmlElement& element) { return element.name == child; });
  return found == children.end() ? nullptr : &*found;
}

std::string XmlElement::TextOf(absl::string_view child) const {
  const XmlElement* const found = Child(child);
  return found == nullptr ? "" : found->text;
}

absl::StatusOr<XmlElement> ParseXml(absl::string_view text) {
  if (text.size() > kXmlBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("XML has ", text.size(), " bytes; at most ", kXmlBytesMax, " are allowed"));
  }
  return XmlParser(text).Parse();
}

}  // namespace dtrain::checkpoint::s3
