#include "launcher/machine.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::launcher::machine_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kForeign[] = "203.0.113.77";  // RFC 5737 keeps it for documentation.

TEST(CheckOwnAddress, TakesTheAddressesAndNamesOfThisHost) {
  EXPECT_TRUE(CheckOwnAddress("--local-addr", "127.0.0.1").ok());
  EXPECT_TRUE(CheckOwnAddress("--local-addr", "localhost").ok());
}

TEST(CheckOwnAddress, RefusesOthersInOneLineWithTheAddressesThatThereAre) {
  EXPECT_THAT(DescribeOwnAddresses(), HasSubstr("127.0.0.1 ("));
  for (const std::string address :
       {kForeign, "0.0.0.0", "::", "-oProxyCommand=x", "a b", "$(id)", "::1::"}) {
    const absl::Status refused = CheckOwnAddress("--local-addr", address);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << address << ": " << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr("--local-addr is \"" + address + "\""),
                      HasSubstr(DescribeOwnAddresses()), Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(std::string(CheckOwnAddress("--local-addr", "a\nb").message()),
              HasSubstr("is \"a\\nb\""));
}

// RFC 2606 keeps .invalid for names that do not exist. Where the name service cannot be reached,
// that is found at once or takes longer than the check waits.
TEST(CheckOwnAddress, RefusesANameThatDoesNotExist) {
  const absl::Status refused = CheckOwnAddress("--local-addr", "foo.invalid");
  EXPECT_TRUE(absl::IsInvalidArgument(refused) || absl::IsDeadlineExceeded(refused) ||
              absl::IsUnavailable(refused))
      << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--local-addr"));
}

}  // namespace
}  // namespace dtrain::launcher::machine_test
