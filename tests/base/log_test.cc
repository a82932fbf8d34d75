#include "base/log.h"

#include <unistd.h>

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace dtrain::log_test {
namespace {

using ::testing::AllOf;
using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LogLevelFromName, KnowsFourNamesAndListsThem) {
  EXPECT_EQ(*LogLevelFromName("debug"), LogLevel::kDebug);
  EXPECT_EQ(*LogLevelFromName("info"), LogLevel::kInfo);
  EXPECT_EQ(*LogLevelFromName("warning"), LogLevel::kWarning);
  EXPECT_EQ(*LogLevelFromName("error"), LogLevel::kError);
  EXPECT_EQ(std::string(LogLevelFromName("Warning").status().message()),
            "log level \"Warning\" is unknown; allowed: debug, info, warning, error");
}

// A process reads the variable only once, so each value needs a process of its own: the style
// "threadsafe" starts one for each statement.
class LogDeathTest : public ::testing::Test {
 protected:
  LogDeathTest() { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  ~LogDeathTest() override { unsetenv("DTRAIN_LOG_LEVEL"); }

  [[noreturn]] static void WriteOneLineOfEachLevel() {
    DT_LOG(Debug) << "debug line";
    DT_LOG(Info) << "info line";
    DT_LOG(Warning) << "warning line";
    DT_LOG(Error) << "error line";
    _exit(0);
  }
};

TEST_F(LogDeathTest, TheEnvironmentChoosesTheLeastLevel) {
  setenv("DTRAIN_LOG_LEVEL", "debug", 1);
  EXPECT_EXIT(WriteOneLineOfEachLevel(), ExitedWithCode(0), HasSubstr("debug line"));
  setenv("DTRAIN_LOG_LEVEL", "error", 1);
  EXPECT_EXIT(WriteOneLineOfEachLevel(), ExitedWithCode(0),
              AllOf(HasSubstr("error line"), Not(HasSubstr("warning line"))));
  unsetenv("DTRAIN_LOG_LEVEL");
  EXPECT_EXIT(WriteOneLineOfEachLevel(), ExitedWithCode(0),
              AllOf(HasSubstr("info line"), Not(HasSubstr("debug line"))));
}

TEST_F(LogDeathTest, AnUnknownLevelIsSaidInOneLineAndMeansInfo) {
  setenv("DTRAIN_LOG_LEVEL", "loud", 1);
  EXPECT_EXIT(WriteOneLineOfEachLevel(), ExitedWithCode(0),
              AllOf(HasSubstr("DTRAIN_LOG_LEVEL: log level \"loud\" is unknown; allowed: debug"),
                    HasSubstr("info line"), Not(HasSubstr("debug line"))));
}

}  // namespace
}  // namespace dtrain::log_test
