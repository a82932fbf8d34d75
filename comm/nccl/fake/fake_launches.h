// The room that a device of the NCCL fake has for the kernels of collectives, and the order in
// which they begin.
//
// A kernel of NCCL keeps its multiprocessors until the other ranks' kernels of the same collective
// have run too. If a device has no room for the kernels of two communicators at once, both must
// begin in one order on all ranks, or each rank's first kernel waits for one that cannot begin. By
// default NCCL keeps no such order: a kernel begins when its own stream comes to it. With
// NCCL_LAUNCH_ORDER_IMPLICIT it also waits until the kernels that the host launched before, on
// whatever communicator and stream of the device, have begun. NCCL 2.28.9 does so with CUDA 12.3 or
// newer, by a stream that collects launch events (getImplicitOrder, ncclLaunchPrepare and
// ncclLaunchFinish in src/enqueue.cc).
//
// Two kernels of NCCL often fit beside each other on a GPU. The fake has room for any number unless
// a test asks for less. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>

namespace dtrain::comm {

class FakeLaunches {
 public:
  // `room`: kernels that run at once. `ordered`: they begin in the order of their launches.
  FakeLaunches(int room, bool ordered) : room_(room), ordered_(ordered) {}
  FakeLaunches(const FakeLaunches&) = delete;
  FakeLaunches& operator=(const FakeLaunches&) = delete;

  // The number of the host's next launch on this device, from 1.
  uint64_t Launch();
  // Blocks until the kernel of launch `number` may begin; it then takes its room. 0: a kernel in a
  // graph, whose order is that of its capture. False once `stopped` is true: the kernel does not
  // run, and no other waits for it.
  bool Begin(uint64_t number, const std::function<bool()>& stopped);
  // Gives the room of one kernel back.
  void End();
  // How many kernels their streams have come to so far, whether they have begun or wait for that.
  int arrived() const;

 private:
  bool MayBegin(uint64_t number) const;  // REQUIRES: mutex_ held.

  const int room_;
  const bool ordered_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t launched_ = 0;
  std::set<uint64_t> not_begun_;  // Launches by number.
  int running_ = 0;
  int arrived_ = 0;
};

}  // namespace dtrain::comm
