#include "launcher/hosts/starter_console.h"

#include "absl/strings/str_cat.h"

namespace dtrain::launcher {
namespace {

constexpr size_t kLineMax = 64U << 10;  // Longer lines are shown in parts.

}  // namespace

void HostLines::Show(absl::string_view text, StarterConsole& console) {
  rest_.append(text.data(), text.size());
  size_t from = 0;
  for (size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n', from)) {
    console.err.Add(absl::StrCat("[", host_, "] ", rest_.substr(from, end + 1 - from)));
    from = end + 1;
  }
  rest_.erase(0, from);
  if (rest_.size() > kLineMax) {
    console.err.Add(absl::StrCat("[", host_, "] ", rest_, "\n"));
    rest_.clear();
  }
}

void HostLines::ShowRest(StarterConsole& console) {
  if (!rest_.empty()) {
    Show("\n", console);
  }
}

}  // namespace dtrain::launcher
