#include "comm/transport/rdma/direct_messages.h"

#include <gtest/gtest.h>

#include <deque>

#include "base/numeric/prng.h"

namespace dtrain::comm::direct_messages_test {
namespace {

TEST(DirectMessagesTest, MessagesThatGoEitherWayAreTakenInOrderForLong) {
  const uint64_t seed = 11;
  SplitMix64 random(seed);
  DirectReceives receives;
  DirectSends sends;
  uint64_t boxes[kOffersMax] = {};
  std::deque<uint64_t> offers;   // Under way.
  std::deque<uint64_t> dones;    // Under way; they may overtake chunks.
  std::deque<uint64_t> by_ring;  // Arrived in chunks.
  uint64_t taken = 0;
  for (uint64_t idle = 0; taken < 50000; ++idle) {
    ASSERT_LT(idle, 10000U) << "nobody can go on; seed " << seed;
    switch (random.Below(5)) {
      case 0:
        if (receives.CanOffer()) {
          const uint64_t number = receives.Offer();
          boxes[number % kOffersMax] = number;
          offers.push_back(number);
        }
        break;
      case 1:
        if (!offers.empty()) {
          offers.pop_front();
          ASSERT_TRUE(sends.OfferCame().ok());
        }
        break;
      case 2:
        if (sends.HasOffer()) {
          ASSERT_EQ(boxes[sends.box()], sends.number()) << "overwritten before it was read";
          (random.Below(3) == 0 ? by_ring : dones).push_back(sends.number());
          sends.Sent();
        }
        break;
      case 3:
        if (!dones.empty()) {
          ASSERT_TRUE(
              receives.Done(static_cast<uint16_t>(dones.front() & Immediate::kChunkMask)).ok());
          dones.pop_front();
        }
        break;
      default:
        if (receives.FrontIsDone() || (!by_ring.empty() && by_ring.front() == taken)) {
          if (!receives.FrontIsDone()) {
            by_ring.pop_front();
          }
          receives.Take();
          ++taken;
          idle = 0;
        }
    }
  }
}

TEST(DirectMessagesTest, APeerThatBreaksTheRulesIsNoticed) {
  DirectReceives receives;
  EXPECT_EQ(receives.Done(0).code(), absl::StatusCode::kInternal) << "nothing was offered";
  receives.Offer();
  EXPECT_EQ(receives.Done(1).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(receives.Done(0).ok());
  EXPECT_EQ(receives.Done(0).code(), absl::StatusCode::kInternal) << "twice";
  DirectSends sends;
  EXPECT_TRUE(sends.OfferCame().ok());
  EXPECT_TRUE(sends.OfferCame().ok());
  EXPECT_EQ(sends.OfferCame().code(), absl::StatusCode::kInternal) << "more than boxes";
}

}  // namespace
}  // namespace dtrain::comm::direct_messages_test
