// Sees faults of this process before whoever handles them: for tests in which a read of closed
// memory must be certain, and must come before something else goes on.
#pragma once

#include <functional>
#include <thread>

namespace dtrain::testing {

// Stands before the handler of SIGSEGV that is installed, and passes each fault on to it. One at a
// time in a process. REQUIRES: that handler exists (an engine watches memory) and stays.
class FaultWitness {
 public:
  // `on_first` runs once, on a thread of its own: when the first fault has come, whose thread then
  // stands in the handler, or at the end, so that nobody waits for a fault that does not come.
  explicit FaultWitness(std::function<void()> on_first);
  FaultWitness(const FaultWitness&) = delete;
  FaultWitness& operator=(const FaultWitness&) = delete;
  ~FaultWitness();

  // So far.
  int faults() const;

 private:
  std::thread thread_;
};

}  // namespace dtrain::testing
