#include "launcher/topology/nccl_xml.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kXmlBytesMax = 8U << 20;
constexpr int kElementsMax = 200'000;
constexpr size_t kElementDepthMax = 64;
constexpr size_t kAttributesMax = 64;
constexpr size_t kWordBytesMax = 255;

bool IsNameByte(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.' ||
         c == ':';
}

class XmlReader {
 public:
  XmlReader(absl::string_view text, absl::string_view file) : text_(text), file_(file) {}

  absl::StatusOr<NcclElement> Read();

 private:
  absl::Status Bad(absl::string_view what) const;
  absl::Status SkipBetween();
  absl::Status ReadTag();
  absl::Status ReadAttributes(NcclElement* element, bool* is_closed);
  absl::Status Close(absl::string_view name);
  std::string TakeName();
  void SkipBlanks();
  bool Take(absl::string_view word);

  absl::string_view text_;
  absl::string_view file_;
  size_t at_ = 0;
  int elements_ = 0;
  std::vector<NcclElement> open_;  // The elements around the current place, outermost first.
  std::vector<NcclElement> roots_;
};

absl::Status XmlReader::Bad(absl::string_view what) const {
  const auto line =
      1 + std::count(text_.begin(), text_.begin() + static_cast<ptrdiff_t>(at_), '\n');
  return absl::InvalidArgumentError(absl::StrCat(file_, ":", line, ": ", what));
}

void XmlReader::SkipBlanks() {
  while (at_ < text_.size() && absl::ascii_isspace(static_cast<unsigned char>(text_[at_]))) {
    ++at_;
  }
}

bool XmlReader::Take(absl::string_view word) {
  if (!absl::StartsWith(text_.substr(at_), word)) {
    return false;
  }
  at_ += word.size();
  return true;
}

std::string XmlReader::TakeName() {
  const size_t begin = at_;
  while (at_ < text_.size() && IsNameByte(text_[at_]) && at_ - begin <= kWordBytesMax) {
    ++at_;
  }
  return std::string(text_.substr(begin, at_ - begin));
}

// Skips blanks, comments and <?...?>.
absl::Status XmlReader::SkipBetween() {
  for (;;) {
    SkipBlanks();
    absl::string_view end;
    if (absl::StartsWith(text_.substr(at_), "<!--")) {
      end = "-->";
    } else if (absl::StartsWith(text_.substr(at_), "<?")) {
      end = "?>";
    } else {
      return absl::OkStatus();
    }
    const size_t found = text_.find(end, at_);
    if (found == absl::string_view::npos) {
      return Bad(absl::StrCat("no ", end, " ends what begins here"));
    }
    at_ = found + end.size();
  }
}

absl::Status XmlReader::ReadAttributes(NcclElement* element, bool* is_closed) {
  for (;;) {
    SkipBlanks();
    *is_closed = Take("/>");
    if (*is_closed || Take(">")) {
      return absl::OkStatus();
    }
    std::string name = TakeName();
    if (name.empty() || name.size() > kWordBytesMax || !Take("=\"")) {
      return Bad(absl::StrCat("<", element->name,
                              ">: expected an attribute NAME=\"VALUE\" or the end of the element"));
    }
    const size_t end = text_.find('"', at_);
    if (end == absl::string_view::npos || end - at_ > kWordBytesMax) {
      return Bad(absl::StrCat("<", element->name, ">: the value of ", name,
                              " has no closing \" in ", kWordBytesMax, " bytes"));
    }
    const absl::string_view value = text_.substr(at_, end - at_);
    if (value.find_first_of("<\n") != absl::string_view::npos) {
      return Bad(absl::StrCat("<", element->name, ">: the value of ", name,
                              " holds a < or the end of a line"));
    }
    at_ = end + 1;
    const bool is_twice =
        std::any_of(element->attributes.begin(), element->attributes.end(),
                    [&name](const auto& attribute) { return attribute.first == name; });
    if (is_twice) {
      return Bad(absl::StrCat("<", element->name, "> has the attribute ", name, " twice"));
    }
    if (element->attributes.size() >= kAttributesMax) {
      return Bad(
          absl::StrCat("<", element->name, "> has more than ", kAttributesMax, " attributes"));
    }
    element->attributes.emplace_back(std::move(name), value);
  }
}

absl::Status XmlReader::Close(absl::string_view name) {
  if (open_.empty() || open_.back().name != name) {
    return Bad(absl::StrCat("</", name, "> closes ",
                            open_.empty() ? "nothing" : absl::StrCat("<", open_.back().name, ">")));
  }
  NcclElement done = std::move(open_.back());
  open_.pop_back();
  (open_.empty() ? roots_ : open_.back().children).push_back(std::move(done));
  return absl::OkStatus();
}

absl::Status XmlReader::ReadTag() {
  if (Take("</")) {
    const std::string name = TakeName();
    SkipBlanks();
    if (!Take(">")) {
      return Bad(absl::StrCat("</", name, " has no >"));
    }
    return Close(name);
  }
  NcclElement element;
  if (!Take("<") || (element.name = TakeName()).empty() || element.name.size() > kWordBytesMax) {
    return Bad("expected an element <NAME ...>; NCCL's files hold no text");
  }
  if (++elements_ > kElementsMax || open_.size() >= kElementDepthMax) {
    return Bad(
        absl::StrCat("more than ", kElementsMax, " elements, or deeper than ", kElementDepthMax));
  }
  bool is_closed = false;
  const absl::Status read = ReadAttributes(&element, &is_closed);
  if (!read.ok()) {
    return read;
  }
  const std::string name = element.name;
  open_.push_back(std::move(element));
  return is_closed ? Close(name) : absl::OkStatus();
}

absl::StatusOr<NcclElement> XmlReader::Read() {
  if (text_.size() > kXmlBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ": ", text_.size(), " bytes; allowed: ", kXmlBytesMax));
  }
  for (;;) {
    if (const absl::Status skipped = SkipBetween(); !skipped.ok()) {
      return skipped;
    }
    if (at_ == text_.size()) {
      break;
    }
    if (!roots_.empty()) {
      return Bad("something follows the root element");
    }
    if (const absl::Status read = ReadTag(); !read.ok()) {
      return read;
    }
  }
  if (!open_.empty()) {
    return Bad(absl::StrCat("<", open_.back().name, "> is not closed"));
  }
  if (roots_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(file_, " holds no element"));
  }
  return std::move(roots_.front());
}

void Append(const NcclElement& element, size_t depth, std::string* text) {
  const std::string indent(2 * depth, ' ');
  absl::StrAppend(text, indent, "<", element.name);
  for (const auto& [name, value] : element.attributes) {
    absl::StrAppend(text, " ", name, "=\"", value, "\"");
  }
  if (element.children.empty()) {
    absl::StrAppend(text, "/>\n");
    return;
  }
  absl::StrAppend(text, ">\n");
  for (const NcclElement& child : element.children) {
    Append(child, depth + 1, text);
  }
  absl::StrAppend(text, indent, "</", element.name, ">\n");
}

}  // namespace

const std::string& NcclElement::Value(absl::string_view attribute) const {
  static const std::string* const kNone = new std::string();
  const auto found = std::find_if(attributes.begin(), attributes.end(),
                                  [&](const auto& each) { return each.first == attribute; });
  return found == attributes.end() ? *kNone : found->second;
}

absl::StatusOr<NcclElement> ParseNcclXml(absl::string_view text, absl::string_view file) {
  return XmlReader(text, file).Read();
}

std::string FormatNcclXml(const NcclElement& root) {
  std::string text;
  Append(root, 0, &text);
  return text;
}

}  // namespace dtrain::launcher
