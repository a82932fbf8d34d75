// Messages of the kernel that may explain why a rank ended: out of memory, GPU errors (Xid, SXid),
// crashes in a library, disks, links, hardware. Read from the kernel's ring, never from what a rank
// prints. The reading of text is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace dtrain::launcher {

struct KernelMessage {
  const char* kind = "";  // "out_of_memory", "xid", "sxid", "gpu_lost", "segfault", "disk", ...
  std::string text;       // The line without its time and level.
  int pid = 0;            // The process that it is about; 0: none is named.
  std::string device;     // "PCI:0000:38:00" of a GPU or switch; "".
  int code = 0;           // The number of an Xid or SXid.
};

// The message in a line as dmesg, /dev/kmsg or pstore has it; nothing if it explains no failure.
std::optional<KernelMessage> KernelMessageIn(absl::string_view line);

// Those of a text, one for each kind, device, process and code, the last `messages_max` of them.
std::vector<KernelMessage> KernelMessagesIn(absl::string_view text, size_t messages_max);

// The least time stamp, in microseconds, of messages of the last `age`, by CLOCK_MONOTONIC_RAW. The
// kernel stamps messages with a clock that NTP does not steer, as that one is; CLOCK_MONOTONIC is
// seconds away from both after weeks. What rounding may have added up to, 2 in a million and at
// least a second, is allowed for. Pure.
int64_t RingMicrosBefore(absl::Duration uptime, absl::Duration age);

// The kernel's own lines of the last `age`, as dmesg shows them. PermissionDenied: this user may
// not read them. Does not block.
absl::StatusOr<std::string> ReadKernelRing(absl::Duration age);

}  // namespace dtrain::launcher
