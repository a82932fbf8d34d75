// A rank that is 20 % slower is named within 30 steps, and nobody in a healthy hour, with the noise
// of real steps: step_times.json has the times of a job's ranks on a machine that runs nothing
// else. Pieces of the recording follow one another in an order that is drawn from a seed, so that
// what belongs together in time stays together.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/json.h"
#include "base/numeric/prng.h"
#include "gtest/gtest.h"
#include "launcher/watch/straggler.h"

namespace dtrain::launcher::straggler_recorded_test {
namespace {

constexpr int kPieceSteps = 100;
constexpr size_t kStepsBetweenHosts = 13;
constexpr double kMicrosecond = 1e-6;

// The phases of each step and rank: data, forward, backward, update.
using Recording = std::vector<std::vector<std::vector<double>>>;

Recording ReadRecording() {
  absl::StatusOr<std::string> text = ReadFile(DTRAIN_STEP_TIMES);
  EXPECT_TRUE(text.ok()) << text.status();
  const absl::StatusOr<Json> json = ParseJson(*text, DTRAIN_STEP_TIMES);
  EXPECT_TRUE(json.ok()) << json.status();
  return json->at("steps").get<Recording>();
}

double Sum(const std::vector<double>& times) { return times[0] + times[1] + times[2] + times[3]; }

// A job of which each two ranks are those of the recording at the same time, and the next two a
// little later: its hosts are equally fast, and what changes slowly changes on all of them.
class ReplayedJob {
 public:
  ReplayedJob(const Recording& recording, int ranks, uint64_t seed)
      : recording_(recording), random_(seed), finder_(ranks) {
    collectors_.resize(static_cast<size_t>(ranks));
    places_.resize(static_cast<size_t>((ranks + 1) / 2));
  }

  // Makes `rank` slower by `share` from here on.
  void Slow(int rank, double share) {
    slow_rank_ = rank;
    slow_ = share;
  }

  std::vector<Straggler> Step() {
    if (step_ % kPieceSteps == 0) {
      const size_t last = kPieceSteps + kStepsBetweenHosts * places_.size();
      const auto first = static_cast<size_t>(random_.Below(recording_.size() - last));
      for (size_t host = 0; host < places_.size(); ++host) {
        places_[host] = first + kStepsBetweenHosts * host;
      }
    }
    std::vector<std::vector<double>> times;
    double longest = 0;
    for (size_t rank = 0; rank < collectors_.size(); ++rank) {
      const auto& both = recording_[places_[rank / 2] + static_cast<size_t>(step_ % kPieceSteps)];
      times.push_back(both[rank % both.size()]);
      for (double& part : times.back()) {
        part *= static_cast<int>(rank) == slow_rank_ ? 1 + slow_ : 1;
      }
      longest = std::max(longest, Sum(times.back()));
    }
    for (size_t rank = 0; rank < collectors_.size(); ++rank) {
      std::vector<BlockTimes> blocks;
      collectors_[rank].Take({.step = step_,
                              .whole_s = longest * kMicrosecond,
                              .data_s = times[rank][0] * kMicrosecond,
                              .forward_s = times[rank][1] * kMicrosecond,
                              .backward_s = times[rank][2] * kMicrosecond,
                              .update_s = times[rank][3] * kMicrosecond},
                             /*cpu_wait=*/0, blocks);
      for (const BlockTimes& block : blocks) {
        finder_.Take(static_cast<int>(rank), block);
      }
    }
    ++step_;
    return finder_.Find();
  }

 private:
  const Recording& recording_;
  SplitMix64 random_;
  StragglerFinder finder_;
  std::vector<BlockCollector> collectors_;
  std::vector<size_t> places_;  // Where each two ranks are in the recording.
  int slow_rank_ = -1;
  double slow_ = 0;
  int64_t step_ = 0;
};

// Whether the slow rank, and nobody else, is named within 30 steps.
bool IsNamed(const Recording& recording, int ranks, uint64_t seed) {
  ReplayedJob job(recording, ranks, seed);
  const int before = 300 + static_cast<int>(seed % kBlockSteps);  // Anywhere in a block.
  for (int step = 0; step < before; ++step) {
    if (!job.Step().empty()) {
      return false;
    }
  }
  const int slow = static_cast<int>(seed) % ranks;
  job.Slow(slow, 0.2);
  std::vector<Straggler> named;
  for (int step = 0; step < 30; ++step) {
    const std::vector<Straggler> found = job.Step();
    named.insert(named.end(), found.begin(), found.end());
  }
  return named.size() == 1 && named.front().rank == slow;
}

TEST(RecordedStragglers, ARankThatIsATwentyPercentSlowerIsNamedWithinThirtySteps) {
  const Recording recording = ReadRecording();
  ASSERT_GE(recording.size(), 2U * kPieceSteps);
  for (const int ranks : {2, 3, 8, 16}) {
    int named = 0;
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      named += IsNamed(recording, ranks, seed) ? 1 : 0;
    }
    EXPECT_GE(named, 99) << ranks << " ranks";
  }
}

TEST(RecordedStragglers, NobodyIsNamedInAHealthyHour) {
  const Recording recording = ReadRecording();
  double seconds = 0;  // A usual step's time.
  for (const auto& step : recording) {
    seconds += std::max(Sum(step[0]), Sum(step[1])) * kMicrosecond;
  }
  seconds /= static_cast<double>(recording.size());
  for (const int ranks : {2, 8}) {
    ReplayedJob job(recording, ranks, static_cast<uint64_t>(ranks));
    int named = 0;
    for (double time = 0; time < 3600; time += seconds) {
      named += static_cast<int>(job.Step().size());
    }
    EXPECT_EQ(named, 0) << ranks << " ranks";
  }
}

}  // namespace
}  // namespace dtrain::launcher::straggler_recorded_test
