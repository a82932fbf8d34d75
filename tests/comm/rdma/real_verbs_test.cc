// What a queue pair is told when it is connected: every setting of ours in the field of libibverbs
// that the hardware reads, and in the mask without which the field is ignored.
#include "comm/transport/rdma/real_verbs.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

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

}  // namespace
}  // namespace dtrain::comm::real_verbs_test
