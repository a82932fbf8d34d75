// A queue pair of FakeVerbs: requests, acknowledgements and refusals over one stream socket.
//
// Internal to the fake. Used by the thread of its device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "comm/transport/rdma/verbs_api.h"

namespace dtrain::comm {

// The state that the queue pairs of one device share.
struct FakeDeviceState {
  struct Region {
    uint32_t key = 0;
    std::byte* data = nullptr;
    size_t bytes = 0;
    bool Holds(uint64_t address, size_t count) const {
      const auto start = reinterpret_cast<uint64_t>(data);
      return address >= start && count <= bytes && address - start <= bytes - count;
    }
  };
  FakeVerbsFaults faults;
  GidBytes gid = {};
  UniqueFd epoll;
  std::vector<Region> regions;
  std::deque<Completion> completions;
  size_t completions_max = 0;
  int writes = 0;
  bool cut = false;
  int64_t cut_nanos = 0;

  bool LinkIsDown() const { return faults.down != nullptr && faults.down->load(); }
  const Region* Find(uint32_t key, uint64_t address, size_t bytes) const;
  void Complete(const Completion& completion);
};

class FakeQueuePair final : public QueuePair {
 public:
  static absl::StatusOr<std::unique_ptr<FakeQueuePair>> Create(
      std::shared_ptr<FakeDeviceState> device, int sends_max, int receives_max);
  ~FakeQueuePair() override;

  uint32_t number() const override { return number_; }
  Ece Offer() override { return device_->faults.extensions; }
  absl::StatusOr<Ece> Answer(const QueuePairSettings& settings, const Ece& offer) override;
  absl::Status Take(const Ece& answer) override;
  absl::Status Connect(const QueuePairSettings& settings, const QueuePairEnd& self,
                       const QueuePairEnd& peer) override;
  absl::Status Post(const RdmaWrite& write) override;
  absl::Status PostReceive(uint64_t id) override;
  void Disconnect() override;

  // Sends and receives as much as the socket allows without waiting.
  void Pump();

 private:
  enum class Kind : uint32_t { kWrite, kAcknowledge, kRefuse };
  // The header in front of the bytes on the socket.
  struct Header {
    Kind kind = Kind::kWrite;
    uint32_t has_immediate = 0;
    uint32_t immediate = 0;
    uint32_t key = 0;
    uint64_t to = 0;
    uint32_t bytes = 0;
    int32_t status = 0;  // The status of a refusal.
  };
  struct Outgoing {
    Header header;
    const std::byte* from = nullptr;
  };

  FakeQueuePair(std::shared_ptr<FakeDeviceState> device, int sends_max, int receives_max);
  void AcceptIfCalled();
  void Watch();
  void PumpOut();
  void PumpIn();
  // Reads into `data` and gives the number of bytes, 0 when none are there. A peer that is gone
  // breaks the pair.
  size_t Read(void* data, size_t bytes);
  void TakeHeader();
  void TakeWrite();
  void Answer(int status);
  // Reports the oldest of `requests` as completed; fills in whose completion it is. REQUIRES: not
  // empty.
  void CompleteOldest(std::deque<uint64_t>& requests, Completion completion);
  // Puts the pair into the error state. With `tell` the peer is told at once; otherwise it finds
  // out by itself.
  void BreakWith(int status, bool tell = true);

  const std::shared_ptr<FakeDeviceState> device_;
  const uint32_t number_;
  const size_t sends_max_;
  const size_t receives_max_;
  UniqueFd listener_;
  UniqueFd socket_;
  Ece agreed_;
  bool connected_ = false;
  bool unreachable_ = false;  // The peer is in another network.
  int64_t lost_since_nanos_ = 0;
  bool broken_ = false;
  bool watched_writable_ = false;
  std::deque<uint64_t> unacknowledged_;
  std::deque<uint64_t> receives_;
  std::deque<Outgoing> outgoing_;
  size_t out_done_ = 0;
  Header incoming_;
  size_t in_done_ = 0;  // Bytes of the incoming header and data that are here.
};

}  // namespace dtrain::comm
