// Says on the log that this process waits, for whom and where, while a call blocks.
//
// A wait for peers may take as long as its deadline (10 minutes), and who sees nothing for so long
// takes it for a hang. The first line comes after some seconds, because most waits are shorter.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/time/time.h"

namespace dtrain {

struct WaitNoticeTimes {
  absl::Duration first = absl::Seconds(4);
  absl::Duration again = absl::Seconds(30);  // From then on.
};

class WaitNotice {
 public:
  // `line` gives the text without its time, "" for none. It is called on a thread of its own, and
  // the destructor waits for it: it may block for a second or so.
  explicit WaitNotice(std::function<std::string()> line, WaitNoticeTimes times = {});
  // A text that is known from the start.
  explicit WaitNotice(const std::string& text);
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;
  // The wait has ended.
  ~WaitNotice();

 private:
  void Run();

  const std::function<std::string()> line_;
  const WaitNoticeTimes times_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::thread thread_;  // Last: it uses the members above.
};

}  // namespace dtrain
