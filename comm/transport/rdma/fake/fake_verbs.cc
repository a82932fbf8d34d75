#include "comm/transport/rdma/fake/fake_verbs.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/status.h"
#include "comm/transport/rdma/fake/fake_queue_pair.h"
#include "comm/transport/rdma/rdma_ports.h"

namespace dtrain::comm {
namespace {

class FakeRegion final : public MemoryRegion {
 public:
  FakeRegion(std::shared_ptr<FakeDeviceState> device, uint32_t key)
      : device_(std::move(device)), key_(key) {}
  ~FakeRegion() override {
    auto& regions = device_->regions;
    regions.erase(std::remove_if(regions.begin(), regions.end(),
                                 [this](const auto& region) { return region.key == key_; }),
                  regions.end());
  }
  uint32_t local_key() const override { return key_; }
  uint32_t remote_key() const override { return key_; }

 private:
  const std::shared_ptr<FakeDeviceState> device_;
  const uint32_t key_;
};

class FakeDevice final : public VerbsDevice {
 public:
  FakeDevice(std::shared_ptr<FakeDeviceState> state, UniqueFd readable, UniqueFd broken)
      : state_(std::move(state)), readable_(std::move(readable)), broken_(std::move(broken)) {}

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) override {
    const bool too_many = state_->faults.regions_max >= 0 && made_++ >= state_->faults.regions_max;
    if (state_->faults.cannot_pin || too_many) {
      return absl::ResourceExhaustedError(CannotPin(bytes, "65536 bytes"));
    }
    if (state_->faults.registered != nullptr) {
      ++*state_->faults.registered;
    }
    const uint32_t key = next_key_++;
    state_->regions.push_back({key, static_cast<std::byte*>(data), bytes});
    return std::make_unique<FakeRegion>(state_, key);
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(int sends_max,
                                                             int receives_max) override {
    DT_ASSIGN_OR_RETURN(auto pair, FakeQueuePair::Create(state_, sends_max, receives_max));
    pairs_.push_back(pair.get());
    return pair;
  }

  absl::StatusOr<size_t> Poll(absl::Span<Completion> completions) override {
    if (TakenOut() || (state_->LinkIsDown() && state_->completions.empty())) {
      return size_t{0};
    }
    if (state_->completions.empty()) {
      for (FakeQueuePair* const pair : pairs_) {
        pair->Pump();
      }
    }
    const size_t count = std::min(completions.size(), state_->completions.size());
    std::copy_n(state_->completions.begin(), count, completions.begin());
    state_->completions.erase(state_->completions.begin(),
                              state_->completions.begin() + static_cast<ptrdiff_t>(count));
    return count;
  }

  absl::Status Arm() override { return absl::OkStatus(); }  // The sockets stay readable.
  int fd() const override {
    return TakenOut() ? broken_.get() : state_->LinkIsDown() ? kNever : state_->epoll.get();
  }
  void TakeEvents() override {}
  std::string PortState() override { return state_->cut ? "DOWN" : "ACTIVE"; }

  int event_fd() const override {
    const auto& events = state_->faults.events;
    return TakenOut()                              ? broken_.get()
           : events != nullptr && !events->empty() ? readable_.get()
                                                   : kNever;
  }
  std::vector<DeviceEvent> TakeDeviceEvents() override {
    std::vector<DeviceEvent> taken;
    if (auto& events = state_->faults.events; events != nullptr && !events->empty()) {
      taken = std::exchange(*events, {});
      if (state_->faults.events_read) {
        state_->faults.events_read();
      }
    }
    return taken;
  }

 private:
  static constexpr int kNever = -1;  // poll(2) leaves it out.
  bool TakenOut() const {
    return state_->faults.taken_out != nullptr && state_->faults.taken_out->load();
  }

  const std::shared_ptr<FakeDeviceState> state_;
  const UniqueFd readable_;
  const UniqueFd broken_;              // Reports an error without end.
  std::vector<FakeQueuePair*> pairs_;  // They must outlive the last Poll.
  uint32_t next_key_ = 0x1000;
  int made_ = 0;
};

}  // namespace

RdmaPort FakePort() {
  const auto pid = static_cast<uint32_t>(getpid());
  RdmaPort port;
  port.device = "fake0";
  port.state = "ACTIVE";
  RdmaGid gid;
  gid.index = 1;
  gid.netdev = "eth0";
  // 10.x.y.z with the process id in it, by which queue pairs find each other.
  gid.bytes = {0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0,
               0xff,
               0xff,
               10,
               static_cast<uint8_t>(pid >> 16),
               static_cast<uint8_t>(pid >> 8),
               static_cast<uint8_t>(pid)};
  port.gids.push_back(gid);
  return port;
}

absl::StatusOr<std::vector<RdmaPort>> FakeVerbs::Ports() {
  if (faults_.no_library) {
    return absl::NotFoundError("no RDMA library (install libibverbs1): not loaded");
  }
  return faults_.ports.empty() ? std::vector<RdmaPort>{FakePort()} : faults_.ports;
}

absl::StatusOr<std::unique_ptr<VerbsDevice>> FakeVerbs::Open(const std::string& device,
                                                             int /*port*/, int completions_max) {
  if (faults_.opened != nullptr) {
    faults_.opened->push_back(device);
  }
  auto state = std::make_shared<FakeDeviceState>();
  state->faults = faults_;
  state->gid = FakePort().gids[0].bytes;
  state->completions_max = static_cast<size_t>(completions_max);
  state->epoll = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  if (!state->epoll.valid()) {
    return ErrnoStatus(errno, "epoll_create1");
  }
  UniqueFd readable(eventfd(1, EFD_CLOEXEC));
  int ends[2];
  if (!readable.valid() || pipe2(ends, O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "descriptors of a fake device");
  }
  close(ends[0]);  // A pipe without a reader.
  return std::make_unique<FakeDevice>(std::move(state), std::move(readable), UniqueFd(ends[1]));
}

}  // namespace dtrain::comm
