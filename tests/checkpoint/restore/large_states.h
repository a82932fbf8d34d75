// A checkpoint whose states have several blocks, for tests of how TensorReads reads them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/status.h"
#include "checkpoint/restore/tensor_reads.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint {

// Step 2 of two ranks; the tests read rank 0's "master".
class LargeStatesTest : public ::testing::Test {
 protected:
  static constexpr size_t kScale = 4096;                // 8 MiB of each state of a rank.
  static constexpr int64_t kElements = 16 * 4096 * 32;  // FakeState's, of one state.
  static constexpr uint64_t kStateBytes = kElements * 4;

  void SetUp() override {
    storage_ = *OpenPosixStorage(folder_.path());
    const auto epoch = BeginEpoch(*storage_, "job", 2, std::nullopt);
    DT_CHECK_OK(epoch.status());
    DT_CHECK(SaveOnRanks(*storage_, OptionsFor(*epoch), 2, 2, kScale)[0].durable());
  }
  static absl::Status Ask(TensorReads& reads, uint64_t offset, absl::Span<std::byte> into) {
    return reads.AddState(0, {"master", DType::kFloat32, {kElements}}, offset, into);
  }
  bool IsSaved(uint64_t offset, absl::Span<const std::byte> read) {
    return std::memcmp(read.data(), state_.source().state[0].bytes.data() + offset, read.size()) ==
           0;
  }

  const TemporaryFolder folder_{TemporaryFolder::Where::kMemory};
  std::unique_ptr<Storage> storage_;
  FakeState state_{2, 0, 2, kScale};
};

}  // namespace dtrain::checkpoint
