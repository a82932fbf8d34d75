// The attributes of a queue pair when it is connected: every setting of ours must be in the field
// of libibverbs that the hardware reads, and in the mask without which the field is ignored.
#include "comm/transport/rdma/real_verbs.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/dl/verbs.h"
#include "base/unique_fd.h"
#include "comm/transport/rdma/gid.h"
#include "comm/transport/rdma/rdma_ports.h"

#undef ibv_query_port

namespace dtrain::comm::real_verbs_test {
namespace {

struct Change {
  ibv_qp_attr attributes;
  int mask = 0;
};
std::vector<Change>& Changes() {
  static auto* const changes = new std::vector<Change>;
  return *changes;
}
int RecordChange(ibv_qp* /*pair*/, ibv_qp_attr* attributes, int mask) {
  Changes().push_back({*attributes, mask});
  return 0;
}
int RefuseChange(ibv_qp* /*pair*/, ibv_qp_attr* attributes, int /*mask*/) {
  return attributes->qp_state == IBV_QPS_RTR ? EINVAL : 0;
}
int Destroy(ibv_qp* pair) {
  pair->qp_num = 0;
  return 0;
}

constexpr QueuePairSettings kSettings = {.port = 2,
                                         .gid_index = 9,
                                         .mtu_bytes = 2048,
                                         .traffic_class = 106,
                                         .service_level = 3,
                                         .timeout = 17,
                                         .retries = 5};

QueuePairEnd End(uint8_t byte, uint32_t number, uint32_t first_packet) {
  QueuePairEnd end{.number = number, .first_packet = first_packet};
  end.gid.fill(byte);
  return end;
}

class RealVerbsTest : public ::testing::Test {
 protected:
  RealVerbsTest() {
    Changes().clear();
    functions_.modify_qp = RecordChange;
    functions_.destroy_qp = Destroy;
    pair_.qp_num = 77;
  }
  // The changes of a connection from (10, 111) to (20, 222).
  std::vector<Change> Connected(const QueuePairSettings& settings) {
    Changes().clear();
    const auto made = TakeQueuePair(functions_, &pair_);
    EXPECT_EQ(made->number(), 77U);
    const absl::Status status = made->Connect(settings, End(1, 10, 111), End(2, 20, 222));
    EXPECT_TRUE(status.ok()) << status;
    return std::exchange(Changes(), {});
  }
  VerbsFunctions functions_;
  ibv_qp pair_{};
};

TEST_F(RealVerbsTest, EverySettingIsWhereTheHardwareReadsIt) {
  const std::vector<Change> changes = Connected(kSettings);
  ASSERT_EQ(changes.size(), 3U);
  const ibv_qp_attr& init = changes[0].attributes;
  EXPECT_EQ(init.qp_state, IBV_QPS_INIT);
  EXPECT_EQ(init.port_num, 2);
  EXPECT_EQ(init.qp_access_flags, static_cast<unsigned>(IBV_ACCESS_REMOTE_WRITE));
  EXPECT_EQ(changes[0].mask, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  const ibv_qp_attr& receive = changes[1].attributes;
  EXPECT_EQ(receive.qp_state, IBV_QPS_RTR);
  EXPECT_EQ(receive.path_mtu, IBV_MTU_2048);
  EXPECT_EQ(receive.dest_qp_num, 20U);
  EXPECT_EQ(receive.rq_psn, 222U);
  EXPECT_EQ(receive.ah_attr.is_global, 1);
  EXPECT_EQ(std::memcmp(receive.ah_attr.grh.dgid.raw, End(2, 0, 0).gid.data(), 16), 0);
  EXPECT_EQ(receive.ah_attr.grh.sgid_index, 9);
  EXPECT_EQ(receive.ah_attr.grh.traffic_class, 106);
  EXPECT_GT(receive.ah_attr.grh.hop_limit, 1) << "the peer may be behind a router";
  EXPECT_EQ(receive.ah_attr.sl, 3);
  EXPECT_EQ(receive.ah_attr.port_num, 2);
  EXPECT_EQ(changes[1].mask, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  const ibv_qp_attr& send = changes[2].attributes;
  EXPECT_EQ(send.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(send.timeout, 17);
  EXPECT_EQ(send.retry_cnt, 5);
  EXPECT_EQ(send.rnr_retry, 7) << "for ever: the credits of dtrain limit it";
  EXPECT_EQ(send.sq_psn, 111U);
  EXPECT_EQ(changes[2].mask, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  EXPECT_EQ(pair_.qp_num, 0U) << "destroyed";
}

TEST_F(RealVerbsTest, TheMtuIsTheLargestThatIsNotBeyondTheSetting) {
  for (const auto& [bytes, mtu] :
       {std::pair(256, IBV_MTU_256), std::pair(511, IBV_MTU_256), std::pair(512, IBV_MTU_512),
        std::pair(1024, IBV_MTU_1024), std::pair(2047, IBV_MTU_1024), std::pair(2048, IBV_MTU_2048),
        std::pair(4096, IBV_MTU_4096)}) {
    QueuePairSettings settings = kSettings;
    settings.mtu_bytes = bytes;
    pair_.qp_num = 77;
    EXPECT_EQ(Connected(settings)[1].attributes.path_mtu, mtu) << bytes;
  }
}

TEST_F(RealVerbsTest, ARefusedChangeIsNamedAndADisconnectPutsThePairIntoTheErrorState) {
  functions_.modify_qp = RefuseChange;
  const auto refused =
      TakeQueuePair(functions_, &pair_)->Connect(kSettings, End(1, 10, 111), End(2, 20, 222));
  EXPECT_EQ(refused.message().substr(0, 20), "ibv_modify_qp to RTR") << refused;
  functions_.modify_qp = RecordChange;
  TakeQueuePair(functions_, &pair_)->Disconnect();
  ASSERT_EQ(Changes().size(), 1U);
  EXPECT_EQ(Changes()[0].attributes.qp_state, IBV_QPS_ERR);
  EXPECT_EQ(Changes()[0].mask, IBV_QP_STATE);
}

QueuePairEnd InfiniBandEnd(uint64_t subnet, uint16_t lid) {
  QueuePairEnd end{.number = 10, .lid = lid};
  std::memcpy(end.gid.data(), &subnet, sizeof(subnet));
  end.gid[15] = static_cast<uint8_t>(lid);
  return end;
}

TEST_F(RealVerbsTest, InfiniBandIsAddressedByLidAndByGidOnlyIntoAnotherSubnet) {
  QueuePairSettings settings = kSettings;
  settings.ethernet = false;
  for (const bool same : {true, false}) {
    Changes().clear();
    pair_.qp_num = 77;
    ASSERT_TRUE(TakeQueuePair(functions_, &pair_)
                    ->Connect(settings, InfiniBandEnd(1, 5), InfiniBandEnd(same ? 1 : 2, 6))
                    .ok());
    const ibv_ah_attr& path = Changes()[1].attributes.ah_attr;
    EXPECT_EQ(path.dlid, 6);
    EXPECT_EQ(path.sl, 3);
    EXPECT_EQ(path.is_global, same ? 0 : 1);
    EXPECT_EQ(path.grh.sgid_index, same ? 0 : 9);
    EXPECT_EQ(path.grh.dgid.raw[15], same ? 0 : 6);
  }
}

// Extensions as mlx5 handles them: options that are set go to the device with the next change of
// state, and query then gives the device's answer; none can be set once the pair is connected.
struct FakeExtensions {
  static constexpr uint32_t kVendor = 0x15b3;
  uint32_t supported = 0b0111;
  uint32_t given = 0b0111;
  uint32_t set = 0;
  std::vector<std::string> calls;
};
FakeExtensions& Extensions() {
  static auto* const extensions = new FakeExtensions;
  return *extensions;
}
int QueryExtensions(ibv_qp* /*pair*/, ibv_ece* ece) {
  ece->vendor_id = FakeExtensions::kVendor;
  ece->options = Extensions().given;
  return 0;
}
int SetExtensions(ibv_qp* /*pair*/, ibv_ece* ece) {
  if (ece->vendor_id != FakeExtensions::kVendor || ece->comp_mask != 0) {
    return EINVAL;
  }
  Extensions().calls.push_back("set");
  Extensions().set = ece->options;
  Extensions().given = 0;
  return 0;
}
int ChangeWithExtensions(ibv_qp* /*pair*/, ibv_qp_attr* attributes, int /*mask*/) {
  FakeExtensions& all = Extensions();
  all.calls.push_back(attributes->qp_state == IBV_QPS_INIT  ? "init"
                      : attributes->qp_state == IBV_QPS_RTR ? "receive"
                                                            : "send");
  if (all.set != 0) {
    all.given = all.supported & std::exchange(all.set, 0);
  }
  return 0;
}
int NoExtensions(ibv_qp* /*pair*/, ibv_ece* /*ece*/) { return EOPNOTSUPP; }

TEST_F(RealVerbsTest, ExtensionsAreSetBeforeTheStateThatTellsTheDevice) {
  functions_.query_ece = QueryExtensions;
  functions_.set_ece = SetExtensions;
  functions_.modify_qp = ChangeWithExtensions;
  using Calls = std::vector<std::string>;
  constexpr Ece kTheirs{FakeExtensions::kVendor, 0b1110};

  Extensions() = {};  // Now the end that answers.
  const auto answers = TakeQueuePair(functions_, &pair_);
  const auto answer = answers->Answer(kSettings, kTheirs);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(*answer, (Ece{FakeExtensions::kVendor, 0b0110}));
  ASSERT_TRUE(answers->Connect(kSettings, End(1, 10, 111), End(2, 20, 222)).ok());
  EXPECT_EQ(Extensions().calls, (Calls{"set", "init", "receive", "send"}));

  Extensions() = {};  // Now the end that offered.
  const auto offers = TakeQueuePair(functions_, &pair_);
  EXPECT_EQ(offers->Offer(), (Ece{FakeExtensions::kVendor, 0b0111}));
  ASSERT_TRUE(offers->Take({FakeExtensions::kVendor, 0b0110}).ok());
  ASSERT_TRUE(offers->Connect(kSettings, End(1, 10, 111), End(2, 20, 222)).ok());
  EXPECT_EQ(Extensions().calls, (Calls{"set", "init", "receive", "send"}));
  EXPECT_EQ(Extensions().given, 0b0110U);

  Extensions() = {};  // With a peer of another vendor none of its options are set.
  EXPECT_EQ(TakeQueuePair(functions_, &pair_)->Answer(kSettings, {0x8086, 0b0001})->options, 0U);
}

TEST_F(RealVerbsTest, WithoutExtensionsNothingIsSetAndTheConnectionIsMade) {
  for (const bool known : {true, false}) {
    functions_.query_ece = known ? NoExtensions : nullptr;
    functions_.set_ece = known ? NoExtensions : nullptr;
    Changes().clear();
    const auto made = TakeQueuePair(functions_, &pair_);
    EXPECT_EQ(made->Offer(), Ece());
    EXPECT_EQ(made->Answer(kSettings, {0x15b3, 1}).value(), Ece());
    EXPECT_TRUE(made->Take({0x15b3, 1}).ok());
    EXPECT_TRUE(made->Connect(kSettings, End(1, 10, 111), End(2, 20, 222)).ok());
    EXPECT_EQ(Changes().size(), 3U) << "INIT, RTR and RTS once each";
  }
}

// A device whose functions record their arguments.
struct FakeHardware {
  ibv_pd domain{};
  ibv_comp_channel channel{};
  ibv_cq queue{};
  ibv_mr region{};
  unsigned access = 0;
  bool by_old_function = false;
  std::vector<ibv_async_event> events;
  int acknowledged = 0;
};
FakeHardware& Hardware() {
  static auto* const hardware = new FakeHardware;
  return *hardware;
}

class RealDeviceTest : public ::testing::Test {
 protected:
  RealDeviceTest() {
    Hardware() = {};
    Hardware().channel.fd = channel_.get();
    context_.async_fd = events_.get();
    functions_.alloc_pd = [](ibv_context*) { return &Hardware().domain; };
    functions_.dealloc_pd = [](ibv_pd*) { return 0; };
    functions_.create_comp_channel = [](ibv_context*) { return &Hardware().channel; };
    functions_.destroy_comp_channel = [](ibv_comp_channel*) { return 0; };
    functions_.create_cq = [](ibv_context*, int, void*, ibv_comp_channel*, int) {
      return &Hardware().queue;
    };
    functions_.destroy_cq = [](ibv_cq*) { return 0; };
    functions_.close_device = [](ibv_context*) { return 0; };
    functions_.dereg_mr = [](ibv_mr*) { return 0; };
    functions_.reg_mr = [](ibv_pd*, void*, size_t, int access) {
      Hardware().access = static_cast<unsigned>(access);
      Hardware().by_old_function = true;
      return &Hardware().region;
    };
    functions_.reg_mr_iova2 = [](ibv_pd*, void* data, size_t, uint64_t iova, unsigned access) {
      EXPECT_EQ(iova, reinterpret_cast<uint64_t>(data)) << "peers address it as this process does";
      Hardware().access = access;
      return &Hardware().region;
    };
    functions_.get_async_event = [](ibv_context*, ibv_async_event* event) {
      auto& events = Hardware().events;
      if (events.empty()) {
        errno = EAGAIN;
        return -1;
      }
      *event = events.front();
      events.erase(events.begin());
      return 0;
    };
    functions_.ack_async_event = [](ibv_async_event*) { ++Hardware().acknowledged; };
  }
  std::unique_ptr<VerbsDevice> Device() {
    return TakeDevice(functions_, &context_, "mlx5_0", /*port=*/2, /*completions_max=*/8).value();
  }
  const UniqueFd channel_{eventfd(0, EFD_CLOEXEC)};
  const UniqueFd events_{eventfd(0, EFD_CLOEXEC)};
  ibv_context context_{};
  VerbsFunctions functions_;
};

TEST_F(RealDeviceTest, MemoryIsRegisteredForWritesThatTheBusMayReorder) {
  constexpr unsigned kWrites = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
  char bytes[64];
  { const auto region = Device()->Register(bytes, sizeof(bytes)).value(); }
  EXPECT_EQ(Hardware().access, kWrites | IBV_ACCESS_RELAXED_ORDERING);
  EXPECT_FALSE(Hardware().by_old_function);

  functions_.reg_mr_iova2 = nullptr;  // An older library does not know the flag.
  { const auto region = Device()->Register(bytes, sizeof(bytes)).value(); }
  EXPECT_TRUE(Hardware().by_old_function);
  EXPECT_EQ(Hardware().access, kWrites);
}

ibv_async_event EventOfPort(ibv_event_type type, int port) {
  ibv_async_event event{};
  event.event_type = type;
  event.element.port_num = port;
  return event;
}

TEST_F(RealDeviceTest, EventsAreReadAndAcknowledgedAndThoseOfOtherPortsLeftOut) {
  const auto device = Device();
  EXPECT_EQ(device->event_fd(), events_.get());
  EXPECT_TRUE(device->TakeDeviceEvents().empty());
  ibv_async_event established{};
  established.event_type = IBV_EVENT_COMM_EST;
  ibv_async_event fatal{};
  fatal.event_type = IBV_EVENT_DEVICE_FATAL;
  Hardware().events = {EventOfPort(IBV_EVENT_PORT_ERR, 1), EventOfPort(IBV_EVENT_PORT_ERR, 2),
                       EventOfPort(IBV_EVENT_PORT_ACTIVE, 2), established, fatal};
  const std::vector<DeviceEvent> events = device->TakeDeviceEvents();
  using Kind = DeviceEvent::Kind;
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].kind, Kind::kPortDown);
  EXPECT_EQ(events[0].name, "IBV_EVENT_PORT_ERR");
  EXPECT_EQ(events[1].kind, Kind::kPortUp);
  EXPECT_EQ(events[2].kind, Kind::kDeviceFailed);
  EXPECT_EQ(Hardware().acknowledged, 5);
}

// Two ports of a device whose sysfs folder a container hides.
TEST_F(RealDeviceTest, GidsAreAskedForWhereSysfsIsHidden) {
  static ibv_device* devices[] = {reinterpret_cast<ibv_device*>(8), nullptr};
  static ibv_context context{};
  functions_.get_device_list = [](int* count) {
    *count = 1;
    return devices;
  };
  functions_.free_device_list = [](ibv_device**) {};
  functions_.get_device_name = [](ibv_device*) { return "hidden_test0"; };
  functions_.open_device = [](ibv_device*) { return &context; };
  functions_.query_device = [](ibv_context*, ibv_device_attr* attributes) {
    attributes->phys_port_cnt = 2;
    return 0;
  };
  functions_.query_port = [](ibv_context*, uint8_t port, ibv_port_attr* attributes) {
    attributes->state = IBV_PORT_ACTIVE;
    attributes->active_mtu = IBV_MTU_4096;
    attributes->gid_tbl_len = 16;
    attributes->lid = 9;
    attributes->link_layer = port == 1 ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    return 0;
  };
  functions_.query_gid_table = [](ibv_context*, ibv_gid_entry* entries, size_t max, uint32_t,
                                  size_t bytes) -> ssize_t {
    EXPECT_GE(max, 4U);
    EXPECT_EQ(bytes, sizeof(ibv_gid_entry));
    const auto put = [&](size_t i, uint32_t port, uint32_t index, uint32_t type, uint8_t last) {
      entries[i] = {};
      entries[i].port_num = port;
      entries[i].gid_index = index;
      entries[i].gid_type = type;
      entries[i].ndev_ifindex = port == 1 ? 1 : 0;  // The loopback device.
      entries[i].gid.raw[10] = entries[i].gid.raw[11] = 0xff;
      entries[i].gid.raw[12] = 10;
      entries[i].gid.raw[15] = last;
    };
    put(0, 1, 2, IBV_GID_TYPE_ROCE_V1, 1);
    put(1, 1, 3, IBV_GID_TYPE_ROCE_V2, 1);
    put(2, 2, 0, IBV_GID_TYPE_IB, 2);
    return 3;
  };
  const auto ports = ReadPorts(Verbs(functions_));
  ASSERT_TRUE(ports.ok()) << ports.status();
  ASSERT_EQ(ports->size(), 2U);
  EXPECT_EQ(DescribeGids((*ports)[0].gids), "2: 10.0.0.1 (RoCE v1, lo); 3: 10.0.0.1 (RoCE v2, lo)");
  EXPECT_EQ((*ports)[0].lid, 0);
  EXPECT_EQ(DescribeGids((*ports)[1].gids), "0: 10.0.0.2 (InfiniBand)");
  EXPECT_FALSE((*ports)[1].ethernet);
  EXPECT_EQ((*ports)[1].lid, 9);
  EXPECT_EQ(ChoosePort(*ports, {})->gid.index, 3);

  functions_.query_gid_table = nullptr;  // An older library.
  EXPECT_TRUE(ReadPorts(Verbs(functions_))->at(0).gids.empty());
}

}  // namespace
}  // namespace dtrain::comm::real_verbs_test
