// A rank that is 20 % slower is named within 30 steps, in a simulated job whose steps are noisy,
// and nobody in a healthy one.
#include "launcher/watch/straggler.h"

#include <cmath>
#include <numbers>
#include <string>
#include <vector>

#include "base/numeric/prng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::straggler_test {
namespace {

using ::testing::IsEmpty;

struct Noise {
  double sigma = 0.04;          // Noise of each step, lognormal.
  double burst_chance = 0.002;  // The chance that a burst begins in a rank's step.
  double burst_factor = 2.5;    // How much longer its steps take.
  double wander = 0;            // Slow changes of each rank's speed, over some windows.
  double turn_chance = 0;       // The chance that another program takes a rank's CPU for 0.2 s.
};

// Steps of a data-parallel job: each rank's own work is `step_s`, times noise.
class SimulatedJob {
 public:
  SimulatedJob(int ranks, double step_s, Noise noise, uint64_t seed)
      : ranks_(ranks), step_s_(step_s), noise_(noise), random_(seed), finder_(ranks) {
    bursts_.resize(static_cast<size_t>(ranks));
    wander_.resize(static_cast<size_t>(ranks));
    collectors_.resize(static_cast<size_t>(ranks));
    waits_.resize(static_cast<size_t>(ranks));
  }

  // Makes `rank` slower by `share` from here on.
  void Slow(int rank, double share) {
    slow_rank_ = rank;
    slow_ = share;
  }
  // Makes all ranks wait for a CPU, which takes none of the time of `busy_s`.
  void WaitForCpus(double share) { cpu_wait_ = share; }
  // Makes `rank` slower from here on because another program takes its CPU for that share.
  void TakeCpu(int rank, double share) {
    Slow(rank, share);
    taken_ = share;
  }

  std::vector<Straggler> Step() {
    std::vector<double> busy;
    double longest = 0;
    const double common = std::exp(0.03 * Normal());  // Longer documents, for all ranks alike.
    for (int rank = 0; rank < ranks_; ++rank) {
      busy.push_back(common * BusySeconds(rank));
      longest = std::max(longest, busy.back());
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      const double mine = busy[static_cast<size_t>(rank)];
      const double slow = rank == slow_rank_ ? mine * (1 - 1 / (1 + slow_)) : 0;
      const double cpu_wait = CpuWait(rank, taken_ > 0 ? slow : 0, longest);
      std::vector<BlockTimes> blocks;
      collectors_[static_cast<size_t>(rank)].Take({.step = step_,
                                                   .whole_s = longest,
                                                   .data_s = 0.02 * step_s_,
                                                   .forward_s = 0.3 * (mine - slow) + slow,
                                                   .backward_s = 0.6 * (mine - slow),
                                                   .update_s = 0.1 * (mine - slow)},
                                                  cpu_wait, blocks);
      for (const BlockTimes& block : blocks) {
        finder_.Take(rank, block);
      }
    }
    ++step_;
    return finder_.Find();
  }

 private:
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - random_.Uniform()));
    return radius * std::cos(2 * std::numbers::pi * random_.Uniform());
  }
  // The share of the last steps' time for which the rank waited for a CPU, as its agent sees it.
  double CpuWait(int rank, double waited_s, double whole_s) {
    Waits& waits = waits_[static_cast<size_t>(rank)];
    waits.waited_s += waited_s + waits.in_step_s;
    waits.whole_s += whole_s;
    if (step_ % kBlockSteps == kBlockSteps - 1) {
      waits.share = waits.waited_s / waits.whole_s;
      waits.waited_s = waits.whole_s = 0;
    }
    return cpu_wait_ + waits.share;
  }
  // How much longer another program makes a step of `seconds`.
  double TakenSeconds(int rank, double seconds) {
    Waits& waits = waits_[static_cast<size_t>(rank)];
    if (waits.turn_s <= 0 && random_.Uniform() < noise_.turn_chance) {
      waits.turn_s = 0.2;
    }
    waits.in_step_s = waits.turn_s > 0 ? seconds : 0;  // It has half of the CPU in a turn.
    waits.turn_s -= waits.turn_s > 0 ? 2 * seconds : 0;
    return waits.in_step_s;
  }
  double BusySeconds(int rank) {
    const auto at = static_cast<size_t>(rank);
    if (bursts_[at] == 0 && random_.Uniform() < noise_.burst_chance) {
      bursts_[at] = 1 + static_cast<int>(random_.Below(4));
    }
    const double burst = bursts_[at] > 0 ? noise_.burst_factor : 1;
    bursts_[at] -= bursts_[at] > 0 ? 1 : 0;
    wander_[at] = 0.97 * wander_[at] + std::sqrt(1 - 0.97 * 0.97) * noise_.wander * Normal();
    const double slow = rank == slow_rank_ ? 1 + slow_ : 1;
    const double work = step_s_ * std::exp(noise_.sigma * Normal() + wander_[at]) * burst * slow;
    return work + (noise_.turn_chance > 0 ? TakenSeconds(rank, work) : 0);
  }

  struct Waits {
    double turn_s = 0;     // The rest of another program's turn.
    double in_step_s = 0;  // How long the last step waited.
    double waited_s = 0;   // Since the block began.
    double whole_s = 0;
    double share = 0;  // In the block before.
  };

  const int ranks_;
  const double step_s_;
  const Noise noise_;
  SplitMix64 random_;
  StragglerFinder finder_;
  std::vector<int> bursts_;
  std::vector<double> wander_;
  std::vector<BlockCollector> collectors_;
  int slow_rank_ = -1;
  double slow_ = 0;
  double cpu_wait_ = 0;
  double taken_ = 0;
  std::vector<Waits> waits_;
  int64_t step_ = 0;
};

