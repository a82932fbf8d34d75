#include "bench/group_bandwidth.h"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/version.h"
#include "comm/symmetric_buffer.h"

namespace dtrain {
namespace {

// The time of one call, which `start` queues.
template <typename Start>
absl::StatusOr<double> MedianMicros(comm::Group& group, const BandwidthPlan& plan, Start start) {
  std::vector<double> micros;
  for (int round = 0; round < plan.rounds + 1; ++round) {  // One to warm up.
    DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
    const int64_t began = Clock::Real().MonotonicNanos();
    std::vector<comm::Work> works;
    for (int i = 0; i < plan.in_flight; ++i) {
      DT_ASSIGN_OR_RETURN(works.emplace_back(), start());
    }
    for (const comm::Work& work : works) {
      DT_RETURN_IF_ERROR(work.Wait());
    }
    if (round >= 1) {
      micros.push_back(static_cast<double>(Clock::Real().MonotonicNanos() - began) * 1e-3 /
                       plan.in_flight);
    }
  }
  std::sort(micros.begin(), micros.end());
  return micros[micros.size() / 2];
}

// Another number at every place of a prime period; what rank 1 has is 2 more, so that averages are
// exact.
float ValueAt(int rank, size_t i) {
  return static_cast<float>(i % 251 + 2 * static_cast<size_t>(rank));
}

// `more` beyond what rank 0 has, at every place.
absl::Status CheckValues(absl::Span<const float> values, float more, const char* what) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] != ValueAt(0, i) + more) {
      return absl::InternalError(absl::StrFormat("%s: element %d is %g, want %g", what, i,
                                                 values[i], ValueAt(0, i) + more));
    }
  }
  return absl::OkStatus();
}

void Fill(absl::Span<float> values, int rank) {
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ValueAt(rank, i);
  }
}

}  // namespace

absl::StatusOr<std::vector<BandwidthLine>> MeasureBandwidth(comm::Group& group,
                                                            const BandwidthPlan& plan) {
  DT_ASSIGN_OR_RETURN(const auto memory,
                      comm::SymmetricBuffer::Create(
                          *std::max_element(plan.sizes.begin(), plan.sizes.end()), "bench"));
  std::unique_ptr<comm::Registration> registration;
  if (plan.registered) {
    DT_ASSIGN_OR_RETURN(registration, group.Register(memory));
  }
  std::vector<BandwidthLine> lines;
  for (const size_t bytes : plan.sizes) {
    const auto values = absl::MakeSpan(static_cast<float*>(memory->data()), bytes / 4);
    Fill(values, group.rank());
    const comm::Buffer buffer{values.data(), bytes};
    DT_ASSIGN_OR_RETURN(const double one_way, MedianMicros(group, plan, [&] {
                          const comm::CollectiveOptions call{.caller_waits = true};
                          return group.rank() == 0 ? group.Send(buffer, 1, call)
                                                   : group.Receive(buffer, 0, call);
                        }));
    DT_RETURN_IF_ERROR(CheckValues(values, 0, "received other bytes than were sent"));
    Fill(values, group.rank());
    DT_ASSIGN_OR_RETURN(const double reduced, MedianMicros(group, plan, [&] {
                          return group.AllReduce(buffer, comm::ReduceOp::kAverage,
                                                 {.name = "bench", .caller_waits = true});
                        }));
    DT_RETURN_IF_ERROR(CheckValues(values, 1, "wrong average"));
    lines.push_back({"send_receive", bytes, static_cast<double>(bytes) / one_way});
    lines.push_back({"all_reduce_busbw", bytes, static_cast<double>(bytes) / reduced});
  }
  DT_RETURN_IF_ERROR(group.Barrier(Deadline::Infinite()));
  return lines;
}

Json BandwidthJson(const comm::Group& group, const BandwidthPlan& plan,
                   const std::vector<BandwidthLine>& lines) {
  utsname system{};
  uname(&system);
  Json json = {{"commit", kCommit},
               {"kernel", system.release},
               {"registered", plan.registered},
               {"in_flight", plan.in_flight},
               {"transport", group.transport()},
               {"lines", Json::array()}};
  for (const BandwidthLine& line : lines) {
    json["lines"].push_back({{"what", line.what}, {"bytes", line.bytes}, {"mb_s", line.mb_s}});
  }
  return json;
}

}  // namespace dtrain
