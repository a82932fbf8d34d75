#include "comm/collectives/probe_link.h"

#include <algorithm>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/collectives/link_cost.h"
#include "comm/collectives/reduce.h"

namespace dtrain::comm {
namespace {

constexpr size_t kSmall = 64;
constexpr size_t kLarge = size_t{128} << 10;
constexpr int kSmallRounds = 6;
constexpr int kLargeRounds = 4;

class Prober {
 public:
  Prober(Transport& transport, const WaitContext& context)
      : transport_(transport),
        context_(context),
        size_(static_cast<size_t>(transport.size())),
        rank_(static_cast<size_t>(transport.rank())),
        out_(kLarge),
        in_(kLarge) {}

  absl::StatusOr<LinkCost> Run() {
    LinkCost cost;
    DT_ASSIGN_OR_RETURN(cost.step_us, Fastest(kSmallRounds, Neighbours(kSmall)));
    DT_ASSIGN_OR_RETURN(const double small_all, Fastest(kSmallRounds, Everybody(kSmall)));
    DT_ASSIGN_OR_RETURN(const double pair, Fastest(kLargeRounds, Neighbours(kLarge)));
    DT_ASSIGN_OR_RETURN(const double all, Fastest(kLargeRounds, Everybody(kLarge / (size_ - 1))));
    const double further = std::max(0.0, small_all - cost.step_us);
    cost.message_us = size_ > 2 ? further / static_cast<double>(size_ - 2) : 0;
    cost.pair_us_per_mib = std::max(0.0, pair - cost.step_us) * kPerMiB;
    cost.all_us_per_mib = std::max(0.0, all - small_all) * kPerMiB;
    cost.sum_us_per_mib = SumMicros() * kPerMiB;
    return Agree(cost);
  }

 private:
  static constexpr double kPerMiB = static_cast<double>(size_t{1} << 20) / kLarge;

  // A send to the next rank and a receive from the previous one.
  std::vector<Transfer> Neighbours(size_t bytes) {
    return {SendTo(static_cast<int>((rank_ + 1) % size_), out_.data(), bytes),
            ReceiveFrom(static_cast<int>((rank_ + size_ - 1) % size_), in_.data(), bytes)};
  }

  std::vector<Transfer> Everybody(size_t bytes) {
    std::vector<Transfer> transfers;
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        const size_t place = transfers.size() / 2 * bytes;
        transfers.push_back(SendTo(static_cast<int>(peer), out_.data() + place, bytes));
        transfers.push_back(ReceiveFrom(static_cast<int>(peer), in_.data() + place, bytes));
      }
    }
    return transfers;
  }

  absl::StatusOr<double> Fastest(int rounds, const std::vector<Transfer>& transfers) {
    double fastest = 0;
    for (int round = 0; round < rounds; ++round) {
      const int64_t start = Clock::Real().MonotonicNanos();
      DT_RETURN_IF_ERROR(transport_.Move(transfers, context_));
      const auto micros = static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3;
      fastest = round == 0 ? micros : std::min(fastest, micros);
    }
    return fastest;
  }

  // The fastest time to sum two fp32 buffers of kLarge bytes.
  double SumMicros() {
    double fastest = 0;
    for (int round = 0; round < kLargeRounds; ++round) {
      const int64_t start = Clock::Real().MonotonicNanos();
      const void* const inputs[] = {out_.data(), in_.data()};
      void* const output = in_.data();
      Reduce({.inputs = inputs,
              .outputs = absl::MakeConstSpan(&output, 1),
              .count = kLarge / sizeof(float)});
      const auto micros = static_cast<double>(Clock::Real().MonotonicNanos() - start) * 1e-3;
      fastest = round == 0 ? micros : std::min(fastest, micros);
    }
    return fastest;
  }

  absl::StatusOr<LinkCost> Agree(const LinkCost& own) {
    std::vector<LinkCost> costs(size_, own);
    std::vector<Transfer> transfers;
    for (size_t peer = 0; peer < size_; ++peer) {
      if (peer != rank_) {
        transfers.push_back(SendTo(static_cast<int>(peer), &own, sizeof(own)));
        transfers.push_back(ReceiveFrom(static_cast<int>(peer), &costs[peer], sizeof(own)));
      }
    }
    DT_RETURN_IF_ERROR(transport_.Move(transfers, context_));
    LinkCost slowest;
    for (const LinkCost& cost : costs) {
      slowest = Slower(slowest, cost);
    }
    return slowest;
  }

  Transport& transport_;
  const WaitContext& context_;
  const size_t size_;
  const size_t rank_;
  std::vector<char> out_;
  std::vector<char> in_;
};

}  // namespace

absl::StatusOr<LinkCost> ProbeLink(Transport& transport, const WaitContext& context) {
  return Prober(transport, context).Run();
}

}  // namespace dtrain::comm
