#include "checkpoint/commit/epoch.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json.h"
#include "base/status.h"
#include "checkpoint/commit/nonce.h"
#include "checkpoint/format/json_fields.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_seal.h"

namespace dtrain::checkpoint {
namespace {

constexpr char kFolder[] = "epochs";
constexpr uint64_t kRecordBytesMax = 64 << 10;
constexpr int kEpochDigits = 8;

absl::StatusOr<EpochRecord> ParseRecord(const Json& json) {
  JsonFields fields(json, "epoch record");
  EpochRecord record;
  DT_ASSIGN_OR_RETURN(const int64_t version, fields.Integer("version", 1, 1));
  static_cast<void>(version);
  DT_ASSIGN_OR_RETURN(record.job, fields.String("job"));
  DT_ASSIGN_OR_RETURN(record.epoch, fields.Integer("epoch", 1, kEpochMax));
  DT_ASSIGN_OR_RETURN(const int64_t world, fields.Integer("world_size", 1, kWorldSizeMax));
  record.world_size = static_cast<int>(world);
  DT_ASSIGN_OR_RETURN(const Json* from, fields.Any("resumed_from"));
  if (!from->is_null()) {
    JsonFields id(*from, "resumed_from");
    StepId resumed;
    DT_ASSIGN_OR_RETURN(resumed.epoch, id.Integer("epoch", 1, record.epoch - 1));
    DT_ASSIGN_OR_RETURN(resumed.step, id.Integer("step", 0, kStepMax));
    DT_RETURN_IF_ERROR(id.Finish());
    record.resumed_from = resumed;
  }
  DT_ASSIGN_OR_RETURN(record.nonce, fields.String("nonce"));
  DT_RETURN_IF_ERROR(fields.String("self_hash").status());
  DT_RETURN_IF_ERROR(fields.Finish());
  return record;
}

}  // namespace

std::string EpochPath(int64_t epoch) { return absl::StrFormat("%s/E%08d", kFolder, epoch); }

std::string EncodeEpoch(const EpochRecord& record) {
  const std::string from = record.resumed_from
                               ? DumpJson(Json{{"epoch", record.resumed_from->epoch},
                                               {"step", record.resumed_from->step}})
                               : "null";
  return SealManifest(absl::StrCat(
      "{\n \"version\": 1,\n \"job\": ", DumpJson(record.job), ",\n \"epoch\": ", record.epoch,
      ",\n \"world_size\": ", record.world_size, ",\n \"resumed_from\": ", from,
      ",\n \"nonce\": ", DumpJson(record.nonce), ",\n"));
}

absl::StatusOr<EpochRecord> ParseEpoch(absl::string_view text, absl::string_view display_name) {
  if (const absl::Status seal = CheckManifestSeal(text); !seal.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(display_name, " ", seal.message()));
  }
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, display_name));
  absl::StatusOr<EpochRecord> record = ParseRecord(json);
  if (!record.ok()) {
    return Annotate(record.status(), display_name);
  }
  return record;
}

absl::StatusOr<std::vector<int64_t>> ListEpochs(Storage& storage) {
  const auto entries = storage.List(kFolder);
  if (absl::IsNotFound(entries.status())) {
    return std::vector<int64_t>();
  }
  DT_RETURN_IF_ERROR(entries.status());
  std::vector<int64_t> epochs;
  for (const Storage::Entry& entry : *entries) {
    int64_t epoch = 0;
    if (entry.name.size() == kEpochDigits + 1 && entry.name[0] == 'E' &&
        absl::SimpleAtoi(entry.name.substr(1), &epoch) && epoch >= 1 &&
        EpochPath(epoch) == absl::StrCat(kFolder, "/", entry.name)) {
      epochs.push_back(epoch);
    }
  }
  std::sort(epochs.begin(), epochs.end());
  return epochs;
}

absl::StatusOr<EpochRecord> ReadEpoch(Storage& storage, int64_t epoch) {
  const std::string path = EpochPath(epoch);
  DT_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(storage, path, kRecordBytesMax));
  const std::string display_name = storage.DisplayName(path);
  DT_ASSIGN_OR_RETURN(EpochRecord record, ParseEpoch(text, display_name));
  if (record.epoch != epoch) {
    return absl::InvalidArgumentError(
        absl::StrCat(display_name, " holds the record of epoch ", record.epoch));
  }
  return record;
}

absl::StatusOr<EpochRecord> BeginEpoch(Storage& storage, const std::string& job, int world_size,
                                       std::optional<StepId> resumed_from) {
  constexpr int kTriesMax = 100;  // A try fails only when another attempt began meanwhile.
  DT_RETURN_IF_ERROR(storage.MakeDirectory(kFolder));
  for (int i = 0; i < kTriesMax; ++i) {
    DT_ASSIGN_OR_RETURN(const std::vector<int64_t> epochs, ListEpochs(storage));
    EpochRecord record;
    record.job = job;
    record.epoch =
        std::max(epochs.empty() ? 0 : epochs.back(), resumed_from ? resumed_from->epoch : 0) + 1;
    record.world_size = world_size;
    record.resumed_from = resumed_from;
    record.nonce = RandomNonce();
    if (record.epoch > kEpochMax) {
      return absl::ResourceExhaustedError(absl::StrCat(storage.DisplayName(kFolder), " holds ",
                                                       kEpochMax,
                                                       " epochs; start a new run directory"));
    }
    const absl::Status status = storage.Publish(EpochPath(record.epoch), EncodeEpoch(record));
    if (!absl::IsAlreadyExists(status)) {
      DT_RETURN_IF_ERROR(status);
      return record;
    }
  }
  return absl::AbortedError(absl::StrCat("other attempts took ", kTriesMax, " epochs in ",
                                         storage.DisplayName(kFolder),
                                         " meanwhile: end them, then start again"));
}

}  // namespace dtrain::checkpoint
