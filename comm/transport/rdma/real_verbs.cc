#include "comm/transport/rdma/real_verbs.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/dl/verbs.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/transport/rdma/rdma_ports.h"
#include "comm/transport/rdma/wc_status.h"

// The header makes it a macro for its own inline form; the table has the exported function.
#undef ibv_query_port

namespace dtrain::comm {
namespace {

static_assert(kWcSuccess == IBV_WC_SUCCESS && kWcFlushed == IBV_WC_WR_FLUSH_ERR &&
              kWcLocalProtection == IBV_WC_LOC_PROT_ERR &&
              kWcRemoteAccess == IBV_WC_REM_ACCESS_ERR &&
              kWcRetriesExceeded == IBV_WC_RETRY_EXC_ERR &&
              kWcNotReadyRetriesExceeded == IBV_WC_RNR_RETRY_EXC_ERR);

// Code for 0.64 ms, for which a sender waits if the receiver has no posted receive. Credits make
// this rare.
constexpr uint8_t kNotReadyTimer = 12;
constexpr uint8_t kNotReadyRetriesForEver = 7;
constexpr uint8_t kHopLimit = 64;

std::string MemlockLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : absl::StrCat(limit.rlim_cur, " bytes");
}

class RealRegion final : public MemoryRegion {
 public:
  RealRegion(const VerbsFunctions& verbs, ibv_mr* region) : verbs_(verbs), region_(region) {}
  ~RealRegion() override { verbs_.dereg_mr(region_); }
  uint32_t local_key() const override { return region_->lkey; }
  uint32_t remote_key() const override { return region_->rkey; }

 private:
  const VerbsFunctions& verbs_;
  ibv_mr* const region_;
};

class RealQueuePair final : public QueuePair {
 public:
  RealQueuePair(const VerbsFunctions& verbs, ibv_qp* pair) : verbs_(verbs), pair_(pair) {}
  ~RealQueuePair() override { verbs_.destroy_qp(pair_); }
  uint32_t number() const override { return pair_->qp_num; }

  Ece Offer() override {
    ibv_ece ece{};
    // EOPNOTSUPP: the driver, such as soft-RoCE's, has none.
    return verbs_.query_ece != nullptr && verbs_.query_ece(pair_, &ece) == 0
               ? Ece{ece.vendor_id, ece.options}
               : Ece{};
  }

  // The device has reduced the offer to what it supports once the queue pair is in the INIT state.
  absl::StatusOr<Ece> Answer(const QueuePairSettings& settings, const Ece& offer) override {
    if (offer.vendor == 0 || Offer().vendor == 0) {
      return Ece{};
    }
    DT_RETURN_IF_ERROR(Take(offer));
    DT_RETURN_IF_ERROR(ToInit(settings));
    return Offer();
  }

  absl::Status Take(const Ece& answer) override {
    const Ece own = answer.vendor == 0 ? Ece{} : Offer();
    if (own.vendor == 0) {
      return absl::OkStatus();
    }
    ibv_ece ece{};
    ece.vendor_id = own.vendor;
    ece.options =
        answer.vendor == own.vendor ? answer.options : 0;  // Another vendor's mean nothing.
    const int error = verbs_.set_ece(pair_, &ece);
    return error == 0 || error == EOPNOTSUPP ? absl::OkStatus() : ErrnoStatus(error, "ibv_set_ece");
  }

  absl::Status Connect(const QueuePairSettings& settings, const QueuePairEnd& self,
                       const QueuePairEnd& peer) override {
    DT_RETURN_IF_ERROR(ToInit(settings));
    DT_RETURN_IF_ERROR(ToReceive(settings, self, peer));
    return ToSend(settings, self);
  }

  absl::Status Post(const RdmaWrite& write) override {
    ibv_sge piece{};
    piece.addr = reinterpret_cast<uint64_t>(write.from);
    piece.length = write.bytes;
    piece.lkey = write.local_key;
    ibv_send_wr request{};
    request.wr_id = write.id;
    request.sg_list = &piece;
    request.num_sge = write.bytes == 0 ? 0 : 1;
    request.opcode = write.immediate ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE;
    request.send_flags = IBV_SEND_SIGNALED;
    request.imm_data = htobe32(write.immediate.value_or(0));
    request.wr.rdma.remote_addr = write.to;
    request.wr.rdma.rkey = write.remote_key;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(pair_, &request, &refused);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_post_send");
  }

  absl::Status PostReceive(uint64_t id) override {
    ibv_recv_wr request{};
    request.wr_id = id;
    ibv_recv_wr* refused = nullptr;
    const int error = ibv_post_recv(pair_, &request, &refused);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_post_recv");
  }

