// A SymmetricBuffer outlives its group: training goes on in the same memory over the next group.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/symmetric_buffer.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::rebuilt_group_test {
namespace {

using ::dtrain::testing::RankContext;
using ::dtrain::testing::RankResult;
using ::dtrain::testing::RunRanks;

constexpr size_t kFloats = size_t{300} << 10;
constexpr char kBufferName[] = "rebuilt-weights";

enum class Over { kShm, kTcp };

class RebuiltGroupTest : public ::testing::TestWithParam<Over> {
 protected:
  static GroupOptions Options(const RankContext& context, uint64_t epoch) {
    GroupOptions options = context.group_options();
    options.allow_shared_memory = GetParam() == Over::kShm;
    options.network = Network::kTcp;
    options.epoch = epoch;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, RebuiltGroupTest, ::testing::Values(Over::kShm, Over::kTcp),
                         [](const auto& tested) {
                           return tested.param == Over::kShm ? "Shm" : "Tcp";
                         });

// How many memory areas of this process view a buffer of that name, its own or a peer's; and where
// its own begins in `own`, found by address.
int Views(const void* own, bool* own_found) {
  std::ifstream maps("/proc/self/maps");
  const std::string start = absl::StrFormat("%x-", reinterpret_cast<uintptr_t>(own));
  int views = 0;
  *own_found = false;
  for (std::string line; std::getline(maps, line);) {
    if (absl::StrContains(line, kBufferName)) {
      ++views;
      *own_found = *own_found || absl::StartsWith(line, start);
    }
  }
  return views;
}

absl::Status ExpectViews(const SymmetricBuffer& buffer, int want) {
  bool own = false;
  const int views = Views(buffer.data(), &own);
  if (!own || views != want) {
    return absl::InternalError(absl::StrFormat("%d views of the buffer, want %d; its own is %s",
                                               views, want, own ? "in place" : "gone"));
  }
  return absl::OkStatus();
}

float First(size_t i, int rank) { return static_cast<float>(i % 61) + static_cast<float>(rank); }

// All-reduces the buffer; every element must become `want` of it.
template <typename Want>
absl::Status ReduceAndCompare(Group& group, const SymmetricBuffer& buffer, Want want) {
  auto* const values = static_cast<float*>(buffer.data());
  DT_ASSIGN_OR_RETURN(const Work work,
                      group.AllReduce({values, kFloats * 4}, ReduceOp::kSum, {.name = "bucket"}));
  DT_RETURN_IF_ERROR(work.Wait());
  for (size_t i = 0; i < kFloats; ++i) {
    if (values[i] != want(i)) {
      return absl::InternalError(absl::StrFormat("epoch %d: element %d is %g, want %g",
                                                 group.epoch(), i, values[i], want(i)));
    }
  }
  return absl::OkStatus();
}

TEST_P(RebuiltGroupTest, GoesOnInTheSameMemoryWithWhatItHolds) {
  const auto results = RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(kFloats * 4, kBufferName));
    void* const address = buffer->data();
    auto* const values = static_cast<float*>(address);
    for (size_t i = 0; i < kFloats; ++i) {
      values[i] = First(i, context.rank);
    }
    float factor = 1;
    for (uint64_t epoch = 0; epoch < 4; ++epoch, factor *= 3) {
      DT_ASSIGN_OR_RETURN(const auto group,
                          CreateHostGroup(context.store, Options(context, epoch)));
      DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
      DT_RETURN_IF_ERROR(ExpectViews(*buffer, GetParam() == Over::kShm ? context.size : 1));
      // Nothing writes the buffer between epochs, so each sum is over the sums before.
      DT_RETURN_IF_ERROR(ReduceAndCompare(
          *group, *buffer, [&](size_t i) { return factor * (3 * First(i, 0) + 3); }));
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
      registration.reset();
      DT_RETURN_IF_ERROR(ExpectViews(*buffer, 1));
      if (buffer->data() != address) {
        return absl::InternalError("the buffer has moved");
      }
    }
    return absl::OkStatus();
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// The registration ends with its own call or with its group, in either order.
TEST_P(RebuiltGroupTest, ABufferMayOutliveARegistrationThatOutlivesItsGroup) {
  const auto results = RunRanks({.size = 2}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(kFloats * 4, kBufferName));
    auto* const values = static_cast<float*>(buffer->data());
    std::unique_ptr<Registration> before;
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, Options(context, epoch)));
      DT_ASSIGN_OR_RETURN(auto registration, group->Register(buffer));
      for (size_t i = 0; i < kFloats; ++i) {
        values[i] = First(i, context.rank);
      }
      DT_RETURN_IF_ERROR(
          ReduceAndCompare(*group, *buffer, [](size_t i) { return 2 * First(i, 0) + 1; }));
      DT_RETURN_IF_ERROR(group->Barrier(Deadline::Infinite()));
      group.reset();
      before = std::move(registration);
    }
    before.reset();
    return ExpectViews(*buffer, 1);
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

// Rank 2 of 3 registers and leaves; the others may be in either call when they learn of it.
absl::Status RegisterAndReduce(Group& group, const std::shared_ptr<SymmetricBuffer>& buffer) {
  DT_ASSIGN_OR_RETURN(const auto registration, group.Register(buffer));
  if (group.rank() == 2) {
    return absl::OkStatus();
  }
  const Buffer all{buffer->data(), buffer->bytes()};
  DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce(all, ReduceOp::kSum));
  return work.Wait();
}

// A rank leaves: the others rebuild a smaller group over the same store and go on.
TEST_P(RebuiltGroupTest, SurvivorsGoOnWithoutALostRank) {
  const auto results = RunRanks({.size = 3}, [](RankContext& context) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto buffer, SymmetricBuffer::Create(kFloats * 4, kBufferName));
    auto* const values = static_cast<float*>(buffer->data());
    {
      DT_ASSIGN_OR_RETURN(const auto group, CreateHostGroup(context.store, Options(context, 0)));
      const absl::Status lost = RegisterAndReduce(*group, buffer);
      if (context.rank == 2) {
        return lost;  // This rank ends here without a reason.
      }
      if (lost.ok() || !absl::StrContains(lost.message(), "rank 2")) {
        return absl::InternalError(absl::StrCat("rank 2 left, and: ", lost.ToString()));
      }
    }
    DT_RETURN_IF_ERROR(ExpectViews(*buffer, 1));
    for (size_t i = 0; i < kFloats; ++i) {  // Values as if restored from a checkpoint.
      values[i] = First(i, context.rank);
    }
    GroupOptions options = Options(context, 1);
    options.size = 2;
    DT_ASSIGN_OR_RETURN(const auto group, CreateHostGroup(context.store, options));
    DT_ASSIGN_OR_RETURN(const auto registration, group->Register(buffer));
    DT_RETURN_IF_ERROR(
        ReduceAndCompare(*group, *buffer, [](size_t i) { return 2 * First(i, 0) + 1; }));
    return group->Barrier(Deadline::Infinite());
  });
  for (const RankResult& result : results) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

}  // namespace
}  // namespace dtrain::comm::rebuilt_group_test
