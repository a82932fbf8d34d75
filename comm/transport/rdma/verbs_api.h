// The VerbsApi seam: what dtrain asks of RDMA verbs, in its own terms.
//
// Real twin: RealVerbs (libibverbs, opened at run time). Fault-injecting twin: fake/fake_verbs.h. A
// device and the objects made from it are used by one thread at a time; regions and queue pairs go
// before their device.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace dtrain::comm {

using GidBytes = std::array<uint8_t, 16>;

struct RdmaGid {
  enum class Type : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };
  int index = 0;
  GidBytes bytes = {};
  Type type = Type::kRoceV2;
  std::string netdev;  // "eth0"; "" when unknown.
};

struct RdmaPort {
  std::string device;
  int number = 1;
  bool ethernet = true;  // False: InfiniBand.
  bool active = true;
  std::string state;  // "ACTIVE", "DOWN", ...
  int mtu_bytes = 1024;
  uint16_t lid = 0;           // InfiniBand: the port's address inside its subnet.
  std::vector<RdmaGid> gids;  // All GIDs that are not empty.
};

// Enhanced Connection Establishment: a device's extensions to the standard, such as a faster way to
// repeat lost packets. Both ends must use the same; only the vendor knows what the options mean.
struct Ece {
  uint32_t vendor = 0;  // 0: none.
  uint32_t options = 0;
  bool operator==(const Ece& other) const {
    return vendor == other.vendor && options == other.options;
  }
};

// The facts that one end of a connection must know of the other.
struct QueuePairEnd {
  GidBytes gid = {};
  uint32_t number = 0;
  uint32_t first_packet = 0;  // Packet sequence number, 24 bits.
  uint16_t lid = 0;           // InfiniBand.
};

// How a queue pair sends; RdmaOptions explains the numbers.
struct QueuePairSettings {
  int port = 1;
  bool ethernet = true;  // False: InfiniBand.
  int gid_index = 0;
  int mtu_bytes = 1024;
  int traffic_class = 0;
  int service_level = 0;
  int timeout = 18;
  int retries = 6;
};

struct RdmaWrite {
  uint64_t id = 0;  // Given back by the completion.
  const void* from = nullptr;
  uint32_t bytes = 0;
  uint32_t local_key = 0;
  uint64_t to = 0;  // The peer's address.
  uint32_t remote_key = 0;
  std::optional<uint32_t> immediate;  // Takes one posted receive of the peer, and completes it.
};

struct Completion {
  uint64_t id = 0;
  bool receive = false;
  int status = 0;  // wc_status.h.
  uint32_t vendor_error = 0;
  uint32_t bytes = 0;  // Receives only: bytes written.
  uint32_t immediate = 0;
};

// Something that happened to a device or its port, which no completion tells.
struct DeviceEvent {
  enum class Kind : uint8_t { kPortDown, kPortUp, kDeviceFailed, kOther };
  Kind kind = Kind::kOther;
  std::string name;  // "IBV_EVENT_PORT_ERR".
};

class MemoryRegion {
 public:
  virtual ~MemoryRegion() = default;
  virtual uint32_t local_key() const = 0;
  virtual uint32_t remote_key() const = 0;
};

// Reliably connected: posted requests arrive in order and once, or complete with an error.
class QueuePair {
 public:
  virtual ~QueuePair() = default;
  virtual uint32_t number() const = 0;
  // The extensions of a connection, before Connect: one end offers its extensions, the other
  // answers with those that it has too, and the first takes that answer.
  virtual Ece Offer() = 0;
  virtual absl::StatusOr<Ece> Answer(const QueuePairSettings& settings, const Ece& offer) = 0;
  virtual absl::Status Take(const Ece& answer) = 0;
  // Both ends may connect in any order; an end may write when both have.
  virtual absl::Status Connect(const QueuePairSettings& settings, const QueuePairEnd& self,
                               const QueuePairEnd& peer) = 0;
  // REQUIRES: memory in registered regions, room in the queue. An error means that the device
  // refused the request itself.
  virtual absl::Status Post(const RdmaWrite& write) = 0;
  virtual absl::Status PostReceive(uint64_t id) = 0;
  // From now on the peer's writes are refused, and requests posted here are flushed.
  virtual void Disconnect() = 0;
};

class VerbsDevice {
 public:
  virtual ~VerbsDevice() = default;
  // Lets peers write to the memory, in any order within a message and between messages: written
  // bytes can be read when a later completion has been polled, and not before. ResourceExhausted:
  // the memory cannot be pinned.
  virtual absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(int sends_max,
                                                                     int receives_max) = 0;
  // Takes the next completions of all queue pairs and gives their number. Never blocks.
  virtual absl::StatusOr<size_t> Poll(absl::Span<Completion> completions) = 0;
  // After Arm, a completion that comes makes `fd` readable. Poll once more before sleeping:
  // completions from before Arm make nothing readable.
  virtual absl::Status Arm() = 0;
  virtual int fd() const = 0;
  // Call when `fd` was readable.
  virtual void TakeEvents() = 0;
  // Readable when the device has events. Both descriptors report POLLERR for ever once the device
  // is gone.
  virtual int event_fd() const = 0;
  // The events since the last call. Never blocks.
  virtual std::vector<DeviceEvent> TakeDeviceEvents() = 0;
  // The state of the opened port now: "ACTIVE", "DOWN", ...
  virtual std::string PortState() = 0;
};

class VerbsApi {
 public:
  virtual ~VerbsApi() = default;
  // The ports of all devices. NotFound: no library. Empty: no device.
  virtual absl::StatusOr<std::vector<RdmaPort>> Ports() = 0;
  virtual absl::StatusOr<std::unique_ptr<VerbsDevice>> Open(const std::string& device, int port,
                                                            int completions_max) = 0;
};

}  // namespace dtrain::comm
