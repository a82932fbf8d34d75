#include "runtime/gradients/device_squares.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "kernels/cuda/cuda_table.h"
#include "kernels/optimizer/grad_norm.h"

namespace dtrain {
namespace {

constexpr size_t kWidth = sizeof(double);

int64_t BlocksOf(const DeviceSquares::Run& run) {
  return kernels::NormBlocks(run.begin, run.elements);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSquares>> DeviceSquares::Create(const Device& device,
                                                                     comm::DeviceGroup& group,
                                                                     int64_t room) {
  DT_ASSIGN_OR_RETURN(
      auto memory,
      DeviceMemory::Create(device, static_cast<size_t>(3 * room) * kWidth, "sums of squares"));
  return std::unique_ptr<DeviceSquares>(new DeviceSquares(device, group, room, std::move(memory)));
}

void DeviceSquares::SetRuns(std::vector<Run> runs, bool of_shard) {
  count_ = 0;
  for (Run& run : runs) {
    run.at = count_;
    count_ += BlocksOf(run);
  }
  DT_CHECK_LE(count_, room_);
  runs_ = std::move(runs);
  of_shard_ = of_shard;
  ordered_ = false;
}

void DeviceSquares::SetOrderedRuns(std::vector<Run> runs, int64_t blocks, bool shared_out) {
  DT_CHECK_LE(blocks, room_);
  for (Run& run : runs) {
    DT_CHECK_EQ(run.begin % kernels::kNormBlock, 0);
    run.at = run.begin / kernels::kNormBlock;
  }
  count_ = blocks;
  runs_ = std::move(runs);
  of_shard_ = false;
  ordered_ = true;
  shared_out_ = shared_out;
}

absl::Status DeviceSquares::QueueBlocks(const Run& run) {
  return group_.Then(
      [&kernels = device_.kernels(), run, to = sums() + run.at](comm::CudaStream* stream) {
        return kernels.block_square_sums(run.data, run.begin, run.elements, to,
                                         Device::KernelStream(stream));
      });
}

absl::Status DeviceSquares::QueueRun(size_t run) {
  return ordered_ ? absl::OkStatus() : QueueBlocks(runs_[run]);
}

absl::Status DeviceSquares::QueueOrderedBlocks() {
  const size_t bytes = static_cast<size_t>(count_) * kWidth;
  DT_RETURN_IF_ERROR(group_.Then([this, bytes](comm::CudaStream* stream) {
    return device_.Check(device_.api().FillAsync(sums(), 0, bytes, stream), "cudaMemsetAsync");
  }));
  for (const Run& run : runs_) {
    DT_RETURN_IF_ERROR(QueueBlocks(run));
  }
  if (!shared_out_ || count_ == 0) {
    return absl::OkStatus();
  }
  // Each block is one rank's; the others add zeros, so no order changes a bit.
  return group_
      .AllReduce({sums(), bytes, DType::kFloat64, device_.place()}, comm::ReduceOp::kSum,
                 {.name = "gradient norm"})
      .status();
}

// The tree works in place, and the next backward writes its sums while this step's may still be
// asked for: both get copies.
absl::Status DeviceSquares::Queue(double* sum) {
  if (ordered_) {
    DT_RETURN_IF_ERROR(QueueOrderedBlocks());
  }
  last_runs_ = runs_;
  return group_.Then([this, count = count_, sum](comm::CudaStream* stream) -> absl::Status {
    const size_t bytes = static_cast<size_t>(count) * kWidth;
    double* const scratch = sums() + room_;
    for (double* const copy : {scratch, scratch + room_}) {
      DT_RETURN_IF_ERROR(device_.Check(device_.api().CopyAsync(copy, sums(), bytes, stream),
                                       "cudaMemcpyAsync of sums of squares"));
    }
    return device_.kernels().tree_sum(scratch, count, sum, Device::KernelStream(stream));
  });
}

absl::StatusOr<int64_t> DeviceSquares::FirstNonFinite() const {
  int64_t count = 0;
  for (const Run& run : last_runs_) {
    count = std::max(count, run.at + BlocksOf(run));
  }
  const size_t bytes = static_cast<size_t>(count) * kWidth;
  DT_ASSIGN_OR_RETURN(const auto host, PinnedMemory::Create(device_, bytes));
  DT_RETURN_IF_ERROR(device_.Copy(host->data(), sums() + 2 * room_, bytes));
  DT_RETURN_IF_ERROR(device_.Synchronize());
  const auto* const all = static_cast<const double*>(host->data());
  int64_t first = -1;
  for (const Run& run : last_runs_) {
    const double* const end = all + run.at + BlocksOf(run);
    const double* const bad =
        std::find_if_not(all + run.at, end, [](double value) { return std::isfinite(value); });
    if (bad == end) {
      continue;
    }
    const int64_t block = run.begin / kernels::kNormBlock + (bad - all - run.at);
    const int64_t element = std::max(run.begin, block * kernels::kNormBlock);
    first = first < 0 ? element : std::min(first, element);
  }
  return first;
}

}  // namespace dtrain
