// Switches from latencies: found in matrices that are made of a tree with noise, and unknown where
// the latencies do not show them.
#include "launcher/topology/measured_switches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric/prng.h"

namespace dtrain::launcher::measured_switches_test {
namespace {

using ::testing::HasSubstr;

// `between(a, b)` microseconds, times noise that only adds, as that of a busy host or switch.
Latencies Made(int hosts, double noise, uint64_t seed,
               const std::function<double(int, int)>& between) {
  SplitMix64 random(seed);
  Latencies made;
  for (int a = 0; a < hosts; ++a) {
    made.hosts.push_back(absl::StrCat("h", a));
    made.us.emplace_back();
    for (int b = 0; b < hosts; ++b) {
      made.us.back().push_back(between(a, b) * (1 + noise * random.Uniform()));
    }
  }
  return made;
}

// The groups of hosts at one switch.
std::set<std::set<std::string>> Leaves(const SwitchTree& tree) {
  std::set<std::set<std::string>> leaves;
  for (const Switch& each : tree.Walk()) {
    if (!each.nodes.empty()) {
      leaves.insert({each.nodes.begin(), each.nodes.end()});
    }
  }
  return leaves;
}

TEST(MeasuredSwitches, AreFoundWhateverTheOrderOfHosts) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SplitMix64 random(seed);
    const int hosts = 5 + static_cast<int>(random.Below(28));
    const int leaves = 2 + static_cast<int>(random.Below(3));
    std::map<int, int> leaf;
    std::map<int, std::set<std::string>> expected;
    for (int host = 0; host < hosts; ++host) {
      // At least one host is at each, and one switch has two, so that there are near pairs.
      leaf[host] = host < leaves    ? host
                   : host == leaves ? 0
                                    : static_cast<int>(random.Below(static_cast<uint64_t>(leaves)));
      expected[leaf[host]].insert(absl::StrCat("h", host));
    }
    const MeasuredSwitches found = SwitchesOf(Made(hosts, /*noise=*/0.15, seed, [&](int a, int b) {
      return leaf.at(a) == leaf.at(b) ? 8.0 : 13.0;
    }));
    ASSERT_EQ(found.why_unknown, "") << "seed " << seed << ", " << hosts << " hosts";
    std::set<std::set<std::string>> groups;
    for (const auto& [number, names] : expected) {
      groups.insert(names);
    }
    EXPECT_EQ(Leaves(found.tree), groups) << "seed " << seed;
    EXPECT_NEAR(found.near_us, 8.0, 1.2);
    EXPECT_NEAR(found.far_us, 13.0, 2.0);
  }
}

TEST(MeasuredSwitches, SwitchesBelowASwitchAreFoundToo) {
  // Two pods of two leaves of three hosts.
  const MeasuredSwitches found = SwitchesOf(Made(12, 0.05, 1, [](int a, int b) {
    return a / 6 != b / 6 ? 40.0 : a / 3 != b / 3 ? 12.0 : 6.0;
  }));
  ASSERT_EQ(found.why_unknown, "");
  EXPECT_EQ(found.tree.AddressOf("h0"), "measured.measured-1.measured-1-1");
  EXPECT_EQ(found.tree.AddressOf("h4"), "measured.measured-1.measured-1-2");
  EXPECT_EQ(found.tree.AddressOf("h11"), "measured.measured-2.measured-2-2");
}

TEST(MeasuredSwitches, AreUnknownAtOneSwitchAndWithTooMuchNoise) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const MeasuredSwitches one = SwitchesOf(Made(16, 0.15, seed, [](int, int) { return 8.0; }));
    EXPECT_THAT(one.why_unknown, HasSubstr("16 hosts show no groups")) << "seed " << seed;
    const MeasuredSwitches noisy =
        SwitchesOf(Made(16, 3, seed, [](int a, int b) { return a / 8 == b / 8 ? 8.0 : 10.0; }));
    EXPECT_NE(noisy.why_unknown, "") << "seed " << seed;
  }
}

TEST(MeasuredSwitches, AreUnknownWhereNearnessIsNotTransitive) {
  // A ring: each host is near to its neighbours alone.
  const MeasuredSwitches ring = SwitchesOf(Made(
      8, 0, 1, [](int a, int b) { return (a + 1) % 8 == b || (b + 1) % 8 == a ? 5.0 : 20.0; }));
  EXPECT_THAT(ring.why_unknown, HasSubstr("show no groups"));
}

TEST(MeasuredSwitches, APairWithoutALatencyAndTooFewHostsAreUnknown) {
  Latencies latencies = Made(6, 0, 1, [](int a, int b) { return a / 3 == b / 3 ? 5.0 : 20.0; });
  EXPECT_EQ(SwitchesOf(latencies).why_unknown, "");
  latencies.us[4][1] = -1;
  EXPECT_EQ(SwitchesOf(latencies).why_unknown, "") << "the other direction is known";
  latencies.us[1][4] = -1;
  EXPECT_EQ(SwitchesOf(latencies).why_unknown, "the latency between h1 and h4 is not known");
  EXPECT_NE(SwitchesOf(Made(2, 0, 1, [](int, int) { return 5.0; })).why_unknown, "");
  EXPECT_NE(SwitchesOf(Latencies()).why_unknown, "");
}

}  // namespace
}  // namespace dtrain::launcher::measured_switches_test
