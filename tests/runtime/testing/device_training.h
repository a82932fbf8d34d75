// Trains device_net.h's model on the host or on the fake GPU: what tests of the engine on a device
// compare.
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "dtrain/job.h"
#include "tests/runtime/testing/fake_device.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

struct Way {
  enum class Place { kHost, kNccl, kStaged };
  Place place = Place::kHost;
  int accumulation = 1;
  int steps = 6;
  int bad_step = -1;      // From 0: its loss is infinite on rank 0.
  int empty_step = -1;    // From 0: its loss counts no sample on any rank.
  bool reads = false;     // The closure reads its loss: it waits.
  bool waits = false;     // Steps may wait for the device: the host updates.
  bool segments = false;  // The model has recomputed segments.
  int64_t width = 64;     // The model's.
  bool frozen = false;    // It has frozen weights.
  bool pauses = false;    // Its loss uses Net::c in every second step alone.
  // Before each step but the first a backward of the program's own, whose gradients it then clears
  // or leaves.
  enum class Own { kNone, kCleared, kLeft };
  Own own = Own::kNone;
  bool zero_grad = true;  // EngineOptions::zero_grad.
  std::vector<std::string> more = {};
};

// `way` with more settings.
inline Way With(Way way, const std::vector<std::string>& more) {
  way.more.insert(way.more.end(), more.begin(), more.end());
  return way;
}

struct Outcome {
  std::vector<double> losses, norms, rates, skipped, weights, buffers;
  int waits = 0;             // The host waited for the device, inside steps after the second.
  int64_t far = 0;           // Most bytes of activations in a far tier.
  uint64_t collectives = 0;  // Calls of the group that sums gradients.
};

// A job whose device is the fake, or the host. `context`: null for one rank alone.
absl::StatusOr<std::unique_ptr<Job>> MakeJob(RankContext* context, const std::string& folder,
                                             const Way& way, FakeGpu* gpu);

// Whether a combination of choices, each given by a number, is of the half whose sum is even: among
// these any choice of all factors but one is met, so that all pairs are where there are three. In
// `./dev test long` every combination is tried.
bool IsTried(std::initializer_list<int> choices);

// Trains on `size` processes; what rank 0 saw, after checking that all saw the same.
Outcome OutcomeOf(int size, const Way& way);

// Expects equal bits.
void ExpectSame(const Outcome& outcome, const Outcome& expected);
// The norm's sum may be cut elsewhere than on the host, and with it the clip factor's last bits.
void ExpectNear(const Outcome& device, const Outcome& host, double tolerance);

}  // namespace dtrain::testing
