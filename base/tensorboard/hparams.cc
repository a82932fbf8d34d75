#include "base/tensorboard/hparams.h"

#include <cstdint>
#include <functional>

#include "absl/strings/str_cat.h"
#include "base/tensorboard/events.h"
#include "base/tensorboard/protobuf_wire.h"
#include "base/text/markdown.h"

namespace dtrain {
namespace {

// Field numbers of SummaryMetadata, its PluginData, and its DataClass.
constexpr uint32_t kPluginData = 1;
constexpr uint32_t kDataClass = 4;
constexpr uint32_t kPluginName = 1;
constexpr uint32_t kPluginContent = 2;
constexpr int64_t kClassTensor = 2;
// Field numbers of TensorProto and TensorShapeProto, and a value of DataType.
constexpr uint32_t kTensorType = 1;
constexpr uint32_t kTensorShape = 2;
constexpr uint32_t kTensorStrings = 8;
constexpr uint32_t kShapeDimension = 2;
constexpr int64_t kTypeFloat = 1;
constexpr int64_t kTypeString = 7;
// Field numbers of tensorboard.hparams.HParamsPluginData, SessionStartInfo and SessionEndInfo.
constexpr uint32_t kSessionStartInfo = 3;
constexpr uint32_t kSessionEnd = 4;
constexpr uint32_t kStartValues = 1;
constexpr uint32_t kStartGroup = 4;
constexpr uint32_t kStartTime = 5;
constexpr uint32_t kEndStatus = 1;
constexpr uint32_t kEndTime = 2;
constexpr int64_t kStatusSuccess = 1;
// Field numbers of a map's entry and of google.protobuf.Value.
constexpr uint32_t kMapKey = 1;
constexpr uint32_t kMapValue = 2;
constexpr uint32_t kNumberValue = 2;
constexpr uint32_t kStringValue = 3;
constexpr uint32_t kBoolValue = 4;

std::string Metadata(absl::string_view plugin, absl::string_view content) {
  std::string data;
  wire::PutBytes(data, kPluginName, plugin);
  wire::PutBytes(data, kPluginContent, content);
  std::string metadata;
  wire::PutBytes(metadata, kPluginData, data);
  wire::PutInteger(metadata, kDataClass, kClassTensor);
  return metadata;
}

// A tensor without numbers, since the plugin reads only the metadata.
std::string EmptyTensor() {
  std::string shape;
  wire::PutBytes(shape, kShapeDimension, "");  // One dimension of size 0.
  std::string tensor;
  wire::PutInteger(tensor, kTensorType, kTypeFloat);
  wire::PutBytes(tensor, kTensorShape, shape);
  return tensor;
}

std::string ProtobufValue(const Json& value) {
  std::string message;
  if (value.is_boolean()) {
    wire::PutInteger(message, kBoolValue, value.get<bool>() ? 1 : 0);
  } else if (value.is_number()) {
    wire::PutDouble(message, kNumberValue, value.get<double>());
  } else {
    wire::PutBytes(message, kStringValue,
                   value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  return message;
}

// Calls `visit` with the path and value of every leaf; an empty object is a leaf.
void VisitLeaves(const std::string& path, const Json& value,
                 const std::function<void(const std::string&, const Json&)>& visit) {
  if (!value.is_object() || value.empty()) {
    visit(path, value);
    return;
  }
  for (const auto& [name, member] : value.items()) {
    VisitLeaves(path.empty() ? name : absl::StrCat(path, ".", name), member, visit);
  }
}

// The origin of the innermost key that has one: a free-form object of the configuration has one
// origin for all its keys.
std::string OriginOf(const Json& origins, std::string path) {
  while (true) {
    if (const auto found = origins.find(path); found != origins.end() && found->is_string()) {
      return found->get<std::string>();
    }
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) {
      return "";
    }
    path.resize(dot);
  }
}

}  // namespace

std::string HyperparametersEvent(double wall_time, absl::string_view group, const Json& values) {
  std::string start;
  VisitLeaves("", values, [&start](const std::string& name, const Json& value) {
    if (!value.is_null() && !value.is_object()) {
      std::string entry;
      wire::PutBytes(entry, kMapKey, name);
      wire::PutBytes(entry, kMapValue, ProtobufValue(value));
      wire::PutBytes(start, kStartValues, entry);
    }
  });
  wire::PutBytes(start, kStartGroup, group);
  wire::PutDouble(start, kStartTime, wall_time);
  std::string content;
  wire::PutBytes(content, kSessionStartInfo, start);
  return TensorEvent(wall_time, "_hparams_/session_start_info", Metadata("hparams", content),
                     EmptyTensor());
}

std::string RunDoneEvent(double wall_time) {
  std::string end;
  wire::PutInteger(end, kEndStatus, kStatusSuccess);
  wire::PutDouble(end, kEndTime, wall_time);
  std::string content;
  wire::PutBytes(content, kSessionEnd, end);
  return TensorEvent(wall_time, "_hparams_/session_end_info", Metadata("hparams", content),
                     EmptyTensor());
}

std::string TextEvent(double wall_time, absl::string_view tag, absl::string_view markdown) {
  std::string tensor;
  wire::PutInteger(tensor, kTensorType, kTypeString);
  wire::PutBytes(tensor, kTensorShape, "");  // A scalar.
  wire::PutBytes(tensor, kTensorStrings, markdown);
  return TensorEvent(wall_time, tag, Metadata("text", ""), tensor);
}

std::string ConfigTable(const Json& config) {
  const auto given = config.find("origins");
  const Json origins = given == config.end() ? Json::object() : *given;
  std::string table = "| key | value | from |\n|---|---|---|\n";
  for (const auto& [name, section] : config.items()) {
    if (name == "origins") {
      continue;
    }
    VisitLeaves(name, section, [&](const std::string& path, const Json& value) {
      absl::StrAppend(&table, "| ", MarkdownCode(path), " | ", MarkdownCode(DumpJson(value)), " | ",
                      OriginOf(origins, path), " |\n");
    });
  }
  return table;
}

std::string MembersTable(const Json& object) {
  std::string table = "| what | value |\n|---|---|\n";
  VisitLeaves("", object, [&](const std::string& path, const Json& value) {
    const std::string text = value.is_string() ? value.get<std::string>() : DumpJson(value);
    absl::StrAppend(&table, "| ", path, " | ", MarkdownCode(text), " |\n");
  });
  return table;
}

}  // namespace dtrain
