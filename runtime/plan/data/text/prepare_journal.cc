#include "runtime/plan/data/text/prepare_journal.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::plan {
namespace {

struct CountField {
  const char* name;
  int64_t PrepareCounts::*count;
};
constexpr CountField kCounts[] = {{"bad", &PrepareCounts::bad},
                                  {"empty", &PrepareCounts::empty},
                                  {"equal", &PrepareCounts::equal},
                                  {"no_completion", &PrepareCounts::no_completion},
                                  {"cut", &PrepareCounts::cut},
                                  {"dropped_long", &PrepareCounts::dropped_long},
                                  {"not_text", &PrepareCounts::not_text},
                                  {"too_long", &PrepareCounts::too_long},
                                  {"unreadable", &PrepareCounts::unreadable},
                                  {"text_bytes", &PrepareCounts::text_bytes}};

absl::StatusOr<Json> Member(const Json& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end()) {
    return absl::InvalidArgumentError(absl::StrFormat("the journal has no \"%s\"", name));
  }
  return *found;
}

absl::StatusOr<int64_t> Count(const Json& json, const char* name) {
  DT_ASSIGN_OR_RETURN(const Json member, Member(json, name));
  const absl::StatusOr<int64_t> value = JsonInteger(member);
  if (!value.ok() || *value < 0) {
    return absl::InvalidArgumentError(absl::StrFormat("the journal's \"%s\" is no count", name));
  }
  return value;
}

}  // namespace

Json PrepareProgress::ToJson() const {
  Json counted = Json::object();
  for (const CountField& field : kCounts) {
    counted[field.name] = counts.*field.count;
  }
  return Json{{"fingerprint", fingerprint}, {"source", source},
              {"record", record},           {"seen", seen},
              {"at_limit", at_limit},       {"counts", std::move(counted)},
              {"train", train.ToJson()},    {"validation", validation.ToJson()}};
}

absl::StatusOr<PrepareProgress> PrepareProgress::FromJson(const Json& json) {
  if (!json.is_object()) {
    return absl::InvalidArgumentError("the journal is not a JSON object");
  }
  PrepareProgress progress;
  DT_ASSIGN_OR_RETURN(const Json fingerprint, Member(json, "fingerprint"));
  DT_ASSIGN_OR_RETURN(const Json at_limit, Member(json, "at_limit"));
  DT_ASSIGN_OR_RETURN(const Json counts, Member(json, "counts"));
  if (!fingerprint.is_string() || !at_limit.is_boolean() || !counts.is_object()) {
    return absl::InvalidArgumentError("the journal has members of other types");
  }
  progress.fingerprint = fingerprint.get<std::string>();
  progress.at_limit = at_limit.get<bool>();
  DT_ASSIGN_OR_RETURN(progress.source, Count(json, "source"));
  DT_ASSIGN_OR_RETURN(progress.record, Count(json, "record"));
  DT_ASSIGN_OR_RETURN(progress.seen, Count(json, "seen"));
  for (const CountField& field : kCounts) {
    DT_ASSIGN_OR_RETURN(progress.counts.*field.count, Count(counts, field.name));
  }
  DT_ASSIGN_OR_RETURN(const Json train, Member(json, "train"));
  DT_ASSIGN_OR_RETURN(progress.train, SpoolSize::FromJson(train));
  DT_ASSIGN_OR_RETURN(const Json validation, Member(json, "validation"));
  DT_ASSIGN_OR_RETURN(progress.validation, SpoolSize::FromJson(validation));
  return progress;
}

}  // namespace dtrain::plan
