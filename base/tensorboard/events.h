// TensorBoard event files: the messages in them and the writer that appends them.
//
// The functions are pure. One writer a file; not thread-safe; used far from any training step. Each
// record is written at once, so that TensorBoard can follow a running job. Tests read the files
// back with TensorBoard's own EventAccumulator.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace dtrain {

using Scalar = std::pair<std::string, double>;

// The serialized Event messages, without framing. `wall_time` is in seconds since 1970.
std::string FileVersionEvent(double wall_time);
std::string SessionStartEvent(double wall_time, int64_t step);
std::string ScalarEvent(double wall_time, int64_t step, const std::vector<Scalar>& scalars);
// A value at step 0 for a plugin other than scalars; `metadata` is a serialized SummaryMetadata,
// `tensor` a TensorProto.
std::string TensorEvent(double wall_time, absl::string_view tag, absl::string_view metadata,
                        absl::string_view tensor);
// A record of the file: u64 length | masked crc32c | data | masked crc32c.
std::string FrameRecord(absl::string_view data);

class TensorBoardWriter {
 public:
  // Creates `directory` and a new event file in it that sorts after earlier ones; `wall_time` names
  // it.
  static absl::StatusOr<TensorBoardWriter> Create(const std::string& directory, double wall_time);

  // Appends one of the messages above.
  absl::Status Write(absl::string_view event);
  const std::string& path() const { return path_; }

 private:
  TensorBoardWriter(UniqueFd fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;
  std::string path_;
};

}  // namespace dtrain
