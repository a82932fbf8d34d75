#include "launcher/records/attempt_logs.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace dtrain::launcher {
namespace {

constexpr char kPrefix[] = "attempt-";

}  // namespace

std::string AttemptFolder(const std::string& logs, int number) {
  return absl::StrCat(logs, "/", kPrefix, number);
}

std::optional<int> NewestAttempt(const std::string& logs) {
  std::optional<int> newest;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(logs, ignored)) {
    const std::string name = entry.path().filename();
    absl::string_view rest = name;
    int number = 0;
    if (absl::ConsumePrefix(&rest, kPrefix) && absl::SimpleAtoi(rest, &number) && number >= 0) {
      newest = std::max(newest.value_or(0), number);
    }
  }
  return newest;
}

}  // namespace dtrain::launcher
