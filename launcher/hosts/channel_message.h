// What a frame of kind kChannel carries: one thing about one process that a host runs for the
// starter (host_relay.h). Several processes share the host's connection, each with a number, its
// channel. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace dtrain::launcher {

enum class ChannelEvent : uint8_t {
  // From the starter.
  kOpen = 1,      // Start this command (WordsOf); without words: the agent of that host itself.
  kInput = 2,     // Bytes for its stdin.
  kInputEnd = 3,  // Close its stdin.
  kKill = 4,
  // To the starter.
  kOut = 5,  // Bytes that it wrote to stdout.
  kErr = 6,  // The same for stderr.
  kEnd = 7,  // It has ended: its wait status in digits. Nothing follows on this channel.
};

struct ChannelMessage {
  uint32_t channel = 0;
  ChannelEvent event = ChannelEvent::kEnd;
  std::string bytes;

  // Gives a frame of kind kChannel. REQUIRES: at most kChannelBytesMax bytes.
  std::string ToFrame() const;
  // Reads the payload of such a frame. InvalidArgument: it is too short, or has an unknown event.
  static absl::StatusOr<ChannelMessage> Parse(absl::string_view payload);
};

// Frames stay below their limit, also with the few bytes that each host on the way adds.
inline constexpr size_t kChannelBytesMax = 2U << 20;

// The words of a command as the bytes of kOpen. REQUIRES: no word is empty in front or has a zero
// byte, which no argument of a process can have.
std::string BytesOf(const std::vector<std::string>& words);
std::vector<std::string> WordsOf(absl::string_view bytes);

}  // namespace dtrain::launcher
