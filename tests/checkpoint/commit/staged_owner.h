// Tests of StagedSource share this: the memory of an engine with snapshots of it, and a device that
// copies late.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/numeric/prng.h"
#include "base/status.h"
#include "checkpoint/commit/staged_source.h"

namespace dtrain::checkpoint::staged_testing {

using Bytes = std::vector<std::byte>;

inline constexpr size_t kSegment = kSegmentBytes;
// Tensors within a segment, over several, ending and beginning at their borders, and empty.
inline constexpr size_t kSizes[] = {5,        kSegment - 5, 3, 0, 2 * kSegment + 1, 17, 17,
                                    kSegment, 3 * kSegment, 1};

// The memory of an engine, and a snapshot of it.
struct Owner {
  std::vector<Bytes> tensors;
  std::vector<Bytes> before;  // Their contents before.

  explicit Owner(uint64_t seed) {
    SplitMix64 random(seed);
    for (const size_t size : kSizes) {
      Bytes& bytes = tensors.emplace_back(size);
      for (size_t at = 0; at < size;) {
        const uint64_t number = random.Next();
        const size_t part = std::min(sizeof(number), size - at);
        std::memcpy(bytes.data() + at, &number, part);
        at += part;
      }
    }
    before = tensors;
  }
  // The first half is the model's, the rest state; `stay` is that of tensor i.
  SpanSource Snapshot(const std::vector<BytesStay>& stay) const {
    SpanSource source;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto size = static_cast<int64_t>(tensors[i].size());
      auto& list = i < tensors.size() / 2 ? source.model : source.state;
      list.push_back({{std::to_string(i), DType::kUInt8, {size}}, tensors[i], stay[i]});
    }
    return source;
  }
  void Change(const std::vector<BytesStay>& stay, BytesStay which) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (stay[i] == which) {
        std::fill(tensors[i].begin(), tensors[i].end(), std::byte{0xee});
      }
    }
  }
};

inline absl::Status Read(StagedSource& source, size_t tensors, size_t tensor, Bytes& into) {
  const auto sink = [&](absl::Span<const std::byte> part) {
    into.insert(into.end(), part.begin(), part.end());
    return absl::OkStatus();
  };
  return tensor < tensors / 2 ? source.GiveModel(tensor, sink)
                              : source.GiveState(tensor - tensors / 2, sink);
}

// All tensors, in the order of `order`.
inline std::vector<Bytes> ReadAll(StagedSource& source, const std::vector<size_t>& order) {
  std::vector<Bytes> read(order.size());
  for (const size_t tensor : order) {
    EXPECT_TRUE(Read(source, order.size(), tensor, read[tensor]).ok());
  }
  return read;
}

inline std::vector<size_t> Order(uint64_t seed) {
  std::vector<size_t> order(std::size(kSizes));
  std::iota(order.begin(), order.end(), size_t{0});
  SplitMix64 random(seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[random.Next() % i]);
  }
  return order;
}

// The tensors as a thread writes them while this one lets `step` and then `update` come.
inline std::vector<Bytes> WrittenBeside(StagedSource& source, uint64_t seed,
                                        absl::FunctionRef<void()> step,
                                        absl::FunctionRef<void()> update) {
  std::vector<Bytes> written;
  std::thread writer([&] {
    if (seed % 2 == 0) {
      source.CopyAhead();
    }
    written = ReadAll(source, Order(seed));
    source.Close();
  });
  source.LetStep(/*may_wait=*/true);
  step();
  source.LetUpdate();
  update();
  writer.join();
  return written;
}

inline std::vector<BytesStay> DrawnStays(uint64_t seed) {
  std::vector<BytesStay> stays;
  SplitMix64 random(seed);
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    stays.push_back(static_cast<BytesStay>(random.Next() % 3));
  }
  return stays;
}

inline const std::vector<BytesStay> kAllLive(std::size(kSizes), BytesStay::kUntilUpdate);

// A device that copies when it is told to, or when somebody waits for it.
class LateDevice final : public StagingDevice {
 public:
  std::byte* MakeBlock() override {
    if (before_block) {
      before_block();
    }
    const std::lock_guard lock(mutex_);
    return lacks_memory ? nullptr
                        : blocks_.emplace_back(std::make_unique<std::byte[]>(kSegment)).get();
  }
  void FreeBlock(std::byte* /*block*/) override { Run(); }
  absl::Status Copy(absl::Span<const BlockPart> parts, std::byte* block) override {
    const std::lock_guard lock(mutex_);
    for (const BlockPart& part : parts) {
      queue_.push_back({block + part.at, part.from});
    }
    return failure;
  }
  // Done before anything that is queued later, and behind older copies to the block.
  absl::Status CopyInOrder(absl::Span<const BlockPart> parts, std::byte* block) override {
    Run();
    const std::lock_guard lock(mutex_);
    for (const BlockPart& part : parts) {
      std::memcpy(block + part.at, part.from.data(), part.from.size());
    }
    return failure;
  }
  absl::Status Await(const std::byte* /*block*/) override {
    ++waits;
    Run();
    return absl::OkStatus();
  }
  void Run() {
    const std::lock_guard lock(mutex_);
    for (const Queued& copy : queue_) {
      std::memcpy(copy.to, copy.from.data(), copy.from.size());
    }
    queue_.clear();
  }

  std::atomic<int> waits{0};
  absl::Status failure;  // What each copy gives.
  bool lacks_memory = false;
  std::function<void()> before_block;  // Called before each block is made.

 private:
  struct Queued {
    std::byte* to;
    absl::Span<const std::byte> from;
  };
  std::mutex mutex_;
  std::vector<Queued> queue_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// Every tensor of `source` that something will change, or every second one, lies on the device.
inline SpanSource OnDevice(SpanSource source, bool all) {
  size_t index = 0;
  for (auto* const tensors : {&source.model, &source.state}) {
    for (NamedTensor& tensor : *tensors) {
      tensor.on_device = tensor.stay != BytesStay::kWithSnapshot && (all || index++ % 2 == 0);
    }
  }
  return source;
}

}  // namespace dtrain::checkpoint::staged_testing