  void Disconnect() override {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_ERR;
    if (const absl::Status done = Modify(attributes, IBV_QP_STATE, "ERROR"); !done.ok()) {
      DT_LOG(Warning) << done.message();
    }
  }

 private:
  absl::Status Modify(ibv_qp_attr& attributes, int mask, absl::string_view what) {
    const int error = verbs_.modify_qp(pair_, &attributes, mask);
    return error == 0 ? absl::OkStatus()
                      : ErrnoStatus(error, absl::StrCat("ibv_modify_qp to ", what));
  }

  absl::Status ToInit(const QueuePairSettings& settings) {
    if (std::exchange(initialised_, true)) {
      return absl::OkStatus();
    }
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = static_cast<uint8_t>(settings.port);
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    return Modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                  "INIT");
  }

  absl::Status ToReceive(const QueuePairSettings& settings, const QueuePairEnd& self,
                         const QueuePairEnd& peer) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = MtuOf(settings.mtu_bytes);
    attributes.dest_qp_num = peer.number;
    attributes.rq_psn = peer.first_packet;
    attributes.min_rnr_timer = kNotReadyTimer;
    attributes.ah_attr.dlid = peer.lid;
    // RoCE addresses by GID. InfiniBand uses the GID between subnets and the LID inside one.
    if (settings.ethernet || !SameSubnet(self.gid, peer.gid)) {
      attributes.ah_attr.is_global = 1;
      std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
      attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(settings.gid_index);
      attributes.ah_attr.grh.hop_limit = kHopLimit;
      attributes.ah_attr.grh.traffic_class = static_cast<uint8_t>(settings.traffic_class);
    }
    attributes.ah_attr.sl = static_cast<uint8_t>(settings.service_level);
    attributes.ah_attr.port_num = static_cast<uint8_t>(settings.port);
    return Modify(attributes,
                  IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
                  "RTR");
  }

  absl::Status ToSend(const QueuePairSettings& settings, const QueuePairEnd& self) {
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = static_cast<uint8_t>(settings.timeout);
    attributes.retry_cnt = static_cast<uint8_t>(settings.retries);
    attributes.rnr_retry = kNotReadyRetriesForEver;
    attributes.sq_psn = self.first_packet;
    return Modify(attributes,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                  "RTS");
  }

  // The first half of a GID is the subnet's.
  static bool SameSubnet(const GidBytes& a, const GidBytes& b) {
    return std::equal(a.begin(), a.begin() + 8, b.begin());
  }

  static ibv_mtu MtuOf(int bytes) {
    return bytes >= 4096   ? IBV_MTU_4096
           : bytes >= 2048 ? IBV_MTU_2048
           : bytes >= 1024 ? IBV_MTU_1024
           : bytes >= 512  ? IBV_MTU_512
                           : IBV_MTU_256;
  }

  const VerbsFunctions& verbs_;
  ibv_qp* const pair_;
  bool initialised_ = false;  // In the INIT state or a later one.
};

// Makes reads of `fd` return at once. `what` names the descriptor in errors.
absl::Status SetNonBlocking(int fd, const std::string& what) {
  const int flags = fcntl(fd, F_GETFL);
  return fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 ? absl::OkStatus() : ErrnoStatus(errno, what);
}

bool IsOfPort(ibv_event_type type) {
  return type == IBV_EVENT_PORT_ERR || type == IBV_EVENT_PORT_ACTIVE ||
         type == IBV_EVENT_GID_CHANGE || type == IBV_EVENT_LID_CHANGE ||
         type == IBV_EVENT_PKEY_CHANGE;
}

// The kind and name of an event; no name for types that need no report.
DeviceEvent EventOf(ibv_event_type type) {
  using Kind = DeviceEvent::Kind;
  switch (type) {
    case IBV_EVENT_PORT_ERR:
      return {Kind::kPortDown, "IBV_EVENT_PORT_ERR"};
    case IBV_EVENT_PORT_ACTIVE:
      return {Kind::kPortUp, "IBV_EVENT_PORT_ACTIVE"};
    case IBV_EVENT_DEVICE_FATAL:
      return {Kind::kDeviceFailed, "IBV_EVENT_DEVICE_FATAL"};
    case IBV_EVENT_CQ_ERR:
      return {Kind::kDeviceFailed, "IBV_EVENT_CQ_ERR"};
    case IBV_EVENT_QP_FATAL:
      return {Kind::kOther, "IBV_EVENT_QP_FATAL"};
    case IBV_EVENT_QP_REQ_ERR:
      return {Kind::kOther, "IBV_EVENT_QP_REQ_ERR"};
    case IBV_EVENT_QP_ACCESS_ERR:
      return {Kind::kOther, "IBV_EVENT_QP_ACCESS_ERR"};
    case IBV_EVENT_GID_CHANGE:
      return {Kind::kOther, "IBV_EVENT_GID_CHANGE"};
    case IBV_EVENT_LID_CHANGE:
      return {Kind::kOther, "IBV_EVENT_LID_CHANGE"};
    case IBV_EVENT_PKEY_CHANGE:
      return {Kind::kOther, "IBV_EVENT_PKEY_CHANGE"};
    default:
      return {Kind::kOther, ""};
  }
}

