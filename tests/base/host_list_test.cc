// Slurm's host lists, as `scontrol show hostnames` expands them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/job_env.h"

namespace dtrain::host_list_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> Expand(const std::string& text) {
  const auto hosts = ExpandHostList(text);
  EXPECT_TRUE(hosts.ok()) << hosts.status();
  return hosts.value_or(std::vector<std::string>{});
}

std::string ErrorOf(const std::string& text) {
  const auto hosts = ExpandHostList(text);
  return hosts.ok() ? "expanded" : std::string(hosts.status().message());
}

TEST(ExpandHostList, KeepsPaddingAndOrder) {
  EXPECT_THAT(Expand("gpu-[007-009,011],a"),
              ElementsAre("gpu-007", "gpu-008", "gpu-009", "gpu-011", "a"));
  EXPECT_THAT(Expand("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
}

TEST(ExpandHostList, TakesTheProductOfSeveralBracketsLeftToRight) {
  EXPECT_THAT(Expand("b[1-2]c[3-4]d"), ElementsAre("b1c3d", "b1c4d", "b2c3d", "b2c4d"));
}

TEST(ExpandHostList, TakesPlainNamesAndNothing) {
  EXPECT_THAT(Expand("a,b"), ElementsAre("a", "b"));
  EXPECT_THAT(Expand(""), IsEmpty());
}

TEST(ExpandHostList, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf("n[1-2"), HasSubstr("unbalanced brackets"));
  EXPECT_THAT(ErrorOf("n1-2]"), HasSubstr("unbalanced brackets"));
  EXPECT_THAT(ErrorOf("n[[1]]"), HasSubstr("unbalanced brackets"));
  for (const char* const text :
       {"n[]", "n[2-1]", "n[a]", "n[1-2-3]", "n[-1]", "n[1,]", "n[+1-2]", "n[ 1-2]", "n[1- 2]"}) {
    EXPECT_THAT(ErrorOf(text), HasSubstr("bad range")) << text;
  }
}

TEST(ExpandHostList, RefusesListsThatWouldFillTheMemory) {
  EXPECT_THAT(ErrorOf("n[0-4294967295]"), HasSubstr("bad range"));
  EXPECT_THAT(ErrorOf("n[1-60000]m[1-60000]"), HasSubstr("more than 65536 names"));
  EXPECT_THAT(ErrorOf("a[1-60000],b[1-60000]"), HasSubstr("more than 65536 names"));
}

TEST(ExpandHostList, Takes65536Names) {
  EXPECT_EQ(Expand("n[1-65536]").size(), 65536U);
  EXPECT_THAT(ErrorOf("n[0-65536]"), HasSubstr("bad range"));
  EXPECT_EQ(Expand("n[1-256]m[1-256]").size(), 65536U);
  EXPECT_THAT(ErrorOf("n[1-256]m[0-256]"), HasSubstr("more than 65536 names"));
  EXPECT_EQ(Expand("a[1-65535],b").size(), 65536U);
  EXPECT_THAT(ErrorOf("a[1-65535],b,c"), HasSubstr("more than 65536 names"));
  EXPECT_THAT(Expand("n[7]"), ElementsAre("n7"));
}

}  // namespace
}  // namespace dtrain::host_list_test
