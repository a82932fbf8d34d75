// The module's buffers on all ranks (`module_buffers`). Each rank's forward changes its own, such
// as BatchNorm's statistics.
//
// With "broadcast" or "average" the ranks make them one set after each step in which any rank's
// have changed; steps of a model whose buffers stay as they are exchange nothing. With "local" they
// stay apart, and rank 0's are lent to all for an evaluation. On a GPU everything here is queued on
// the compute stream and the group's: the host waits for nothing. Driven by the thread that trains.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "comm/group.h"
#include "comm/nccl/device_group.h"
#include "runtime/device/device.h"
#include "runtime/model/flat_parameters.h"

namespace dtrain {

class ModuleBuffers {
 public:
  enum class Policy : uint8_t { kBroadcast, kAverage, kLocal };

  // The groups of the ranks. `of_devices` is null unless they train on GPUs.
  struct Ranks {
    comm::Group& hosts;
    comm::DeviceGroup* of_devices;
    const Device& device;
  };
  // REQUIRES: all ranks have the same buffers, which lie where they stay; all outlive this object.
  ModuleBuffers(const std::vector<NamedTensor>& buffers, Policy policy, const Ranks& ranks);
  ~ModuleBuffers();
  ModuleBuffers(const ModuleBuffers&) = delete;
  ModuleBuffers& operator=(const ModuleBuffers&) = delete;

  // Whether this rank's may be another set than the others', at the end of a step.
  bool Changed();
  // FailedPrecondition names a buffer that is in other memory (set_data) than at first: graphs that
  // were captured would go on with the old one.
  absl::Status CheckInPlace() const;
  // Collective, when Changed on any rank: one set for all.
  absl::Status MakeOneSet();
  // Takes the present buffers of the ranks for one set. Called after MakeOneSet too.
  void Remember();

  // Collective: makes one set where ranks have several, or lends rank 0's until EndEvaluation.
  absl::Status BeginEvaluation();
  void EndEvaluation();

  // For CUDA graphs, whose launches move no version counter of LibTorch's: finds the buffers that a
  // closure writes to while it is captured, by the counters before it. NoteWrites then counts each
  // launch as these writes.
  std::vector<int64_t> Versions() const;
  std::vector<bool> WrittenSince(const std::vector<int64_t>& versions) const;
  void NoteWrites(const std::vector<bool>& written);

 private:
  void FindChanged();  // Finds the buffers that have changed.
  bool alone() const { return buffers_.empty() || ranks_.hosts.size() == 1; }
  absl::StatusOr<std::vector<bool>> ChangedOnAny();
  // Bytes through which buffers travel.
  absl::StatusOr<at::Tensor> Memory(int64_t bytes);
  absl::Status Spread(const std::vector<bool>& which, bool average);

  const std::vector<NamedTensor>& buffers_;
  const Policy policy_;
  const Ranks ranks_;
  const std::vector<const void*> first_addresses_;
  std::vector<int64_t> versions_;       // At Remember.
  std::vector<const void*> addresses_;  // At Remember: set_data moves no counter.
  std::vector<bool> changed_;           // Since then.
  // at::batch_norm writes to buffers and moves no counter of LibTorch's. Those of torch's layers
  // show by the layer's own counter, others in the first steps, in which buffers are compared with
  // copies: they count as changed in every later step.
  const std::vector<int> counters_;  // By buffer: its layer's counter among the buffers, or -1.
  std::vector<bool> unseen_;
  std::vector<at::Tensor> copies_;  // At Remember; empty after these steps.
  int64_t steps_ = 0;
  std::shared_ptr<DeviceMemory> memory_;  // On a GPU that has made one set; else null.
  std::vector<at::Tensor> own_;           // While rank 0's are lent.
};

}  // namespace dtrain
