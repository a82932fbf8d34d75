#include "checkpoint/tools/describe.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/progress_line.h"
#include "checkpoint/tools/table.h"
#include "checkpoint/tools/tensor_values.h"

namespace dtrain::checkpoint {
namespace {

bool IsOfModel(const Manifest& manifest, const ManifestTensor& tensor) {
  return absl::StartsWith(manifest.files[tensor.file].path, "model/");
}

std::string Thousands(uint64_t number) { return WithThousands(static_cast<int64_t>(number)); }

// "BF16, F32 (norms)": the types of the weights, the most frequent first.
std::string TypesOf(const Manifest& manifest) {
  std::map<std::string, uint64_t> elements;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (IsOfModel(manifest, tensor)) {
      elements[tensor.entry.dtype] += ElementCount(tensor.entry.shape);
    }
  }
  std::vector<std::pair<uint64_t, std::string>> order;
  for (const auto& [type, count] : elements) {
    order.emplace_back(count, type);
  }
  std::sort(order.rbegin(), order.rend());
  return absl::StrJoin(
      order, ", ", [](std::string* out, const auto& pair) { absl::StrAppend(out, pair.second); });
}

size_t ModelTensors(const Manifest& manifest) {
  return static_cast<size_t>(
      std::count_if(manifest.tensors.begin(), manifest.tensors.end(),
                    [&](const ManifestTensor& tensor) { return IsOfModel(manifest, tensor); }));
}

// Appends the members of a record of the run, one a line; members of its objects are named
// "outer.inner".
void AppendMembers(std::string* text, const std::string& path, const Json& value) {
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      AppendMembers(text, path.empty() ? name : absl::StrCat(path, ".", name), member);
    }
    return;
  }
  const std::string shown = value.is_string() ? value.get<std::string>() : DumpJson(value);
  absl::StrAppendFormat(text, "  %-22s  %s\n", path, shown);
}

void AppendSection(std::string* text, const char* title, const Json& members) {
  if (!members.empty()) {
    absl::StrAppend(text, "\n", title, "\n");
    AppendMembers(text, "", members);
  }
}

std::string FilesText(const Manifest& manifest) {
  Table table({"size", "file", "XXH3-128"});
  for (const ManifestFile& file : manifest.files) {
    table.Add(
        {FormatBytes(static_cast<double>(file.checksum.bytes)), file.path, file.checksum.xxh3_128});
  }
  return table.Text({0});
}

std::string TensorsText(const Manifest& manifest) {
  Table table({"type", "elements", "shape", "tensor", "file"});
  for (const ManifestTensor& tensor : manifest.tensors) {
    table.Add({tensor.entry.dtype, Thousands(ElementCount(tensor.entry.shape)),
               absl::StrCat("[", absl::StrJoin(tensor.entry.shape, ", "), "]"), tensor.entry.name,
               manifest.files[tensor.file].path});
  }
  return table.Text({1});
}

Json IdJson(StepId id) {
  return {{"step", id.step}, {"epoch", id.epoch}, {"name", id.DirectoryName()}};
}

}  // namespace

std::string TimeText(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", absl::FromUnixMillis(unix_ms),
                          absl::UTCTimeZone());
}

double AgeSeconds(int64_t unix_ms, absl::Time now) {
  return absl::ToDoubleSeconds(now - absl::FromUnixMillis(unix_ms));
}

uint64_t ParametersOf(const Manifest& manifest) {
  uint64_t parameters = 0;
  for (const ManifestTensor& tensor : manifest.tensors) {
    parameters += IsOfModel(manifest, tensor) ? ElementCount(tensor.entry.shape) : 0;
  }
  return parameters;
}

std::string DescribeText(const Manifest& manifest, const std::string& path, absl::Time now,
                         bool with_tensors) {
  const size_t of_model = ModelTensors(manifest);
  std::string text = path + "\n\n";
  const auto row = [&text](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "  %-12s  %s\n", name, value);
  };
  row("step", Thousands(static_cast<uint64_t>(manifest.id.step)));
  row("written",
      absl::StrFormat("%s (%s ago), by attempt %d of the run", TimeText(manifest.created_unix_ms),
                      FormatAge(AgeSeconds(manifest.created_unix_ms, now)), manifest.id.epoch));
  row("run", manifest.job);
  row("continues", manifest.parent ? manifest.parent->DirectoryName()
                                   : "no checkpoint: the run started at step 0");
  row("world size", absl::StrCat(manifest.world_size));
  row("ZeRO stage", absl::StrCat(manifest.state.zero_stage));
  row("parameters",
      absl::StrFormat("%s (%s)", Thousands(ParametersOf(manifest)), TypesOf(manifest)));
  row("tensors", absl::StrFormat("%d of the model, %d of the training state%s", of_model,
                                 manifest.tensors.size() - of_model,
                                 with_tensors ? "" : " (--tensors lists them)"));
  row("size",
      absl::StrFormat("%s in %d files", FormatBytes(static_cast<double>(manifest.data_bytes())),
                      manifest.files.size()));
  absl::StrAppend(&text, "\nFiles\n", FilesText(manifest));
  AppendSection(&text, "Optimizer and schedule", manifest.state.engine);
  AppendSection(&text, "Position in the data", manifest.state.data);
  AppendSection(&text, "Tracked by the program", manifest.state.user);
  if (with_tensors) {
    absl::StrAppend(&text, "\nTensors\n", TensorsText(manifest));
  }
  return text;
}

Json DescribeJson(const Manifest& manifest, const std::string& path) {
  Json json = IdJson(manifest.id);
  json["path"] = path;
  json["written_unix_ms"] = manifest.created_unix_ms;
  json["job"] = manifest.job;
  json["parent"] = manifest.parent ? IdJson(*manifest.parent) : Json(nullptr);
  json["world_size"] = manifest.world_size;
  json["zero_stage"] = manifest.state.zero_stage;
  json["layout_hash"] = manifest.state.layout_hash;
  json["parameters"] = ParametersOf(manifest);
  json["bytes"] = manifest.data_bytes();
  json["engine"] = manifest.state.engine;
  json["data"] = manifest.state.data;
  json["user"] = manifest.state.user;
  json["skip"] = Json::array();
  for (const SkipRange& range : manifest.state.skip) {
    json["skip"].push_back({range.begin, range.end});
  }
  json["files"] = Json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back({{"path", file.path},
                             {"bytes", file.checksum.bytes},
                             {"xxh3_128", file.checksum.xxh3_128}});
  }
  json["tensors"] = Json::array();
  for (const ManifestTensor& tensor : manifest.tensors) {
    json["tensors"].push_back({{"name", tensor.entry.name},
                               {"dtype", tensor.entry.dtype},
                               {"shape", tensor.entry.shape},
                               {"file", manifest.files[tensor.file].path}});
  }
  return json;
}

Json ListedJson(StepId id, const Manifest* manifest, bool resumable, const absl::Status& state) {
  Json json = IdJson(id);
  json["written_unix_ms"] = manifest == nullptr ? Json(nullptr) : Json(manifest->created_unix_ms);
  json["world_size"] = manifest == nullptr ? Json(nullptr) : Json(manifest->world_size);
  json["zero_stage"] = manifest == nullptr ? Json(nullptr) : Json(manifest->state.zero_stage);
  json["bytes"] = manifest == nullptr ? Json(nullptr) : Json(manifest->data_bytes());
  json["resumable"] = resumable;
  json["ok"] = state.ok();
  json["problem"] = state.ok() ? Json(nullptr) : Json(std::string(state.message()));
  return json;
}

}  // namespace dtrain::checkpoint
