// The console of a run: what people see of the records that rank 0 writes. The agent has one under
// `dtrain launch`; a rank has its own where there is no agent, so both look alike.
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
  ProgressStyle style;   // Its width is the terminal's. A "config" record replaces the rest.
  int64_t interval = 1;  // Steps between two progress lines; the first and the last are shown too.
  bool every_step = false;  // Each step has a line, whatever interval a "config" record asks for.
  std::string log_dir;      // Shown in the banner; "": the ranks' outputs are in no files.
  std::string folder;  // Paths in it are shown without it: where the user is. "": all are whole.
};

// The members of a "config" record that set the progress line, as RunConsole takes them.
Json ProgressSettings(int64_t train_steps, int64_t interval,
                      const std::vector<std::string>& columns);

class RunConsole {
 public:
  explicit RunConsole(const RunConsoleOptions& options);

  // Takes the next record of the run and prints the line that it has.
  void Take(const Json& record);
  // Shows the progress line that is due since the last call, if any; after the run's last step it
  // stays for good. To be called after one or several records, of which a terminal shows the last.
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
  std::map<std::string, Json> own_;  // By name, the last value of columns that no step has.
  int64_t shown_step_ = -1;          // Of the last progress line; -1: none.
  Json due_;                         // The step whose line is to be shown next; null: none.
  Json shown_;                       // The one that was shown last; null: none stands there.
  std::string latest_;               // The line of the last step since, where none is due.
  bool at_end_ = false;
};

}  // namespace dtrain
