// The agent's telemetry, on a thread of its own: shows rank 0's output and progress, and feeds the
// exporters from the metrics stream.
//
// Nothing here is on a step's path: ranks write to files, this thread reads them. The supervisor
// only queues commands, so a stopped terminal or a slow disk never delays failure handling.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/console/console.h"
#include "base/json.h"
#include "base/threads/bounded_queue.h"
#include "launcher/records/event_log.h"

namespace dtrain::launcher {

// A rank's log file that is shown while it grows.
struct ShownFile {
  std::string path;
  uint64_t from = 0;    // First byte to show.
  std::string prefix;   // Before each line, e.g. "[rank 1] ".
  bool is_err = false;  // Goes to stderr.
};

struct ReporterOptions {
  ConsoleOptions console;
  std::string events_path;
  EventIdentity identity;
  std::string log_dir;              // Folder of the ranks' outputs, for the banner.
  bool show_records = true;         // On the console; they are read and exported in any case.
  std::string tensorboard_run_dir;  // Gets TensorBoard files; "": none are written.
  absl::Duration poll_interval = absl::Milliseconds(100);
};

class Reporter {
 public:
  static absl::StatusOr<std::unique_ptr<Reporter>> Start(const ReporterOptions& options);
  // Gives up after a second if the thread is blocked in a write.
  ~Reporter();

  // A line of the agent itself: "dtrain: text" on stderr.
  void Say(const std::string& text);
  // A line on stderr without a prefix, as the continuation of a report.
  void SayMore(const std::string& text);
  // A line of events.jsonl.
  void Event(const std::string& event, const Json& fields);
  // Replaces the files that are shown; the former ones are first shown to their end.
  void Show(const std::vector<ShownFile>& files);
  // Follows a metrics stream from byte `from`.
  void FollowMetrics(const std::string& path, uint64_t from);
  // The last step that is durable, by a committed checkpoint or by a journal that was replayed; -1:
  // none yet. Like ReadSaves it blocks until everything that the ranks have written is read, a
  // second at most.
  int64_t ReadDurableStep();
  struct Saves {
    int64_t count = 0;
    double held_up_s = 0;  // Training stood still for them.
  };
  Saves ReadSaves();
  // Shows the rest of all files and ends the thread; false when it did not end in time.
  bool Finish(absl::Duration timeout);

 private:
  struct Core;
  using Command = std::function<void(Core&)>;
  struct Shared;
  explicit Reporter(const ReporterOptions& options, EventLog events);
  void Queue(Command command);
  void ReadRecords();

  std::shared_ptr<Shared> shared_;  // Outlives this object when the thread cannot be joined.
  std::thread thread_;
};

}  // namespace dtrain::launcher
