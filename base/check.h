// DT_CHECK ends the process when it finds a bug in dtrain itself. Thread-safe.
//
// A failed check prints file, line, rank and the streamed values to stderr, runs the crash hooks
// (flight recorder) and ends the process with _exit(70). It is for our bugs only: errors that a
// user, a file or the network can cause are an absl::Status.
#pragma once

#include <sstream>

namespace dtrain::internal {

// Collects the message; its destructor reports and ends the process.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  CheckFailure(const CheckFailure&) = delete;
  CheckFailure& operator=(const CheckFailure&) = delete;
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return message_; }

 private:
  std::ostringstream message_;
};

// Gives the two branches of DT_CHECK's conditional the same type.
struct Voidify {
  void operator&(const std::ostream&) const {}
};

}  // namespace dtrain::internal

namespace dtrain {
// `hook` runs once when a DT_CHECK fails, before the process ends. At most 8 hooks.
void AddCrashHook(void (*hook)());
}  // namespace dtrain

#define DT_CHECK(condition)                              \
  (__builtin_expect(static_cast<bool>(condition), true)) \
      ? (void)0                                          \
      : ::dtrain::internal::Voidify() &                  \
            ::dtrain::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define DT_CHECK_OP_(a, b, op) DT_CHECK((a)op(b)) << " (" << (a) << " vs " << (b) << ") "
#define DT_CHECK_EQ(a, b) DT_CHECK_OP_(a, b, ==)
#define DT_CHECK_LE(a, b) DT_CHECK_OP_(a, b, <=)
#define DT_CHECK_LT(a, b) DT_CHECK_OP_(a, b, <)
#define DT_CHECK_GE(a, b) DT_CHECK_OP_(a, b, >=)
#define DT_CHECK_GT(a, b) DT_CHECK_OP_(a, b, >)
#define DT_CHECK_OK(expr)                                           \
  do {                                                              \
    const ::absl::Status& dt_check_status_ = (expr);                \
    DT_CHECK(dt_check_status_.ok()) << dt_check_status_.ToString(); \
  } while (false)
