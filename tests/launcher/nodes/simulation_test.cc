// What all simulations have in common.
#include "tests/launcher/nodes/simulation.h"

#include <stdlib.h>

#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest-spi.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::simulation_test {
namespace {

using ::testing::ElementsAre;

TEST(PlaySeeds, AFailureTellsHowItsSeedIsPlayedAgain) {
  EXPECT_NONFATAL_FAILURE(
      simulation::PlaySeeds({.of_suite = 1, .of_long_test = 1},
                            [](uint64_t /*seed*/, bool /*is_told*/) { ADD_FAILURE(); }),
      "--gtest_filter=PlaySeeds.AFailureTellsHowItsSeedIsPlayedAgain");
}

TEST(PlaySeeds, ASeedThatIsNamedIsPlayedAloneAndTold) {
  setenv("DTRAIN_SIMULATION_SEED", "17", 1);
  std::vector<uint64_t> played;
  simulation::PlaySeeds({.of_suite = 3, .of_long_test = 3}, [&played](uint64_t seed, bool is_told) {
    EXPECT_TRUE(is_told);
    played.push_back(seed);
  });
  unsetenv("DTRAIN_SIMULATION_SEED");
  EXPECT_THAT(played, ElementsAre(17));
}

}  // namespace
}  // namespace dtrain::launcher::simulation_test
