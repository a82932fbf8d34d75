#include "tests/runtime/testing/fault_witness.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace dtrain::testing {
namespace {

// What the handler reads: set before it is installed.
std::atomic<int> fault_count{0};
int first_fault[2] = {-1, -1};  // A pipe: a handler may write, but not notify.
struct sigaction behind;

void OnSignal(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (fault_count.fetch_add(1) == 0) {
    const char byte = 1;
    const ssize_t written = write(first_fault[1], &byte, 1);
    static_cast<void>(written);
  }
  errno = error;
  behind.sa_sigaction(signal, info, context);
}

}  // namespace

FaultWitness::FaultWitness(std::function<void()> on_first) {
  fault_count = 0;
  DT_CHECK(pipe2(first_fault, O_CLOEXEC) == 0);
  thread_ = std::thread([on_first = std::move(on_first)] {
    char byte = 0;
    while (read(first_fault[0], &byte, 1) < 0 && errno == EINTR) {
    }
    on_first();
  });
  struct sigaction before;
  DT_CHECK(sigaction(SIGSEGV, nullptr, &before) == 0);
  DT_CHECK((before.sa_flags & SA_SIGINFO) != 0);  // Else nobody handles faults.
  behind = before;
  struct sigaction action = before;
  action.sa_sigaction = OnSignal;
  DT_CHECK(sigaction(SIGSEGV, &action, nullptr) == 0);
}

FaultWitness::~FaultWitness() {
  sigaction(SIGSEGV, &behind, nullptr);
  close(first_fault[1]);
  thread_.join();
  close(first_fault[0]);
}

int FaultWitness::faults() const { return fault_count; }

}  // namespace dtrain::testing
