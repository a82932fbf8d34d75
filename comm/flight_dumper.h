// Writes the process's flight records to one file: when asked, when a collective fails, when a
// DT_CHECK fails, and when a signal handler asks.
//
// A sleeping thread does the writing, so that a rank whose own threads are stuck still leaves a
// record; a handler or a failing collective only rings its bell (one eventfd write,
// async-signal-safe). The file is replaced whole each time. At most one dumper a process.
// Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/json.h"
#include "base/unique_fd.h"

namespace dtrain::comm {

struct FlightDumperOptions {
  std::string path;             // RUN_DIR/flight/rank-0.json; its folder is made when needed.
  Json about = Json::object();  // Joins "dtrain" in the file: rank, host, attempt.
};

class FlightDumper {
 public:
  static absl::StatusOr<std::unique_ptr<FlightDumper>> Start(FlightDumperOptions options);
  // Writes the records that were requested before. One for a collective that has failed is not
  // written again behind a Dump.
  ~FlightDumper();

  // Writes now, in the calling thread. Nothing is written while no call was ever recorded.
  absl::Status Dump(absl::string_view reason);

  // Asks the process's dumper, if there is one, to write. Async-signal-safe; never blocks.
  static void RequestForSignal(int signal);

 private:
  FlightDumper(FlightDumperOptions options, UniqueFd bell);
  void Run();
  static void RequestForFailure();
  static void DumpInCrash();
  int AwaitOwnRecord(int why) const;
  absl::Status DumpLocked(absl::string_view reason);

  const FlightDumperOptions options_;
  const UniqueFd bell_;
  std::mutex mutex_;  // One writer at a time.
  std::thread thread_;
};

}  // namespace dtrain::comm
