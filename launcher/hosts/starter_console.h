// What `dtrain launch --hostfile` shows: bytes for its own stdout and stderr, and the lines of its
// hosts, each with the host before it. Used by the main thread; never blocks.
#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "launcher/hosts/frames.h"

namespace dtrain::launcher {

// Bytes that the starter writes to its own stdout and stderr.
struct StarterConsole {
  ByteQueue out{1};
  ByteQueue err{2};

  // Whether more output may be read. It is bounded, because a terminal may be stopped.
  bool HasRoom() const { return out.size() + err.size() < (1U << 20); }
};

// One stream of a host. Lines are shown on stderr when they are whole.
class HostLines {
 public:
  explicit HostLines(std::string host) : host_(std::move(host)) {}

  void Show(absl::string_view text, StarterConsole& console);
  // Shows a last line that has no end, if there is one.
  void ShowRest(StarterConsole& console);

 private:
  std::string host_;
  std::string rest_;
};

}  // namespace dtrain::launcher
