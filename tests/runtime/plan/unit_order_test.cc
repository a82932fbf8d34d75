#include "runtime/plan/layout/unit_order.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::plan::unit_order_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Pass = UnitOrder::Pass;

constexpr int kIn = UnitOrder::OfBucket(0);
constexpr int kOut = UnitOrder::OfBucket(1);
constexpr UnitStep Open(int unit) { return {UnitStep::Kind::kOpen, unit}; }
constexpr UnitStep End(int unit) { return {UnitStep::Kind::kEnd, unit}; }

class UnitOrderTest : public ::testing::Test {
 protected:
  std::vector<UnitStep> Come(int place) {
    std::vector<UnitStep> steps;
    order_.Come(place, steps);
    return steps;
  }
  std::vector<UnitStep> EndPass() {
    std::vector<UnitStep> steps;
    order_.End(steps);
    return steps;
  }
  // in, unit 0, out, unit 1; and back.
  void Record(Pass pass = Pass::kTraining) {
    order_.Begin(pass);
    for (const int place : {kIn, 0, kOut, 1, UnitOrder::kBackward, kOut}) {
      EXPECT_THAT(Come(place), IsEmpty()) << place;
    }
    order_.NoteEnd(1);
    EXPECT_THAT(Come(0), IsEmpty());
    order_.NoteEnd(0);
    EXPECT_THAT(Come(kIn), IsEmpty());
    EXPECT_THAT(EndPass(), IsEmpty());
  }
  // A pass as the recorded one.
  void ExpectRecord() {
    order_.Begin(Pass::kTraining);
    EXPECT_FALSE(order_.wants_ends());
    for (const int place : {kIn, kIn, 0, 0, kOut, 1, UnitOrder::kBackward, kOut}) {
      EXPECT_THAT(Come(place), IsEmpty()) << place;
    }
    EXPECT_THAT(Come(0), ElementsAre(End(1)));
    EXPECT_THAT(Come(kIn), ElementsAre(End(0)));
    EXPECT_THAT(EndPass(), IsEmpty());
  }
  UnitOrder order_;
};

TEST_F(UnitOrderTest, ARankThatUsesEveryUnitHasTheEndsOfTheRecord) {
  Record();
  ExpectRecord();
}

TEST_F(UnitOrderTest, ARankThatUsesNoneOpensAndEndsThemWhereTheRecordDoes) {
  Record();
  order_.Begin(Pass::kTraining);
  EXPECT_THAT(Come(kIn), IsEmpty());
  EXPECT_THAT(Come(kOut), ElementsAre(Open(0)));
  EXPECT_THAT(Come(UnitOrder::kBackward), ElementsAre(Open(1)));
  EXPECT_THAT(Come(kOut), IsEmpty());
  EXPECT_THAT(Come(kIn), ElementsAre(End(1), Open(0), End(0)));
  EXPECT_THAT(EndPass(), IsEmpty());
  ExpectRecord();  // It is kept.
}

TEST_F(UnitOrderTest, WhatTheRecordHasBehindTheLastPlaceComesAtTheEnd) {
  order_.Begin(Pass::kEvaluation);
  for (const int place : {kIn, 0, 1}) {
    Come(place);
  }
  EndPass();
  order_.Begin(Pass::kEvaluation);
  Come(kIn);
  EXPECT_THAT(EndPass(), ElementsAre(Open(0), Open(1)));
}

TEST_F(UnitOrderTest, BehindAPassTheNextOneOfItsKindBegins) {
  Record();
  ExpectRecord();
  EXPECT_THAT(EndPass(), IsEmpty());
  EXPECT_THAT(Come(kIn), IsEmpty());
  EXPECT_FALSE(order_.wants_ends()) << "it is on the record";
  EXPECT_THAT(Come(kOut), ElementsAre(Open(0)));
}

TEST_F(UnitOrderTest, APassInWhichNothingIsReadOpensNothing) {
  Record();
  order_.Begin(Pass::kTraining);
  EXPECT_THAT(EndPass(), IsEmpty());
}

TEST_F(UnitOrderTest, EachKindOfPassHasARecordOfItsOwnAndOthersHaveNone) {
  Record(Pass::kTraining);
  order_.Begin(Pass::kEvaluation);
  EXPECT_THAT(Come(kOut), IsEmpty());
  EndPass();
  for (int i = 0; i < 2; ++i) {
    order_.Begin(Pass::kOther);
    EXPECT_THAT(Come(i), IsEmpty());
    EXPECT_THAT(Come(kOut), IsEmpty());
    EXPECT_THAT(EndPass(), IsEmpty());
  }
}

TEST_F(UnitOrderTest, APassThatLeavesTheRecordIsRecordedAnew) {
  Record();
  order_.Begin(Pass::kTraining);
  Come(kIn);
  EXPECT_THAT(Come(UnitOrder::OfBucket(7)), IsEmpty());
  EXPECT_TRUE(order_.wants_ends());
  EXPECT_THAT(Come(1), IsEmpty());
  EndPass();
  order_.Begin(Pass::kTraining);
  EXPECT_THAT(Come(kIn), IsEmpty());
  EXPECT_THAT(Come(UnitOrder::OfBucket(7)), IsEmpty());
  EXPECT_THAT(EndPass(), ElementsAre(Open(1)));
}

TEST_F(UnitOrderTest, APassThatIsNotEndedLeavesTheRecordAsItWas) {
  Record();
  order_.Begin(Pass::kTraining);
  Come(UnitOrder::OfBucket(7));
  ExpectRecord();
}

TEST_F(UnitOrderTest, ASecondBackwardOfAGraphIsNoPassOfTheRecord) {
  Record();
  order_.Begin(Pass::kTraining);
  EXPECT_THAT(Come(UnitOrder::kBackward), IsEmpty());
  EXPECT_THAT(Come(kOut), IsEmpty());
  EXPECT_THAT(EndPass(), IsEmpty());
  ExpectRecord();
}

}  // namespace
}  // namespace dtrain::plan::unit_order_test