// In how many of 100 trials exactly the slow rank is named within 30 steps.
int NamedOf100(int ranks, double step_s, Noise noise) {
  int named = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimulatedJob job(ranks, step_s, noise, seed);
    const int before = 300 + static_cast<int>(seed % 10);  // Anywhere in a block.
    int wrong = 0;
    for (int step = 0; step < before; ++step) {
      wrong += static_cast<int>(job.Step().size());
    }
    const int slow = static_cast<int>(seed) % ranks;
    job.Slow(slow, 0.2);
    bool found = false;
    for (int step = 0; step < 30; ++step) {
      for (const Straggler& straggler : job.Step()) {
        found = found || straggler.rank == slow;
        wrong += straggler.rank == slow ? 0 : 1;
      }
    }
    named += found && wrong == 0 ? 1 : 0;
  }
  return named;
}

TEST(Straggler, ARankThatIsATwentyPercentSlowerIsNamedWithinThirtySteps) {
  EXPECT_GE(NamedOf100(8, 0.25, {}), 99);
  EXPECT_GE(NamedOf100(2, 0.25, {}), 99);
  EXPECT_GE(NamedOf100(3, 0.05, {}), 99);
  EXPECT_GE(NamedOf100(16, 1.0, {}), 99);
}

TEST(Straggler, ShortStepsNeedNoMoreStepsThanLongOnes) {
  EXPECT_GE(NamedOf100(8, 0.02, {}), 99);
  EXPECT_GE(NamedOf100(2, 0.005, {}), 99);
}

int NamedInAHealthyHour(int ranks, Noise noise, uint64_t seed, double cpu_wait = 0,
                        double step_s = 0.25) {
  SimulatedJob job(ranks, step_s, noise, seed);
  job.WaitForCpus(cpu_wait);
  int named = 0;
  for (double time = 0; time < 3600; time += step_s) {
    named += static_cast<int>(job.Step().size());
  }
  return named;
}

// Other programs that take a CPU for longer than the windows of short steps are no reason to name a
// rank, although its steps take twice as long meanwhile.
TEST(Straggler, NobodyIsNamedInAHealthyHourOfShortSteps) {
  EXPECT_EQ(NamedInAHealthyHour(4, {}, 1, /*cpu_wait=*/0, /*step_s=*/0.02), 0);
  EXPECT_EQ(NamedInAHealthyHour(2, {.turn_chance = 2e-4}, 2, /*cpu_wait=*/0, /*step_s=*/0.01), 0);
}

TEST(Straggler, ARankWhoseCpuIsTakenAllTheTimeIsNamedInShortStepsToo) {
  SimulatedJob job(4, 0.01, {}, 5);
  for (int step = 0; step < 400; ++step) {
    ASSERT_THAT(job.Step(), IsEmpty()) << step;
  }
  job.TakeCpu(2, 0.3);
  std::vector<int> named;
  for (int step = 0; step < 150; ++step) {  // Two windows of 0.4 s, and the one that has begun.
    for (const Straggler& straggler : job.Step()) {
      named.push_back(straggler.rank);
    }
  }
  EXPECT_THAT(named, ::testing::ElementsAre(2));
}

