// The thread of an NCCL group that talks with the other ranks through the store, so that the
// watchdog, which finishes Works, never waits for the store.
//
// It looks now and then for a peer that gave up and for questions, and answers those about what
// this rank's device is in or through. A group without a store has no thread. Thread-safe; the
// destructor waits for a call to the store that is under way (kStoreBound).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "comm/nccl/nccl_arrivals.h"

namespace dtrain::comm {

class NcclPeers {
 public:
  // Looks every `interval`.
  NcclPeers(NcclArrivals arrivals, absl::Duration interval);
  NcclPeers(const NcclPeers&) = delete;
  NcclPeers& operator=(const NcclPeers&) = delete;
  ~NcclPeers();

  // The device is in this collective.
  void Entered(uint64_t sequence, const std::string& what);
  // The device is through all collectives before `sequence`.
  void FinishedBefore(uint64_t sequence);
  // Has the others say whether they are in `sequence`. Returns at once.
  void Ask(uint64_t sequence);
  // A peer's "rank 3: reason", when one gave up.
  std::optional<std::string> abort() const;

  // These wait for the store, kStoreBound each.
  std::string NameOf(int rank) const { return arrivals_.NameOf(rank); }
  std::string Explain(uint64_t sequence, const std::string& what) const {
    return arrivals_.Explain(sequence, what);
  }
  // Tells the peers that this rank gave up. It asks and answers nothing afterwards.
  void AnnounceAbort(const std::string& reason);

 private:
  void Run();
  // The answer about `sequence`; nullopt: the device is not in it yet.
  std::optional<std::string> Answer(uint64_t sequence) const;
  void AskAll(const std::vector<uint64_t>& sequences);
  void Look();

  NcclArrivals arrivals_;  // Its Announce and Look belong to the thread alone.
  const absl::Duration interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool resting_ = false;  // The group has ended.
  std::vector<uint64_t> to_ask_;
  uint64_t finished_before_ = 0;
  uint64_t entered_ = 0;  // Sequence + 1; 0: none.
  std::string entered_what_;
  std::optional<std::string> abort_;
  std::thread thread_;
};

}  // namespace dtrain::comm
