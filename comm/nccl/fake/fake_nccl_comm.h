// One rank's communicator in this process, and the guard of one call. Only the NCCL fake's own
// files use them.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_nccl.h"

namespace dtrain::comm {

class FakeNcclComm;

// A range of pages that is registered. Its address is the handle, and it counts the ranges within
// it that were registered.
struct FakeRegistration {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  int uses = 0;
};

// The job of a CommSplit, which stores what it made when it ends.
struct FakeSplit {
  NcclComm** slot = nullptr;
  int color = 0;
  std::shared_ptr<FakeNcclComm> made;  // Null if the rank gave no colour.
  bool joined = false;
};

// One rank's communicator in this process.
class FakeNcclComm {
 public:
  std::atomic<bool> in_call{false};
  std::atomic<bool> aborted{false};
  std::atomic<NcclResult> error{NcclResult::kSuccess};
  std::atomic<int> polls_left{0};
  std::atomic<int> in_flight{0};     // Operations on streams that have not ended.
  FakeSharedComm* shared = nullptr;  // Null if a split ended before it was finished.
  int device = 0;
  int rank = 0;
  int ranks = 0;
  const char* name = nullptr;  // The pointer that NCCL keeps.
  std::string named;           // The text at that pointer when NCCL got it.
  bool ready = false;
  bool finalizing = false;
  std::unique_ptr<FakeSplit> split;  // The one that is under way, or null.
  std::vector<std::unique_ptr<FakeRegistration>> registrations;
  std::map<int, double> factors;  // The factors of pre-multiplied sums, by op.
  int next_op = static_cast<int>(NcclReduceOp::kMin) + 2;
  std::unique_ptr<FakeExchange> exchange;
};

// Marks the communicator as used by this thread, and notes a violation if another uses it.
class FakeNccl::Use {
 public:
  Use(FakeNccl* api, NcclComm* handle, const char* call) : comm_(api->Find(handle, call)) {
    if (comm_ != nullptr && comm_->in_call.exchange(true)) {
      api->Violation(std::string(call) + " while another thread uses the communicator");
    }
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    if (comm_ != nullptr) {
      comm_->in_call = false;
    }
  }
  const std::shared_ptr<FakeNcclComm>& comm() const { return comm_; }

 private:
  const std::shared_ptr<FakeNcclComm> comm_;
};

}  // namespace dtrain::comm