TEST(Straggler, NobodyIsNamedInAHealthyHour) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_EQ(NamedInAHealthyHour(2, {}, seed), 0) << "seed " << seed;
    EXPECT_EQ(NamedInAHealthyHour(8, {}, seed), 0) << "seed " << seed;
    EXPECT_EQ(NamedInAHealthyHour(8, {.sigma = 0.1}, seed), 0) << "seed " << seed;
    EXPECT_EQ(NamedInAHealthyHour(4, {.wander = 0.03}, seed), 0) << "seed " << seed;
  }
}

TEST(Straggler, OnAMachineThatOtherProgramsSlowDownNobodyIsNamed) {
  constexpr Noise kStress{.sigma = 0.2, .burst_chance = 0.02, .wander = 0.3};
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    EXPECT_EQ(NamedInAHealthyHour(2, kStress, seed, /*cpu_wait=*/0.4), 0) << "seed " << seed;
  }
}

TEST(Straggler, IsNamedOnceWithWhatIsSlowAndAgainAfterItWasWell) {
  SimulatedJob job(4, 0.25, {}, 7);
  std::vector<Straggler> named;
  const auto run = [&](int steps) {
    for (int step = 0; step < steps; ++step) {
      for (const Straggler& straggler : job.Step()) {
        named.push_back(straggler);
      }
    }
  };
  run(100);
  EXPECT_THAT(named, IsEmpty());
  job.Slow(2, 0.3);
  run(300);
  ASSERT_EQ(named.size(), 1U);
  EXPECT_EQ(named[0].rank, 2);
  EXPECT_EQ(std::string(named[0].part), "forward");
  EXPECT_NEAR(named[0].slower, 0.3, 0.1);
  EXPECT_GE(named[0].first_step, 100);
  EXPECT_LE(named[0].last_step, 129);
  job.Slow(2, 0);
  run(100);
  job.Slow(2, 0.3);
  run(100);
  EXPECT_EQ(named.size(), 2U);
}

TEST(Straggler, RanksThatDifferForGoodAreNoStragglers) {
  StragglerFinder finder(6);
  for (int64_t block = 0; block < 100; ++block) {
    for (int rank = 0; rank < 6; ++rank) {  // Two kinds of machine.
      const double busy = rank % 2 == 0 ? 1.0 : 1.3;
      finder.Take(rank, {.block = block, .whole_s = 1.4, .busy_s = busy, .spread = 0.01});
    }
    EXPECT_THAT(finder.Find(), IsEmpty()) << block;
  }
}

TEST(Straggler, OneRankAloneAndLostBlocksNameNobody) {
  StragglerFinder alone(1);
  StragglerFinder two(2);
  for (int64_t block = 0; block < 1000; ++block) {
    alone.Take(0, {.block = block, .whole_s = 1, .busy_s = 1});
    two.Take(1, {.block = block, .whole_s = 1, .busy_s = 2});  // Nothing is heard of rank 0.
    two.Take(7, {.block = block, .whole_s = 1, .busy_s = 9});  // No rank of the job.
    EXPECT_THAT(alone.Find(), IsEmpty());
    EXPECT_THAT(two.Find(), IsEmpty());
  }
}

TEST(Straggler, BlocksTravelAsTheyAreAndMalformedOnesAreLeftOut) {
  const BlockTimes block{.block = 12,
                         .whole_s = 1.5,
                         .busy_s = 1.25,
                         .spread = 0.0625,
                         .parts_s = {0.25, 0.5, 0.75, 1},
                         .cpu_wait = 0.125};
  const auto read = BlocksIn(Json::array({BlockJson(3, block)}));
  ASSERT_EQ(read.size(), 1U);
  EXPECT_EQ(read[0].first, 3);
  EXPECT_EQ(read[0].second.block, 12);
  EXPECT_EQ(read[0].second.whole_s, 1.5);
  EXPECT_EQ(read[0].second.busy_s, 1.25);
  EXPECT_EQ(read[0].second.spread, 0.0625);
  EXPECT_EQ(read[0].second.parts_s, block.parts_s);
  EXPECT_EQ(read[0].second.cpu_wait, 0.125);
  EXPECT_THAT(BlocksIn(Json::object()), IsEmpty());
  EXPECT_THAT(BlocksIn(Json::array({1, "x", Json::array({1, 2}), nullptr})), IsEmpty());
}

}  // namespace
}  // namespace dtrain::launcher::straggler_test
