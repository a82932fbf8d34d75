#include "checkpoint/commit/save_messages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/device_error.h"
#include "base/status.h"
#include "checkpoint/format/json_fields.h"

namespace dtrain::checkpoint {
namespace {

constexpr int kCodeMax = 16;  // absl::StatusCode::kUnauthenticated.

Json StatusJson(const absl::Status& status) {
  return {{"code", static_cast<int>(status.code())},
          {"device", IsDeviceError(status)},
          {"message", std::string(status.message())}};
}

absl::StatusOr<Json> Parse(absl::string_view text) { return ParseJson(text, "save message"); }

// Reads a status into `into`; the returned status is that of reading.
absl::Status ReadStatus(JsonFields& fields, absl::Status& into) {
  DT_ASSIGN_OR_RETURN(const Json json, fields.Object("status"));
  JsonFields status(json, "status");
  DT_ASSIGN_OR_RETURN(const int64_t code, status.Integer("code", 0, kCodeMax));
  DT_ASSIGN_OR_RETURN(const Json* device, status.Any("device"));
  DT_ASSIGN_OR_RETURN(const std::string message, status.String("message"));
  into = absl::Status(static_cast<absl::StatusCode>(code), message);
  if (device->is_boolean() && device->get<bool>()) {
    MarkDeviceError(into);
  }
  return absl::OkStatus();
}

Json WrittenFileJson(const WrittenFile& file) {
  Json tensors = Json::array();
  for (const TensorEntry& tensor : file.tensors) {
    tensors.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.begin, tensor.end});
  }
  return {{"path", file.path},
          {"bytes", file.checksum.bytes},
          {"hash", file.checksum.xxh3_128},
          {"crc", file.checksum.crc32c},
          {"tensors", std::move(tensors)}};
}

absl::StatusOr<TensorEntry> ParseTensor(const Json& json) {
  if (!json.is_array() || json.size() != 5 || !json[0].is_string() || !json[1].is_string()) {
    return absl::InvalidArgumentError("report: a tensor must be [name, dtype, shape, begin, end]");
  }
  TensorEntry entry;
  entry.name = json[0].get<std::string>();
  entry.dtype = json[1].get<std::string>();
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> shape, JsonIntegers(json[2], "shape", 0));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                      JsonIntegers(Json::array({json[3], json[4]}), "offsets", 0));
  entry.shape.assign(shape.begin(), shape.end());
  entry.begin = static_cast<uint64_t>(offsets[0]);
  entry.end = static_cast<uint64_t>(offsets[1]);
  return entry;
}

absl::StatusOr<WrittenFile> ParseWrittenFile(const Json& json) {
  JsonFields fields(json, "report file");
  WrittenFile file;
  DT_ASSIGN_OR_RETURN(file.path, fields.String("path"));
  DT_ASSIGN_OR_RETURN(const int64_t bytes, fields.Integer("bytes", 0, INT64_MAX));
  file.checksum.bytes = static_cast<uint64_t>(bytes);
  DT_ASSIGN_OR_RETURN(file.checksum.xxh3_128, fields.String("hash"));
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> crc, fields.Integers("crc", 0));
  for (const int64_t value : crc) {
    file.checksum.crc32c.push_back(static_cast<uint32_t>(value));
  }
  DT_ASSIGN_OR_RETURN(const Json* tensors, fields.Array("tensors"));
  for (const Json& tensor : *tensors) {
    DT_ASSIGN_OR_RETURN(TensorEntry entry, ParseTensor(tensor));
    file.tensors.push_back(std::move(entry));
  }
  return file;
}

}  // namespace

std::string Encode(const SaveProposal& message) {
  return DumpJson({{"epoch", message.id.epoch},
                   {"step", message.id.step},
                   {"model_shards", message.model_shards},
                   {"status", StatusJson(message.status)}});
}

absl::StatusOr<SaveProposal> ParseProposal(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, Parse(text));
  JsonFields fields(json, "proposal");
  SaveProposal message;
  DT_ASSIGN_OR_RETURN(message.id.epoch, fields.Integer("epoch", 1, kEpochMax));
  DT_ASSIGN_OR_RETURN(message.id.step, fields.Integer("step", 0, kStepMax));
  DT_ASSIGN_OR_RETURN(const int64_t shards, fields.Integer("model_shards", 0, INT32_MAX));
  message.model_shards = static_cast<int>(shards);
  DT_RETURN_IF_ERROR(ReadStatus(fields, message.status));
  return message;
}

std::string Encode(const SavePlan& message) {
  return DumpJson({{"go", message.go},
                   {"outcome", message.outcome},
                   {"first_shard", message.first_shard},
                   {"shard_count", message.shard_count},
                   {"status", StatusJson(message.status)}});
}

absl::StatusOr<SavePlan> ParsePlan(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, Parse(text));
  JsonFields fields(json, "plan");
  SavePlan message;
  DT_ASSIGN_OR_RETURN(const Json* go, fields.Any("go"));
  message.go = go->is_boolean() && go->get<bool>();
  DT_ASSIGN_OR_RETURN(const int64_t outcome, fields.Integer("outcome", 0, 4));
  message.outcome = static_cast<int>(outcome);
  DT_ASSIGN_OR_RETURN(const std::vector<int64_t> first, fields.Integers("first_shard", 1));
  message.first_shard.assign(first.begin(), first.end());
  DT_ASSIGN_OR_RETURN(const int64_t count, fields.Integer("shard_count", 0, INT32_MAX));
  message.shard_count = static_cast<int>(count);
  DT_RETURN_IF_ERROR(ReadStatus(fields, message.status));
  return message;
}

std::string Encode(const RankReport& message) {
  Json files = Json::array();
  for (const WrittenFile& file : message.files) {
    files.push_back(WrittenFileJson(file));
  }
  return DumpJson({{"status", StatusJson(message.status)},
                   {"rank_state", message.rank_state},
                   {"files", std::move(files)}});
}

absl::StatusOr<RankReport> ParseReport(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, Parse(text));
  JsonFields fields(json, "report");
  RankReport message;
  DT_RETURN_IF_ERROR(ReadStatus(fields, message.status));
  DT_ASSIGN_OR_RETURN(message.rank_state, fields.Object("rank_state"));
  DT_ASSIGN_OR_RETURN(const Json* files, fields.Array("files"));
  for (const Json& file : *files) {
    DT_ASSIGN_OR_RETURN(WrittenFile written, ParseWrittenFile(file));
    message.files.push_back(std::move(written));
  }
  return message;
}

std::string Encode(const SaveVerdict& message) {
  return DumpJson({{"outcome", message.outcome},
                   {"bytes", message.bytes},
                   {"status", StatusJson(message.status)}});
}

absl::StatusOr<SaveVerdict> ParseVerdict(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, Parse(text));
  JsonFields fields(json, "verdict");
  SaveVerdict message;
  DT_ASSIGN_OR_RETURN(const int64_t outcome, fields.Integer("outcome", 0, 4));
  message.outcome = static_cast<int>(outcome);
  DT_ASSIGN_OR_RETURN(const int64_t bytes, fields.Integer("bytes", 0, INT64_MAX));
  message.bytes = static_cast<uint64_t>(bytes);
  DT_RETURN_IF_ERROR(ReadStatus(fields, message.status));
  return message;
}

}  // namespace dtrain::checkpoint
