// The seam behind which data files lie that no folder of this host holds: objects of a store and
// files of a web server.
//
// The plan knows no network; runtime/data/remote/ has the real form, and what reads data files
// takes a store where it may read such ones. All is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/plan/data/remote_address.h"

namespace dtrain::plan {

// A file behind the seam, of one version.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual int64_t bytes() const = 0;
  // Fills `into`; blocks until the bytes are there. Unavailable: they could not be had in time;
  // FailedPrecondition: the file is another by now. Errors name the address. REQUIRES: the bytes
  // are within bytes().
  virtual absl::Status ReadAt(int64_t offset, absl::Span<char> into) const = 0;
  // Says that these bytes will be read soon; never waits. False: enough is on its way already, and
  // it has to be said again after some reads.
  virtual bool WillRead(int64_t offset, int64_t bytes) const = 0;
};

class DataStore {
 public:
  virtual ~DataStore() = default;
  // The addresses that `pattern` names, sorted by bytes: itself, or what it matches.
  virtual absl::StatusOr<std::vector<std::string>> Expand(const std::string& pattern) = 0;
  // Looks at all of them, several at a time, so that Open need not wait for each.
  virtual void OpenAhead(absl::Span<const std::string> addresses) = 0;
  // NotFound: there is no such file. REQUIRES: the store outlives the file.
  virtual absl::StatusOr<std::shared_ptr<const RemoteFile>> Open(const std::string& address) = 0;
  // All files are open. Until now single bytes were looked at; from here on reads go by blocks,
  // which are kept.
  virtual void StartReading() = 0;
  // Takes back all that WillRead announced.
  virtual void ForgetAhead() = 0;
  // Reads that wait end soon, with Cancelled, and so do all later ones.
  virtual void Cancel() = 0;
};

}  // namespace dtrain::plan