class RealDevice final : public VerbsDevice {
 public:
  RealDevice(const VerbsFunctions& verbs, ibv_context* context, std::string name, int port)
      : verbs_(verbs), context_(context), name_(std::move(name)), port_(port) {}

  ~RealDevice() override {
    if (queue_ != nullptr) {
      verbs_.destroy_cq(queue_);
    }
    if (channel_ != nullptr) {
      verbs_.destroy_comp_channel(channel_);
    }
    if (domain_ != nullptr) {
      verbs_.dealloc_pd(domain_);
    }
    verbs_.close_device(context_);
  }

  absl::Status Prepare(int completions_max) {
    domain_ = verbs_.alloc_pd(context_);
    if (domain_ == nullptr) {
      return ErrnoStatus(errno, "ibv_alloc_pd on " + name_);
    }
    channel_ = verbs_.create_comp_channel(context_);
    if (channel_ == nullptr) {
      return ErrnoStatus(errno, "ibv_create_comp_channel on " + name_);
    }
    DT_RETURN_IF_ERROR(SetNonBlocking(channel_->fd, "completion channel of " + name_));
    DT_RETURN_IF_ERROR(SetNonBlocking(context_->async_fd, "event channel of " + name_));
    queue_ = verbs_.create_cq(context_, completions_max, nullptr, channel_, 0);
    if (queue_ == nullptr) {
      return Annotate(ErrnoStatus(errno, "ibv_create_cq"),
                      absl::StrFormat("%d completions on %s (use fewer comm.rdma queue pairs or "
                                      "slots)",
                                      completions_max, name_));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<MemoryRegion>> Register(void* data, size_t bytes) override {
    constexpr int kAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    // Relaxed ordering lets the PCI bus reorder the writes of data, without which some hosts and
    // most virtual machines reach a part of the link's rate. A completion's own write is never
    // reordered before them, and nothing here looks at memory without a completion. The library
    // leaves the flag out where the kernel does not know it.
    ibv_mr* const region =
        verbs_.reg_mr_iova2 == nullptr
            ? verbs_.reg_mr(domain_, data, bytes, kAccess)
            : verbs_.reg_mr_iova2(domain_, data, bytes, reinterpret_cast<uint64_t>(data),
                                  static_cast<unsigned>(kAccess) | IBV_ACCESS_RELAXED_ORDERING);
    if (region != nullptr) {
      return std::make_unique<RealRegion>(verbs_, region);
    }
    const int error = errno;
    if (error == ENOMEM || error == EAGAIN) {
      return absl::ResourceExhaustedError(CannotPin(bytes, MemlockLimit()));
    }
    return ErrnoStatus(error, absl::StrFormat("ibv_reg_mr of %d bytes on %s", bytes, name_));
  }

  absl::StatusOr<std::unique_ptr<QueuePair>> CreateQueuePair(int sends_max,
                                                             int receives_max) override {
    ibv_qp_init_attr attributes{};
    attributes.send_cq = queue_;
    attributes.recv_cq = queue_;
    attributes.qp_type = IBV_QPT_RC;
    attributes.cap.max_send_wr = static_cast<uint32_t>(sends_max);
    attributes.cap.max_recv_wr = static_cast<uint32_t>(receives_max);
    attributes.cap.max_send_sge = 1;
    attributes.cap.max_recv_sge = 1;
    ibv_qp* const pair = verbs_.create_qp(domain_, &attributes);
    if (pair == nullptr) {
      return ErrnoStatus(errno, absl::StrFormat("ibv_create_qp on %s (%d sends, %d receives)",
                                                name_, sends_max, receives_max));
    }
    return TakeQueuePair(verbs_, pair);
  }

  absl::StatusOr<size_t> Poll(absl::Span<Completion> completions) override {
    ibv_wc items[kPollMax];
    const int wanted = static_cast<int>(std::min<size_t>(completions.size(), kPollMax));
    const int got = ibv_poll_cq(queue_, wanted, items);
    if (got < 0) {
      return absl::UnavailableError(absl::StrFormat("ibv_poll_cq on %s gave %d", name_, got));
    }
    for (int i = 0; i < got; ++i) {
      const ibv_wc& from = items[i];
      Completion& to = completions[static_cast<size_t>(i)];
      to.id = from.wr_id;
      to.status = static_cast<int>(from.status);
      to.vendor_error = from.vendor_err;
      // The opcode is not valid when the status is an error; the id tells the kind then.
      to.receive = from.status == IBV_WC_SUCCESS && (from.opcode & IBV_WC_RECV) != 0;
      to.bytes = from.byte_len;
      to.immediate = be32toh(from.imm_data);
    }
    return static_cast<size_t>(got);
  }

  absl::Status Arm() override {
    const int error = ibv_req_notify_cq(queue_, 0);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_req_notify_cq on " + name_);
  }

  int fd() const override { return channel_->fd; }

  void TakeEvents() override {
    ibv_cq* queue = nullptr;
    void* user = nullptr;
    unsigned events = 0;
    while (verbs_.get_cq_event(channel_, &queue, &user) == 0) {
      ++events;
    }
    if (events > 0) {
      verbs_.ack_cq_events(queue_, events);
    }
  }

  int event_fd() const override { return context_->async_fd; }

  std::vector<DeviceEvent> TakeDeviceEvents() override {
    std::vector<DeviceEvent> events;
    ibv_async_event event{};
    while (verbs_.get_async_event(context_, &event) == 0) {
      DeviceEvent taken = EventOf(event.event_type);
      const bool elsewhere = IsOfPort(event.event_type) && event.element.port_num != port_;
      // Without it the queue pair or completion queue could never be destroyed.
      verbs_.ack_async_event(&event);
      if (!taken.name.empty() && !elsewhere) {
        events.push_back(std::move(taken));
      }
    }
    return events;
  }

  std::string PortState() override {
    ibv_port_attr attributes{};
    return verbs_.query_port(context_, static_cast<uint8_t>(port_), &attributes) == 0
               ? PortStateName(attributes.state)
               : "gone";
  }

 private:
  static constexpr size_t kPollMax = 32;
  const VerbsFunctions& verbs_;
  ibv_context* const context_;
  const std::string name_;
  const int port_;
  ibv_pd* domain_ = nullptr;
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* queue_ = nullptr;
};

}  // namespace

std::unique_ptr<QueuePair> TakeQueuePair(const VerbsFunctions& verbs, ibv_qp* pair) {
  return std::make_unique<RealQueuePair>(verbs, pair);
}

absl::StatusOr<std::unique_ptr<VerbsDevice>> TakeDevice(const VerbsFunctions& verbs,
                                                        ibv_context* context,
                                                        const std::string& name, int port,
                                                        int completions_max) {
  auto device = std::make_unique<RealDevice>(verbs, context, name, port);
  DT_RETURN_IF_ERROR(device->Prepare(completions_max));
  return device;
}

namespace {

class RealVerbsApi final : public VerbsApi {
 public:
  absl::StatusOr<std::vector<RdmaPort>> Ports() override {
    DT_ASSIGN_OR_RETURN(const Verbs* const verbs, Verbs::Open());
    return ReadPorts(*verbs);
  }

