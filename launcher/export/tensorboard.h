// Writes TensorBoard event files (scalars, and START session marks for resumed runs).
//
// Format facts: docs and tests read it back with TensorBoard's own EventAccumulator. One writer a
// file; not thread-safe; used on the reporter's thread, far from any training step. Data goes to
// the kernel with each record, so TensorBoard follows a running job.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/unique_fd.h"

namespace dtrain::launcher {

using Scalar = std::pair<std::string, double>;

// The serialized Event messages, without framing. Pure.
std::string FileVersionEvent(double wall_time);
std::string SessionStartEvent(double wall_time, int64_t step);
std::string ScalarEvent(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
// u64 length | masked crc32c | data | masked crc32c. Pure.
std::string FrameRecord(absl::string_view data);

// The numbers of a metrics record's "m" (strings "NaN", "Infinity" and "-Infinity" count). Pure.
std::vector<Scalar> ScalarsOf(const Json& record);

class TensorBoardWriter {
 public:
  // Creates `directory` and a new event file in it that sorts after earlier ones; `wall_time` in
  // seconds since 1970 names it.
  static absl::StatusOr<TensorBoardWriter> Create(const std::string& directory, double wall_time);

  // Drops, in the reader, what earlier files hold at `step` and after: a resumed run.
  absl::Status MarkSessionStart(double wall_time, int64_t step);
  absl::Status WriteScalars(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}
  absl::Status Write(absl::string_view event);

  UniqueFd fd_;
  std::string path_;
};

// Feeds metrics records into event files: one file an attempt of a run, with a session mark at its
// first step when it is not the first attempt or does not begin at the start.
class TensorBoardExport {
 public:
  explicit TensorBoardExport(std::string directory) : directory_(std::move(directory)) {}
  // Records without numbers are passed over. After an error the export stays off.
  absl::Status Add(const Json& record);

 private:
  const std::string directory_;
  std::vector<TensorBoardWriter> writer_;  // Empty or one.
  int64_t attempt_ = -1;
  bool failed_ = false;
};

}  // namespace dtrain::launcher
