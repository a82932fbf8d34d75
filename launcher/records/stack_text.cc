#include "launcher/records/stack_text.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/system/crash_stack.h"

namespace dtrain::launcher {
namespace {

// "prog(_ZN3foo3barEv+0x12) [0x55]" with the name as people write it.
std::string Readable(absl::string_view frame) {
  const size_t begin = frame.find("(_Z");
  const size_t end = begin == absl::string_view::npos ? begin : frame.find('+', begin);
  if (end == absl::string_view::npos) {
    return std::string(frame);
  }
  const std::string mangled(frame.substr(begin + 1, end - begin - 1));
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 ? absl::StrCat(frame.substr(0, begin + 1), name.get(), frame.substr(end))
                     : std::string(frame);
}

// "#3 0x... in f", "frame #3: f", "#3  f (x=1) at a.cc:5".
bool IsFrame(absl::string_view line) {
  line = absl::StripLeadingAsciiWhitespace(line);
  if (absl::StartsWith(line, "frame #")) {
    line.remove_prefix(6);
  }
  return line.size() > 2 && line[0] == '#' && absl::ascii_isdigit(line[1]);
}

}  // namespace

std::vector<std::string> StackIn(absl::Span<const std::string> lines, size_t frames_max) {
  std::vector<std::string> own;
  std::vector<std::string> others;
  bool inside = false;
  bool was_frame = false;
  for (const std::string& line : lines) {
    if (absl::StartsWith(line, kStackBegins)) {
      own.clear();
      inside = true;
      continue;
    }
    if (line == kStackEnds) {
      inside = false;
    } else if (inside && own.size() < frames_max) {
      own.push_back(Readable(line));
    }
    const bool is_frame = !inside && IsFrame(line);
    if (is_frame && !was_frame) {
      others.clear();
    }
    if (is_frame && others.size() < frames_max) {
      others.push_back(std::string(absl::StripLeadingAsciiWhitespace(line)));
    }
    was_frame = is_frame;
  }
  return own.empty() ? others : own;
}

}  // namespace dtrain::launcher
