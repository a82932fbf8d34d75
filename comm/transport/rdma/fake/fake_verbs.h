// The byte-moving, fault-injecting twin of VerbsApi, for tests.
//
// A queue pair is a Unix socket between two threads or processes of one host: writes travel over it
// into the peer's registered memory when the peer polls, and are acknowledged. It is as strict as a
// device: memory that is not registered, a receive that is not posted and a queue that is full are
// errors. A peer whose process ends acknowledges nothing any more.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

struct FakeVerbsFaults {
  bool no_library = false;
  std::vector<RdmaPort> ports = {};  // Instead of one good one, when not empty.
  bool cannot_pin = false;           // Registering fails as with too low a memlock limit.
  int regions_max = -1;         // Registering fails so after this many registrations of the device.
  bool cannot_connect = false;  // A queue pair refuses to connect.
  int fail_write = -1;          // This write of the process (0 is the first) completes with
  int fail_status = 0;          // this status, and its queue pair is in error.
  int cut_at_write = -1;        // From this write on nothing leaves and nothing comes in; what
                                // is under way fails with retries exceeded soon after.
  std::shared_ptr<std::atomic<bool>> cut_now =
      {};  // The same from the first write while it is true.
  // No fault: when not null, the bytes of the largest write so far.
  std::shared_ptr<std::atomic<uint32_t>> largest_write = {};
  // No fault: when not null, how many times memory was registered.
  std::shared_ptr<std::atomic<int>> registered = {};
  // The link is down while it is true: nothing leaves or comes in, and the device goes on trying.
  std::shared_ptr<std::atomic<bool>> down = {};
  // The device is taken out while it is true: it completes nothing, and both of its descriptors
  // report an error without end, as the kernel's do.
  std::shared_ptr<std::atomic<bool>> taken_out = {};
  // Events that the device reports once; `events_read` is called after they were read.
  std::shared_ptr<std::vector<DeviceEvent>> events = {};
  std::function<void()> events_read = {};
  // No fault: the extensions that its queue pairs have.
  Ece extensions = {};
  // No fault: when not null, the extensions that each connected queue pair has agreed on with its
  // peer.
  std::shared_ptr<std::vector<Ece>> agreed_extensions = {};
  // No fault: when not null, the names by which devices were opened.
  std::shared_ptr<std::vector<std::string>> opened = {};
  // Ports reach only ports of the same network, like the rails of a cluster. GIDs of one network
  // differ only in the last three bytes, which identify the process.
  bool rails = false;
  // No fault: when not null, the settings that each queue pair was connected with.
  std::shared_ptr<std::vector<QueuePairSettings>> connected = {};
};

class FakeVerbs final : public VerbsApi {
 public:
  explicit FakeVerbs(FakeVerbsFaults faults = {}) : faults_(std::move(faults)) {}
  absl::StatusOr<std::vector<RdmaPort>> Ports() override;
  absl::StatusOr<std::unique_ptr<VerbsDevice>> Open(const std::string& device, int port,
                                                    int completions_max) override;

 private:
  const FakeVerbsFaults faults_;
};

// "fake0", port 1, active, with one RoCE v2 GID that identifies this process.
RdmaPort FakePort();

}  // namespace dtrain::comm
