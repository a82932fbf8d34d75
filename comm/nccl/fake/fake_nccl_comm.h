// Internal to the NCCL fake: one rank's communicator in this process, and the guard of one call.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "comm/nccl/fake/fake_fabric.h"
#include "comm/nccl/fake/fake_nccl.h"

namespace dtrain::comm {

// One rank's communicator in this process.
class FakeNcclComm {
 public:
  std::atomic<bool> in_call{false};
  std::atomic<bool> aborted{false};
  std::atomic<NcclResult> error{NcclResult::kSuccess};
  std::atomic<int> polls_left{0};
  FakeSharedComm* shared = nullptr;  // Null while a split is under way.
  int rank = 0;
  int ranks = 0;
  bool ready = false;
  bool finalizing = false;
  std::shared_ptr<FakeNcclComm> split_from;
  int split_color = 0;
  std::set<void*> registrations;
  uintptr_t registered = 0;
  std::map<int, double> factors;  // Of pre-multiplied sums, by op.
  int next_op = static_cast<int>(NcclReduceOp::kMin) + 2;
  std::unique_ptr<FakeExchange> exchange;
};

// Marks the communicator as used by this thread; notices a second one.
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
