// A data file that is read by ranges while a run trains: open as long as its object lives. It is a
// file of this host, or one behind a store (data_store.h).
//
// Read by pread and not through a mapping: there a file that is cut, or whose storage fails, would
// end the process with SIGBUS. Replace such files by renaming, never in place. Thread-safe after
// Open.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"
#include "runtime/plan/data/data_store.h"

namespace dtrain::plan {

class DataFile {
 public:
  // `kind` begins each message: "token file". NotFound (no such file), InvalidArgument (no regular
  // file, or an address without a store).
  static absl::StatusOr<DataFile> Open(const std::string& path, absl::string_view kind,
                                       DataStore* store = nullptr);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }  // When it was opened.

  // Fills `into` with the bytes from `offset` on. InvalidArgument with the file's length then and
  // now when it has been cut since Open; Unavailable when it cannot be read.
  absl::Status ReadAt(int64_t offset, absl::Span<char> into) const;
  // Says that these bytes will be read soon; never waits. False: a store has enough to fetch, as
  // RemoteFile::WillRead says.
  bool WillRead(int64_t offset, int64_t bytes) const;
  // The first `bytes_max` bytes, or all of them.
  absl::StatusOr<std::string> Head(int64_t bytes_max) const;
  // InvalidArgument "KIND PATH: what".
  absl::Status Bad(absl::string_view what) const;

 private:
  DataFile() = default;
  absl::Status EndedEarly() const;

  std::string kind_;
  std::string path_;
  UniqueFd fd_;                               // Open if the file is on this host.
  std::shared_ptr<const RemoteFile> remote_;  // Null for such a file.
  int64_t bytes_ = 0;
};

}  // namespace dtrain::plan
