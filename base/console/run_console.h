// The console of a run: shows people the records that rank 0 writes. The agent has one under
// `dtrain launch`; without an agent rank 0 has its own, so both show the same.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/console/console.h"
#include "base/console/progress_line.h"
#include "base/json.h"

namespace dtrain {

struct RunConsoleOptions {
  ConsoleOptions console;
  // `width` becomes the terminal's. A "config" record replaces the other members.
  ProgressStyle style;
  int64_t interval = 1;  // Steps between two progress lines; the first and the last are shown too.
  bool every_step = false;  // Each step has a line, whatever interval a "config" record sets.
  std::string log_dir;      // Shown in the banner; "": the ranks' outputs are not in files.
  // The user's folder; paths below it are shown relative to it. "": all paths are shown whole.
  std::string folder;
};

// The members of a "config" record that set the progress line, as RunConsole takes them.
Json ProgressSettings(int64_t train_steps, int64_t interval,
                      const std::vector<std::string>& columns);

class RunConsole {
 public:
  explicit RunConsole(const RunConsoleOptions& options);

  // Takes the next record of the run and prints its line, if it has one.
  void Take(const Json& record);
  // Shows the progress line that is due since the last call, if any; after the run's last step it
  // stays for good. Call it after one or several records; a terminal shows only the last.
  void ShowProgress();
  // Leaves the latest progress line for good: the run, or this attempt of it, is over.
  void LeaveProgress();

  // Other lines go through it.
  Console& console() { return console_; }

 private:
  void ReadSettings(const Json& record);
  void TakeStep(const Json& record);
  void Remember(const Json& record);
  Json WithOwn(const Json& record) const;
  std::string Line(const Json& record) const;

  RunConsoleOptions options_;
  Console console_;
  // The last values, by name, of columns that step records do not have.
  std::map<std::string, Json> own_;
  int64_t shown_step_ = -1;  // Step of the last progress line; -1: none.
  Json due_;                 // The step whose line is to be shown next; null: none.
  Json shown_;               // The step that was shown last; null: none is shown.
  std::string latest_;       // The line of a later step that is not due.
  bool at_end_ = false;
};

}  // namespace dtrain
