// Slurm's own expansion of host lists beside ours: `scontrol show hostnames`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/job_env.h"
#include "base/numeric/prng.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::host_names_test {
namespace {

constexpr uint64_t kSeed = 20261126;

class HostNames : public ::testing::Test {
 protected:
  void SetUp() override {
    if (access("/usr/bin/scontrol", X_OK) != 0) {
      GTEST_SKIP() << "scontrol is not installed (./dev deps test): THIS CASE DID NOT RUN";
    }
    // scontrol reads a configuration first, whatever it is asked.
    std::ofstream(folder_.path() + "/slurm.conf")
        << "ClusterName=t\nSlurmctldHost=localhost\nNodeName=n1\n";
  }
  // Slurm's names; empty for a list that it refuses.
  std::vector<std::string> Slurms(const std::string& list) const {
    const std::string command = absl::StrFormat(
        "SLURM_CONF=%s/slurm.conf /usr/bin/scontrol show hostnames '%s' 2>/dev/null",
        folder_.path(), list);
    const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
    std::string text;
    std::array<char, 4096> chunk{};
    for (size_t got = 0; (got = fread(chunk.data(), 1, chunk.size(), pipe.get())) > 0;) {
      text.append(chunk.data(), got);
    }
    if (absl::StrContains(text, "Invalid hostlist")) {
      return {};
    }
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }
  static std::vector<std::string> Ours(const std::string& list) {
    const auto hosts = ExpandHostList(list);
    EXPECT_TRUE(hosts.ok()) << hosts.status();
    return hosts.value_or(std::vector<std::string>{});
  }

  TempDir folder_ = *TempDir::Create(::testing::TempDir());
};

TEST_F(HostNames, AreSlurmsForATable) {
  for (const char* const list :
       {"a", "a,b", "gpu-[007-009,011],a,b[1-2]c[3-4]", "n[08-10]", "n[9-11]", "n[1-3,2]",
        "n[10,2]", "[1-2]", "a[1-2][3-4]", "n[09-011]", "n[001-3]", "a-b.c[1]", "n1,n1",
        "rack[0-1]-n[00-03]", "a,,b"}) {
    EXPECT_EQ(Ours(list), Slurms(list)) << list;
  }
}

// One to three patterns of a name and at most two brackets: with three, Slurm 22.05 counts the
// first fastest of the last two.
std::string RandomList(SplitMix64& random) {
  const auto below = [&random](uint64_t bound) { return random.Below(bound); };
  std::string list;
  for (uint64_t pattern = 0, patterns = 1 + below(3); pattern < patterns; ++pattern) {
    absl::StrAppend(&list, pattern == 0 ? "" : ",");
    const uint64_t brackets = below(3);
    absl::StrAppend(&list, std::array{"n", "gpu-", "rack7n", "a.b"}.at(below(4)));
    if (brackets == 0) {
      absl::StrAppend(&list, below(300));
    }
    for (uint64_t bracket = 0; bracket < brackets; ++bracket) {
      absl::StrAppend(&list, bracket == 0 ? "[" : "x[");
      for (uint64_t range = 0, ranges = 1 + below(3); range < ranges; ++range) {
        const uint64_t first = below(120);
        const int width = static_cast<int>(below(5));
        absl::StrAppendFormat(&list, "%s%0*d", range == 0 ? "" : ",", width, first);
        if (below(2) == 0) {
          absl::StrAppendFormat(&list, "-%0*d", width, first + below(15));
        }
      }
      absl::StrAppend(&list, "]");
    }
  }
  return list;
}

TEST_F(HostNames, AreSlurmsFor200RandomLists) {
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  SplitMix64 random(kSeed);
  for (int i = 0; i < 200; ++i) {
    const std::string list = RandomList(random);
    const std::vector<std::string> slurms = Slurms(list);
    ASSERT_FALSE(slurms.empty()) << list;
    EXPECT_EQ(Ours(list), slurms) << list;
  }
}

// Where nodes meet is the first name, which is the same for any order.
TEST_F(HostNames, BeginAsSlurmsWithThreeBrackets) {
  const std::string list = "a[1-2]b[3-4]c[5-6]";
  std::vector<std::string> ours = Ours(list);
  std::vector<std::string> slurms = Slurms(list);
  ASSERT_EQ(slurms.size(), 8U);
  EXPECT_EQ(ours.front(), slurms.front());
  std::sort(ours.begin(), ours.end());
  std::sort(slurms.begin(), slurms.end());
  EXPECT_EQ(ours, slurms);
}

TEST_F(HostNames, AreRefusedWhereSlurmRefusesThem) {
  for (const char* const list : {"n[]", "n[2-1]", "n[1-2-3]", "n[a]", "n[1,]", "n[1-2],m[[1]]",
                                 "n[0-4294967295]", "n[7-0x9]"}) {
    EXPECT_TRUE(Slurms(list).empty()) << list;
    const auto hosts = ExpandHostList(list);
    ASSERT_FALSE(hosts.ok()) << list;
    EXPECT_THAT(std::string(hosts.status().message()), ::testing::HasSubstr(list));
  }
}

}  // namespace
}  // namespace dtrain::launcher::host_names_test