  absl::StatusOr<std::unique_ptr<VerbsDevice>> Open(const std::string& device, int port,
                                                    int completions_max) override {
    DT_ASSIGN_OR_RETURN(const Verbs* const verbs, Verbs::Open());
    DT_ASSIGN_OR_RETURN(ibv_context* const context, OpenByName(verbs->functions(), device));
    return TakeDevice(verbs->functions(), context, device, port, completions_max);
  }

 private:
  static absl::StatusOr<ibv_context*> OpenByName(const VerbsFunctions& verbs,
                                                 const std::string& device) {
    int count = 0;
    ibv_device** const list = verbs.get_device_list(&count);
    if (list == nullptr) {
      return ErrnoStatus(errno, "ibv_get_device_list");
    }
    absl::StatusOr<ibv_context*> context =
        absl::NotFoundError(absl::StrFormat("RDMA device \"%s\" is gone", device));
    for (int i = 0; i < count; ++i) {
      if (device == verbs.get_device_name(list[i])) {
        ibv_context* const opened = verbs.open_device(list[i]);
        context = opened != nullptr ? absl::StatusOr<ibv_context*>(opened)
                                    : ErrnoStatus(errno, "opening RDMA device " + device);
      }
    }
    verbs.free_device_list(list);
    return context;
  }
};

}  // namespace

VerbsApi& RealVerbs() {
  static RealVerbsApi verbs;
  return verbs;
}

}  // namespace dtrain::comm
