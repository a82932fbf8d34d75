// Fuzz target: messages that a rank's process may write into its agent's socket.
#include "base/agent_channel.h"
#include "base/check.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const absl::string_view line(reinterpret_cast<const char*>(data), bytes);
  if (const auto message = dtrain::AgentMessage::Parse(line); message.ok()) {
    const auto again = dtrain::AgentMessage::Parse(message->Encode());
    DT_CHECK(again.ok()) << again.status().ToString();
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  dtrain::AgentMessage message;
  message.kind = dtrain::AgentMessage::Kind::kError;
  message.text = "why";
  dtrain::AgentMessage beat;
  beat.marks = 3;
  beat.groups = {{.group = "world", .entered = 2, .left = 1, .call = "barrier"}};
  beat.times = {.step = 1, .whole_s = 0.5};
  beat.limits = {.fixed_s = -1, .patience_s = 10, .slow_s = 600};
  return {message.Encode(), beat.Encode(), dtrain::AgentMessage{}.Encode()};
}
