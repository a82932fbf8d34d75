#include "launcher/export/tensorboard.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/console/record_line.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "launcher/export/protobuf_wire.h"

namespace dtrain::launcher {
namespace {

// Field numbers of tensorflow.Event, Summary, Summary.Value and SessionLog.
constexpr uint32_t kWallTime = 1;
constexpr uint32_t kStep = 2;
constexpr uint32_t kFileVersion = 3;
constexpr uint32_t kSummary = 5;
constexpr uint32_t kSessionLog = 7;
constexpr uint32_t kSummaryValue = 1;
constexpr uint32_t kValueTag = 1;
constexpr uint32_t kValueSimple = 2;
constexpr uint32_t kSessionStatus = 1;
constexpr int64_t kSessionStart = 1;

uint32_t MaskedCrc(absl::string_view data) {
  const uint32_t crc = Crc32c(data.data(), data.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string EventHead(double wall_time, int64_t step) {
  std::string event;
  wire::PutDouble(event, kWallTime, wall_time);
  if (step != 0) {
    wire::PutInteger(event, kStep, step);
  }
  return event;
}

double NumberOf(const Json& value) {
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

}  // namespace

std::string FileVersionEvent(double wall_time) {
  std::string event = EventHead(wall_time, 0);
  wire::PutBytes(event, kFileVersion, "brain.Event:2");
  return event;
}

std::string SessionStartEvent(double wall_time, int64_t step) {
  std::string log;
  wire::PutInteger(log, kSessionStatus, kSessionStart);
  std::string event = EventHead(wall_time, step);
  wire::PutBytes(event, kSessionLog, log);
  return event;
}

std::string ScalarEvent(double wall_time, int64_t step, const std::vector<Scalar>& scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    wire::PutBytes(value, kValueTag, tag);
    wire::PutFloat(value, kValueSimple, static_cast<float>(number));
    wire::PutBytes(summary, kSummaryValue, value);
  }
  std::string event = EventHead(wall_time, step);
  wire::PutBytes(event, kSummary, summary);
  return event;
}

std::string FrameRecord(absl::string_view data) {
  std::string record;
  wire::PutLittleEndian(record, static_cast<uint64_t>(data.size()));
  wire::PutLittleEndian(record, MaskedCrc(record));
  record.append(data.data(), data.size());
  wire::PutLittleEndian(record, MaskedCrc(data));
  return record;
}

std::vector<Scalar> ScalarsOf(const Json& record) {
  std::vector<Scalar> scalars;
  const auto metrics = record.find("m");
  if (metrics != record.end() && metrics->is_object()) {
    for (const auto& [name, value] : metrics->items()) {
      if (IsNumber(value)) {
        scalars.emplace_back(name, NumberOf(value));
      }
    }
  }
  return scalars;
}

// A file name's seconds must be above those of earlier files, so that readers, which go by name,
// take this one last even when both were made within a second.
int64_t NextFileSeconds(const std::string& directory, double wall_time) {
  auto seconds = static_cast<int64_t>(wall_time);
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory, ignored)) {
    const std::vector<std::string> parts = absl::StrSplit(entry.path().filename().string(), '.');
    int64_t other = 0;
    if (parts.size() > 3 && parts[2] == "tfevents" && absl::SimpleAtoi(parts[3], &other)) {
      seconds = std::max(seconds, other + 1);
    }
  }
  return seconds;
}

absl::StatusOr<TensorBoardWriter> TensorBoardWriter::Create(const std::string& directory,
                                                            double wall_time) {
  static std::atomic<int> counter{0};
  DT_RETURN_IF_ERROR(MakeDirectories(directory));
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') {
    host = {"host"};
  }
  const std::string path = absl::StrFormat("%s/events.out.tfevents.%010d.%s.%d.%d", directory,
                                           NextFileSeconds(directory, wall_time), host.data(),
                                           getpid(), counter.fetch_add(1));
  DT_ASSIGN_OR_RETURN(UniqueFd fd, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND));
  TensorBoardWriter writer(std::move(fd), path);
  DT_RETURN_IF_ERROR(writer.Write(FileVersionEvent(wall_time)));
  return writer;
}

absl::Status TensorBoardWriter::Write(absl::string_view event) {
  const std::string record = FrameRecord(event);
  return Annotate(WriteFully(fd_.get(), record.data(), record.size()), path_);
}

absl::Status TensorBoardWriter::MarkSessionStart(double wall_time, int64_t step) {
  return Write(SessionStartEvent(wall_time, step));
}

absl::Status TensorBoardWriter::WriteScalars(double wall_time, int64_t step,
                                             const std::vector<Scalar>& scalars) {
  return Write(ScalarEvent(wall_time, step, scalars));
}

absl::Status TensorBoardExport::Add(const Json& record) {
  const std::vector<Scalar> scalars = ScalarsOf(record);
  const int64_t step = RecordStep(record);
  const std::string kind = RecordKind(record);
  if (failed_ || scalars.empty() || step < 0 || kind == "config") {
    return absl::OkStatus();
  }
  const auto number = [&record](const char* key) {
    const auto found = record.find(key);
    return found != record.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const double wall_time = number("ts");
  const auto attempt = static_cast<int64_t>(number("attempt"));
  failed_ = true;  // Until this record is written.
  if (writer_.empty() || attempt != attempt_) {
    writer_.clear();
    DT_ASSIGN_OR_RETURN(TensorBoardWriter writer, TensorBoardWriter::Create(directory_, wall_time));
    writer_.push_back(std::move(writer));
    attempt_ = attempt;
    if (step > 1 || attempt > 0) {
      DT_RETURN_IF_ERROR(writer_[0].MarkSessionStart(wall_time, step));
    }
  }
  DT_RETURN_IF_ERROR(writer_[0].WriteScalars(wall_time, step, scalars));
  failed_ = false;
  return absl::OkStatus();
}

}  // namespace dtrain::launcher
