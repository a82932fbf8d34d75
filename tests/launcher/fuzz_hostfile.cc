// Fuzz target: hostfiles, their filters, and the messages between a starter and its agents. A name
// that is read must be safe behind "ssh --".
#include "base/check.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/hostfile.h"
#include "launcher/hosts/node_messages.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  if (const auto hosts = dtrain::launcher::ParseHostfile(text, "hosts"); hosts.ok()) {
    for (const dtrain::launcher::Host& host : *hosts) {
      DT_CHECK(!host.name.empty() && host.name.front() != '-') << host.name;
      DT_CHECK(host.name.find_first_of(" \n'\"$;/@") == std::string::npos) << host.name;
      DT_CHECK(!host.slots.empty());
    }
  }
  const auto known = dtrain::launcher::ParseHostfile("w-0 slots=4\nfd00::1 slots=2", "hosts");
  if (const auto chosen = dtrain::launcher::ChooseHosts(*known, {.include = text}); chosen.ok()) {
    DT_CHECK(!chosen->empty());
  }
  dtrain::launcher::FrameReader reader("");
  reader.Add(text);
  auto frame = reader.Next();
  for (; frame.ok() && frame->has_value(); frame = reader.Next()) {
    DT_CHECK_LE((*frame)->payload.size(), bytes);
  }
  dtrain::launcher::JobMessage::Parse(text).IgnoreError();
  dtrain::launcher::HelloMessage::Parse(text).IgnoreError();
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  launcher::JobMessage job;
  job.arguments = {"config.json"};
  job.environment = {{"NCCL_DEBUG", "INFO"}};
  return {"a slots=2\n# b\nc:3\nfd00::1 slots=1\n", "w-0:1,2@[fd00::1]:0", job.Encode(),
          launcher::HelloMessage().Encode(),
          launcher::EncodeFrame(launcher::FrameKind::kOut, "text") +
              launcher::EncodeFrame(launcher::FrameKind::kEnd, "0")};
}
