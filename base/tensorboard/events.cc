#include "base/tensorboard/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/tensorboard/protobuf_wire.h"

namespace dtrain {
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
constexpr uint32_t kValueTensor = 8;
constexpr uint32_t kValueMetadata = 9;
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

std::string TensorEvent(double wall_time, absl::string_view tag, absl::string_view metadata,
                        absl::string_view tensor) {
  std::string value;
  wire::PutBytes(value, kValueTag, tag);
  wire::PutBytes(value, kValueTensor, tensor);
  wire::PutBytes(value, kValueMetadata, metadata);
  std::string summary;
  wire::PutBytes(summary, kSummaryValue, value);
  std::string event = EventHead(wall_time, 0);
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

}  // namespace dtrain
