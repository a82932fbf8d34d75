// The provenance in every results file of a program.
#include "base/provenance.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::provenance_test {
namespace {

TEST(Provenance, ItHasTheFactsThatResultsOfPythonHave) {
  const Json facts = Provenance();
  std::vector<std::string> keys;
  for (const auto& [key, value] : facts.items()) {
    keys.push_back(key);
  }
  EXPECT_THAT(keys,
              ::testing::ElementsAre("date", "version", "commit", "cpu", "cores", "load_average"));
  EXPECT_THAT(facts["date"].get<std::string>(),
              ::testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]"));
  EXPECT_GE(facts["cores"].get<int>(), 1);
  EXPECT_GE(facts["load_average"].get<double>(), -1);
}

TEST(Provenance, TheCpuIsNamedWithFamilyAndModel) {
  EXPECT_THAT(CpuName(),
              ::testing::AnyOf(::testing::HasSubstr("(family "), ::testing::Eq("unknown")));
}

}  // namespace
}  // namespace dtrain::provenance_test
