// Slots and credits: nothing is overwritten, everything arrives in order, nobody waits for ever.
#include "comm/transport/rdma/ring.h"

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "base/numeric/prng.h"
#include "comm/transport/rdma/request_id.h"

namespace dtrain::comm::ring_test {
namespace {

TEST(ImmediateTest, KeepsItsParts) {
  using Kind = Immediate::Kind;
  for (const Kind kind : {Kind::kChunk, Kind::kCredit, Kind::kOffer, Kind::kDone}) {
    for (const bool of_long : {false, true}) {
      for (const int chunk : {0, 1, 255, 0x1fff}) {
        for (const int taken : {0, 1, 0xffff}) {
          const Immediate decoded = Immediate::Decode(
              Immediate{kind, of_long, static_cast<uint16_t>(chunk), static_cast<uint16_t>(taken)}
                  .Encode());
          EXPECT_EQ(decoded.kind, kind);
          EXPECT_EQ(decoded.of_long, of_long);
          EXPECT_EQ(decoded.chunk, chunk);
          EXPECT_EQ(decoded.taken, taken);
        }
      }
    }
  }
}

TEST(RequestIdTest, KeepsItsParts) {
  const RequestId id{RequestId::Kind::kReceive, 0xabcdef, 7, 255};
  const RequestId decoded = RequestId::Decode(id.Encode());
  EXPECT_EQ(decoded.kind, id.kind);
  EXPECT_EQ(decoded.peer, id.peer);
  EXPECT_EQ(decoded.pair, id.pair);
  EXPECT_EQ(decoded.slot, id.slot);
}

// A sender and a receiver whose messages overtake each other on several queue pairs, for longer
// than the range of the numbers in an immediate.
TEST(RingTest, RandomOrdersDeliverEveryChunkInOrderWithoutOverwritingOne) {
  for (const int slots : {2, 3, 8, kSlotsMax}) {
    for (const size_t pairs : {size_t{1}, size_t{3}}) {
      SplitMix64 random(static_cast<uint64_t>(slots) * 10 + pairs);
      SendRing send(slots);
      ReceiveRing receive(slots);
      std::vector<uint64_t> memory(static_cast<size_t>(slots));
      std::vector<std::deque<uint64_t>> wires(pairs);       // Chunks under way.
      std::vector<std::deque<size_t>> acknowledged(pairs);  // Slots to complete.
      std::deque<uint16_t> credits;
      uint64_t sent = 0;
      uint64_t taken = 0;
      uint64_t idle = 0;
      while (taken < 150000) {
        ASSERT_LT(++idle, 100000U) << "nobody can go on";
        const size_t pair = static_cast<size_t>(random.Below(pairs));
        switch (random.Below(5)) {
          case 0:
            if (send.CanSend()) {
              const uint64_t chunk = send.Take();
              ASSERT_EQ(chunk, sent++);
              memory[send.SlotOf(chunk)] = chunk;
              wires[static_cast<size_t>(chunk) % pairs].push_back(chunk);
            }
            break;
          case 1:
            if (!wires[pair].empty()) {
              const uint64_t chunk = wires[pair].front();
              wires[pair].pop_front();
              ASSERT_TRUE(receive
                              .Arrive(static_cast<uint16_t>(chunk & Immediate::kChunkMask),
                                      {static_cast<uint32_t>(chunk), chunk % 3 == 0})
                              .ok());
              acknowledged[pair].push_back(send.SlotOf(chunk));
            }
            break;
          case 2:
            if (!acknowledged[pair].empty()) {
              send.Complete(acknowledged[pair].front());
              acknowledged[pair].pop_front();
            }
            break;
          case 3:
            if (receive.Front().has_value()) {
              ASSERT_EQ(receive.Front()->bytes, static_cast<uint32_t>(taken));
              ASSERT_EQ(receive.Front()->of_long, taken % 3 == 0);
              ASSERT_EQ(memory[receive.slot()], taken) << "overwritten before it was taken";
              receive.Pop();
              ++taken;
              idle = 0;
            }
            break;
          default:
            if (receive.OwesCredit()) {
              credits.push_back(receive.taken());
              receive.ToldCredit();
            } else if (!credits.empty()) {  // The last overtakes the first now and then.
              const bool last = random.Below(4) == 0;
              ASSERT_TRUE(send.Credit(last ? credits.back() : credits.front()).ok());
              last ? credits.pop_back() : credits.pop_front();
            }
        }
      }
    }
  }
}

TEST(RingTest, APeerThatBreaksTheRulesIsNoticed) {
  ReceiveRing receive(4);
  EXPECT_TRUE(receive.Arrive(1, {10}).ok());
  EXPECT_FALSE(receive.Front().has_value()) << "chunk 0 is not here";
  EXPECT_EQ(receive.Arrive(1, {10}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(receive.Arrive(4, {10}).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(receive.Arrive(0x1fff, {10}).code(), absl::StatusCode::kInternal);
  SendRing send(4);
  EXPECT_EQ(send.Credit(1).code(), absl::StatusCode::kInternal);
  send.Take();
  EXPECT_TRUE(send.Credit(1).ok());
  EXPECT_TRUE(send.Credit(0).ok()) << "an old credit";
  EXPECT_EQ(send.Credit(2).code(), absl::StatusCode::kInternal);
}

TEST(RingTest, ASlotIsFreeWhenThePeerTookItAndItLeftThisMemory) {
  SendRing send(2);
  send.Take();
  send.Take();
  EXPECT_FALSE(send.CanSend());
  send.Complete(0);
  EXPECT_FALSE(send.CanSend()) << "no credit";
  EXPECT_TRUE(send.Credit(2).ok());
  EXPECT_TRUE(send.CanSend());
  send.Take();
  EXPECT_FALSE(send.CanSend()) << "slot 1 is still being read";
  EXPECT_EQ(send.under_way(), 2U);
}

TEST(PlanRingTest, ShrinksSlotsThenTheirNumber) {
  const size_t kib = 1024;
  const auto roomy = PlanRing(8, 256 * kib, 1, 64 * kib * kib);
  EXPECT_EQ(roomy->slots, 8);
  EXPECT_EQ(roomy->slot_bytes, 256 * kib);
  const auto many = PlanRing(8, 256 * kib, 511, 256 * kib * kib);
  EXPECT_EQ(many->slots, 8);
  EXPECT_EQ(many->slot_bytes, 32 * kib);
  const auto tight = PlanRing(8, 256 * kib, 511, 20 * kib * kib);
  EXPECT_EQ(tight->slots, 4);
  EXPECT_EQ(tight->slot_bytes, 4 * kib);
  const auto none = PlanRing(8, 256 * kib, 4096, 16 * kib * kib);
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dtrain::comm::ring_test
