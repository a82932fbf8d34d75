#include "runtime/checkpoint/known_save.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/json.h"

namespace dtrain {

std::optional<checkpoint::KnownSave> LastKnownSave(const std::string& run_dir) {
  constexpr size_t kMetricsBytesMax = size_t{1} << 30;
  const auto text = ReadFile(absl::StrCat(run_dir, "/metrics/rank-0.jsonl"), kMetricsBytesMax);
  if (!text.ok()) {
    return std::nullopt;
  }
  absl::string_view rest = *text;
  for (size_t at = rest.npos; (at = rest.rfind(R"("kind":"ckpt")")) != rest.npos;) {
    const size_t begin = rest.rfind('\n', at) + 1;  // 0 in the first line.
    const auto line = rest.substr(begin, rest.find('\n', at) - begin);
    rest = rest.substr(0, begin);
    const auto record = ParseJson(line, "metrics");
    if (!record.ok() || !record->is_object()) {
      continue;  // Torn by a crash.
    }
    const auto durable = record->find("durable");
    const bool is_save = durable != record->end() && *durable == true;
    const auto path = record->find("path");
    if ((!is_save && !record->contains("restored")) || path == record->end() ||
        !path->is_string()) {
      continue;
    }
    const auto folder = path->get<std::string>();
    const auto id = checkpoint::StepId::FromDirectoryName(folder.substr(folder.rfind('/') + 1));
    if (id.has_value()) {
      return checkpoint::KnownSave{*id, folder};
    }
  }
  return std::nullopt;
}

}  // namespace dtrain
