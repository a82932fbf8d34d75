// Logs from time to time that this process waits, for whom and where, while a call blocks.
//
// A wait for peers may take as long as its deadline (10 minutes), and without a message people take
// it for a hang. The first line comes after some seconds, because most waits are shorter. Owns a
// thread while it exists.
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
  absl::Duration again = absl::Seconds(30);  // Time between further lines.
};

class WaitNotice {
 public:
  // `line` gives the text without the time waited; "": no line. It is called on a thread of its own
  // and may block for about a second, for which the destructor waits.
  explicit WaitNotice(std::function<std::string()> line, WaitNoticeTimes times = {});
  // The same with a fixed text.
  explicit WaitNotice(const std::string& text);
  WaitNotice(const WaitNotice&) = delete;
  WaitNotice& operator=(const WaitNotice&) = delete;
  // Ends the notices when the wait has ended.
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
