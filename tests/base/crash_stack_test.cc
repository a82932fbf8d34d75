// A process that crashes leaves its stack on stderr and ends as without; one that is asked goes on.
#include "base/system/crash_stack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>

namespace dtrain::crash_stack_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(CrashStack, ACrashWritesTheStackAndEndsTheProcessByItsSignal) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGILL}) {
    EXPECT_EXIT(
        {
          WriteStackAtCrash();
          raise(signal);
        },
        ::testing::KilledBySignal(signal), "stack at signal [0-9]+\n(.*\n)+end of stack");
  }
}

struct sigaction crash_handler;
void CallTheHandlerBefore(int signal) { crash_handler.sa_handler(signal); }

TEST(CrashStack, AHandlerThatWasInstalledLaterMayPassTheSignalOn) {
  EXPECT_EXIT(
      {
        WriteStackAtCrash();
        struct sigaction later {};
        later.sa_handler = CallTheHandlerBefore;
        sigaction(SIGSEGV, &later, &crash_handler);
        raise(SIGSEGV);
      },
      ::testing::KilledBySignal(SIGSEGV), "stack at signal 11\n(.*\n)+end of stack");
}
#endif

int asked = 0;
void Note(int signal) { asked = signal; }

TEST(CrashStack, ARequestWritesTheStackAndTheProcessGoesOn) {
  WriteStackAtSignal(SIGUSR2, Note);
  ::testing::internal::CaptureStderr();
  raise(SIGUSR2);
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(asked, SIGUSR2);
  EXPECT_THAT(text, AllOf(HasSubstr("stack at signal 12\n"), HasSubstr("end of stack\n"),
                          HasSubstr("[0x")));
  std::signal(SIGUSR2, SIG_DFL);
}

}  // namespace
}  // namespace dtrain::crash_stack_test
