// The thread of an NCCL group that talks with the other ranks through the store, so that the
// watchdog, which finishes Works, never waits for the store.
//
// It polls the store for the abort of a peer and for questions. It answers the questions about
// collectives that this rank's device is in or through. A group without a store has no thread.
// Thread-safe; the destructor waits for a call to the store that is under way (kStoreBound).
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
  // Polls the store every `interval`.
  NcclPeers(NcclArrivals arrivals, absl::Duration interval);
  NcclPeers(const NcclPeers&) = delete;
  NcclPeers& operator=(const NcclPeers&) = delete;
  ~NcclPeers();

  // The device is in this collective.
  void Entered(uint64_t sequence, const std::string& what);
  // The device is through all collectives before `sequence`.
  void FinishedBefore(uint64_t sequence);
  // Asks the other ranks whether they are in `sequence`. Returns at once.
  void Ask(uint64_t sequence);
  // "rank 3: reason" if a peer gave up.
  std::optional<std::string> abort() const;

  // The calls below wait for the store, each for kStoreBound at most.
  std::string NameOf(int rank) const { return arrivals_.NameOf(rank); }
  std::string Explain(uint64_t sequence, const std::string& what) const {
    return arrivals_.Explain(sequence, what);
  }
  // Tells the peers that this rank gave up. The thread asks and answers nothing afterwards.
  void AnnounceAbort(const std::string& reason);

 private:
  void Run();
  // The answer to a question about `sequence`; nullopt while the device is not in it yet.
  std::optional<std::string> Answer(uint64_t sequence) const;
  void AskAll(const std::vector<uint64_t>& sequences);
  void Poll();

  NcclArrivals arrivals_;  // Only the thread calls its Announce and Poll.
  const absl::Duration interval_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  bool group_ended_ = false;
  std::vector<uint64_t> to_ask_;  // Sequences.
  uint64_t finished_before_ = 0;
  uint64_t entered_ = 0;  // The sequence + 1 that the device is in; 0: none yet.
  std::string entered_what_;
  std::optional<std::string> abort_;
  std::thread thread_;
};

}  // namespace dtrain::comm
