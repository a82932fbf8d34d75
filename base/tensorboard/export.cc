#include "base/tensorboard/export.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status.h"
#include "base/tensorboard/hparams.h"

namespace dtrain {
namespace {

double ScalarOf(const Json& value) {
  if (value.is_number()) {
    return value.get<double>();
  }
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text == "Infinity" || text == "-Infinity") {
    const double infinity = std::numeric_limits<double>::infinity();
    return text[0] == '-' ? -infinity : infinity;
  }
  return std::nan("");
}

bool IsNumber(const Json& value) {
  return value.is_number() || value == "NaN" || value == "Infinity" || value == "-Infinity";
}

// Member `name` of a record as a number; `otherwise` if it is not one.
double Member(const Json& record, const char* name, double otherwise) {
  const auto found = record.find(name);
  return found != record.end() && found->is_number() ? found->get<double>() : otherwise;
}

// The object in a file of the run directory; null when there is none.
Json ReadObject(const std::string& path) {
  const auto text = ReadFile(path, size_t{64} << 20);
  const auto json = text.ok() ? ParseJson(*text, path) : text.status();
  return json.ok() && json->is_object() ? *json : Json();
}

bool IsSwitchedOff(const Json& config) {
  const auto metrics = config.find("metrics");
  return metrics != config.end() && metrics->is_object() &&
         metrics->value("tensorboard", Json(true)) == false;
}

}  // namespace

std::vector<Scalar> ScalarsOf(const Json& record) {
  std::vector<Scalar> scalars;
  const auto metrics = record.find("m");
  if (metrics != record.end() && metrics->is_object()) {
    for (const auto& [name, value] : metrics->items()) {
      if (IsNumber(value)) {
        scalars.emplace_back(name, ScalarOf(value));
      }
    }
  }
  return scalars;
}

absl::Status TensorBoardExport::OpenFor(int64_t attempt, double wall_time) {
  if (!writer_.empty() && attempt == attempt_) {
    return absl::OkStatus();
  }
  writer_.clear();
  DT_ASSIGN_OR_RETURN(
      TensorBoardWriter writer,
      TensorBoardWriter::Create(absl::StrCat(run_dir_, "/report/tensorboard"), wall_time));
  writer_.push_back(std::move(writer));
  attempt_ = attempt;
  marked_ = false;
  return absl::OkStatus();
}

absl::Status TensorBoardExport::BeginAttempt(const Json& record) {
  last_step_ = static_cast<int64_t>(Member(record, "train_steps", 0));
  const Json config = ReadObject(absl::StrCat(run_dir_, "/config.json"));
  off_ = config.is_object() && IsSwitchedOff(config);
  if (off_ || !config.is_object()) {
    return absl::OkStatus();
  }
  const double wall_time = Member(record, "ts", 0);
  DT_RETURN_IF_ERROR(OpenFor(static_cast<int64_t>(Member(record, "attempt", 0)), wall_time));
  DT_RETURN_IF_ERROR(writer_[0].Write(TextEvent(wall_time, "configuration", ConfigTable(config))));
  Json run = ReadObject(absl::StrCat(run_dir_, "/run.json"));
  if (!run.is_object()) {
    return absl::OkStatus();
  }
  const Json id = run.value("id", Json(""));
  const Json values = run.value("hyperparameters", Json::object());
  run.erase("hyperparameters");
  DT_RETURN_IF_ERROR(writer_[0].Write(TextEvent(wall_time, "run", MembersTable(run))));
  if (!values.is_object() || values.empty()) {
    return absl::OkStatus();
  }
  return writer_[0].Write(
      HyperparametersEvent(wall_time, id.is_string() ? id.get<std::string>() : "", values));
}

absl::Status TensorBoardExport::AddScalars(const Json& record, const std::vector<Scalar>& scalars) {
  const double wall_time = Member(record, "ts", 0);
  const auto step = static_cast<int64_t>(Member(record, "step", -1));
  const auto attempt = static_cast<int64_t>(Member(record, "attempt", 0));
  DT_RETURN_IF_ERROR(OpenFor(attempt, wall_time));
  // Every attempt writes a mark; TensorBoard does not take a run's first mark for a restart.
  if (!marked_) {
    const int64_t first = std::max<int64_t>(step, 1);  // Values at step 0 stay.
    DT_RETURN_IF_ERROR(writer_[0].Write(SessionStartEvent(wall_time, first)));
  }
  marked_ = true;
  DT_RETURN_IF_ERROR(writer_[0].Write(ScalarEvent(wall_time, step, scalars)));
  if (last_step_ > 0 && step >= last_step_) {
    last_step_ = 0;  // Cleared, so that the end is written only once.
    return writer_[0].Write(RunDoneEvent(wall_time));
  }
  return absl::OkStatus();
}

absl::Status TensorBoardExport::Add(const Json& record) {
  if (failed_ || !record.is_object()) {
    return absl::OkStatus();
  }
  failed_ = true;  // Reset when this record has been written.
  if (record.value("kind", Json()) == "config") {
    DT_RETURN_IF_ERROR(BeginAttempt(record));
  } else if (const std::vector<Scalar> scalars = ScalarsOf(record);
             !off_ && !scalars.empty() && Member(record, "step", -1) >= 0) {
    DT_RETURN_IF_ERROR(AddScalars(record, scalars));
  }
  failed_ = false;
  return absl::OkStatus();
}

}  // namespace dtrain
