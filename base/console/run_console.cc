#include "base/console/run_console.h"

#include <algorithm>
#include <utility>

#include "base/console/record_line.h"

namespace dtrain {

Json ProgressSettings(int64_t train_steps, int64_t interval,
                      const std::vector<std::string>& columns) {
  return {{"train_steps", train_steps}, {"interval", interval}, {"columns", columns}};
}

RunConsole::RunConsole(const RunConsoleOptions& options)
    : options_(options), console_(options.console) {}

namespace {

// `text` with `folder` removed from the start of each path in it.
std::string WithoutFolder(const std::string& text, const std::string& folder) {
  std::string shorter = text;
  const std::string begin = folder + "/";
  for (size_t at = shorter.find(begin); at != std::string::npos; at = shorter.find(begin, at + 1)) {
    if (at == 0 || shorter[at - 1] == ' ') {
      shorter.erase(at, begin.size());
    }
  }
  return shorter;
}

// Applies WithoutFolder to all texts of a record, also inside its arrays.
Json WithoutFolderInside(Json record, const std::string& folder) {
  if (record.is_string()) {
    return WithoutFolder(record.get_ref<const std::string&>(), folder);
  }
  if (record.is_structured()) {
    for (Json& member : record) {
      member = WithoutFolderInside(std::move(member), folder);
    }
  }
  return record;
}

}  // namespace

void RunConsole::ReadSettings(const Json& record) {
  shown_step_ = -1;  // A run starts or restarts, and its first step is always shown.
  if (const int64_t total = TotalSteps(record); total > 0) {
    options_.style.total_steps = total;
  }
  const auto interval = record.find("interval");
  if (!options_.every_step && interval != record.end() && interval->is_number_integer() &&
      *interval > 0) {
    options_.interval = interval->get<int64_t>();
  }
  const auto columns = record.find("columns");
  if (columns != record.end() && columns->is_array()) {
    options_.style.columns.clear();
    for (const Json& column : *columns) {
      options_.style.columns.push_back(column.is_string() ? column.get<std::string>() : "");
    }
  }
}

// A program logs its own values one at a time. A value that a column shows appears in the line of
// its step, if that line is still to be drawn, and in later ones.
void RunConsole::Remember(const Json& record) {
  for (const std::string& column : options_.style.columns) {
    const std::string metric = MetricOfColumn(record, column);
    if (metric.empty()) {
      continue;
    }
    own_[metric] = record["m"][metric];
    if (due_.is_null() && console_.on_terminal() && RecordStep(record) == RecordStep(shown_)) {
      due_ = shown_;
    }
    if (!due_.is_null() && RecordStep(record) == RecordStep(due_)) {
      due_["m"][metric] = own_[metric];
    }
  }
}

Json RunConsole::WithOwn(const Json& record) const {
  Json all = record;
  for (const auto& [name, value] : own_) {
    if (!all["m"].contains(name)) {
      all["m"][name] = value;
    }
  }
  return all;
}

std::string RunConsole::Line(const Json& record) const {
  ProgressStyle style = options_.style;
  style.width = console_.progress_columns();
  return FormatProgress(record, style);
}

void RunConsole::TakeStep(const Json& record) {
  if (!console_.on_terminal()) {
    ShowProgress();  // Without a terminal every line that is due is printed.
  }
  const int64_t step = RecordStep(record);
  const bool last = options_.style.total_steps > 0 && step == options_.style.total_steps;
  if (shown_step_ >= 0 && !last && step / options_.interval == shown_step_ / options_.interval) {
    latest_ = Line(WithOwn(record));
    console_.LatestProgress(latest_);
    return;
  }
  shown_step_ = step;
  at_end_ = last;
  due_ = WithOwn(record);
  latest_.clear();
}

void RunConsole::Take(const Json& record) {
  if (RecordKind(record) == "config") {
    ReadSettings(record);
  }
  if (IsProgress(record)) {
    TakeStep(record);
    return;
  }
  Remember(record);
  Json shown = record;
  if (BannerOf(record).has_value() && !options_.log_dir.empty()) {
    shown["rows"].push_back({"logs", options_.log_dir});
  }
  if (!options_.folder.empty() && options_.folder != "/") {
    shown = WithoutFolderInside(std::move(shown), options_.folder);
  }
  const std::vector<std::string> lines = FormatRecord(shown, console_.columns());
  if (!lines.empty() && (at_end_ || !console_.on_terminal())) {
    ShowProgress();  // The step's line was due before these lines, so it is shown above them.
  }
  for (const std::string& line : lines) {
    console_.Out(line);
  }
}

void RunConsole::ShowProgress() {
  if (!due_.is_null()) {
    shown_ = std::exchange(due_, nullptr);
    console_.Progress(Line(shown_));
    if (!latest_.empty()) {
      console_.LatestProgress(latest_);  // The line of a later step that is not due.
    }
  }
  if (std::exchange(at_end_, false)) {
    LeaveProgress();
  }
}

void RunConsole::LeaveProgress() {
  console_.LeaveProgress();
  latest_.clear();
  shown_ = nullptr;
}

}  // namespace dtrain
