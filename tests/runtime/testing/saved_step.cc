#include "tests/runtime/testing/saved_step.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain::testing {

std::string SavedStep(const std::string& folder, int64_t step) {
  const auto storage = *checkpoint::OpenPosixStorage(folder + "/checkpoints");
  std::string text;
  const std::vector<checkpoint::Storage::Entry> entries = *storage->List("");
  for (const checkpoint::Storage::Entry& entry : entries) {
    const auto id = checkpoint::StepId::FromDirectoryName(entry.name);
    const auto manifest = id && id->step == step ? checkpoint::ReadManifest(*storage, *id)
                                                 : absl::NotFoundError("another");
    if (!manifest.ok()) {
      continue;
    }
    for (const checkpoint::ManifestFile& file : manifest->files) {
      absl::StrAppend(&text, file.path, " ", file.checksum.xxh3_128, "\n");
    }
    absl::StrAppend(&text, DumpJson(manifest->state.engine), "\n");
    for (const Json& rank : manifest->rank_state) {
      absl::StrAppend(&text, DumpJson(rank), "\n");
    }
  }
  return text;
}

std::string RecordsOf(const std::string& folder, absl::string_view name) {
  const auto text = ReadFile(folder + "/metrics/rank-0.jsonl", 1 << 24);
  std::string found;
  for (const absl::string_view line : absl::StrSplit(text.value_or(""), '\n')) {
    if (absl::StrContains(line, absl::StrCat("\"", name, "\""))) {
      absl::StrAppend(&found, line, "\n");
    }
  }
  return found;
}

}  // namespace dtrain::testing
