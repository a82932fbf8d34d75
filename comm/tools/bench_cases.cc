#include "comm/tools/bench_cases.h"

#include <algorithm>

#include "base/status.h"

namespace dtrain::comm {
namespace {

// Small integers: sums over ranks are exact.
float ValueAt(int rank, size_t i) {
  return static_cast<float>((i * 7 + static_cast<size_t>(rank) * 3) % 64);
}

bool DividesOverRanks(BenchKind kind) {
  return kind == BenchKind::kReduceScatter || kind == BenchKind::kAllGather ||
         kind == BenchKind::kAllToAll;
}

size_t CountOf(BenchKind kind, size_t bytes, size_t ranks) {
  const size_t unit = DividesOverRanks(kind) ? ranks : 1;
  return kind == BenchKind::kBarrier ? 0 : std::max(unit, bytes / sizeof(float) / unit * unit);
}

Buffer Of(std::vector<float>& values, size_t start, size_t count) {
  return {values.data() + start, count * sizeof(float), DType::kFloat32, {}};
}

}  // namespace

const char* BenchName(BenchKind kind) {
  switch (kind) {
    case BenchKind::kAllReduce:
      return "all_reduce";
    case BenchKind::kReduceScatter:
      return "reduce_scatter";
    case BenchKind::kAllGather:
      return "all_gather";
    case BenchKind::kBroadcast:
      return "broadcast";
    case BenchKind::kAllToAll:
      return "all_to_all";
    case BenchKind::kSendReceive:
      return "send_receive";
    case BenchKind::kBarrier:
      return "barrier";
  }
  return "unknown";
}

const std::vector<BenchKind>& AllBenchKinds() {
  static const auto* const all = new std::vector<BenchKind>{
      BenchKind::kAllReduce, BenchKind::kReduceScatter, BenchKind::kAllGather,
      BenchKind::kBroadcast, BenchKind::kAllToAll,      BenchKind::kSendReceive,
      BenchKind::kBarrier};
  return *all;
}

double BusFactor(BenchKind kind, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (kind) {
    case BenchKind::kAllReduce:
      return 2 * share;
    case BenchKind::kReduceScatter:
    case BenchKind::kAllGather:
    case BenchKind::kAllToAll:
      return share;
    case BenchKind::kBroadcast:
    case BenchKind::kSendReceive:
      return 1;
    case BenchKind::kBarrier:
      return 0;
  }
  return 0;
}

BenchCase::BenchCase(BenchKind kind, Group& group, size_t bytes)
    : kind_(kind),
      group_(group),
      count_(CountOf(kind, bytes, static_cast<size_t>(group.size()))),
      input_(count_),
      output_(count_) {}

void BenchCase::Fill() {
  for (size_t i = 0; i < count_; ++i) {
    input_[i] = ValueAt(group_.rank(), i);
  }
  std::fill(output_.begin(), output_.end(), -1.0F);
}

absl::Status BenchCase::RunSendReceive() {
  const int next = (group_.rank() + 1) % group_.size();
  const int previous = (group_.rank() + group_.size() - 1) % group_.size();
  DT_ASSIGN_OR_RETURN(const Work send, group_.Send(Of(input_, 0, count_), next));
  DT_ASSIGN_OR_RETURN(const Work receive, group_.Receive(Of(output_, 0, count_), previous));
  DT_RETURN_IF_ERROR(send.Wait());
  return receive.Wait();
}

absl::Status BenchCase::Run() {
  const CollectiveOptions options{.name = "bench", .caller_waits = true};
  const size_t part = count_ / static_cast<size_t>(group_.size());
  const auto wait = [](absl::StatusOr<Work> work) {
    return work.ok() ? work->Wait() : work.status();
  };
  switch (kind_) {
    case BenchKind::kAllReduce:
      return wait(group_.AllReduce(Of(input_, 0, count_), ReduceOp::kSum, options));
    case BenchKind::kReduceScatter:
      return wait(group_.ReduceScatter(Of(input_, 0, count_), Of(output_, 0, part), ReduceOp::kSum,
                                       options));
    case BenchKind::kAllGather:
      return wait(group_.AllGather(Of(input_, 0, part), Of(output_, 0, count_), options));
    case BenchKind::kBroadcast:
      return wait(group_.Broadcast(Of(input_, 0, count_), 0, options));
    case BenchKind::kAllToAll:
      return wait(group_.AllToAll(Of(input_, 0, count_), Of(output_, 0, count_), options));
    case BenchKind::kSendReceive:
      return RunSendReceive();
    case BenchKind::kBarrier:
      return group_.Barrier(Deadline::Infinite());
  }
  return absl::InternalError("unknown collective");
}

float BenchCase::Expected(size_t i) const {
  const auto rank = static_cast<size_t>(group_.rank());
  const size_t part = count_ / static_cast<size_t>(group_.size());
  const auto sum = [this](size_t element) {
    float total = 0;
    for (int other = 0; other < group_.size(); ++other) {
      total += ValueAt(other, element);
    }
    return total;
  };
  switch (kind_) {
    case BenchKind::kAllReduce:
      return sum(i);
    case BenchKind::kReduceScatter:
      return i < part ? sum(rank * part + i) : -1.0F;
    case BenchKind::kAllGather:
      return ValueAt(static_cast<int>(i / part), i % part);
    case BenchKind::kBroadcast:
      return ValueAt(0, i);
    case BenchKind::kAllToAll:
      return ValueAt(static_cast<int>(i / part), rank * part + i % part);
    case BenchKind::kSendReceive:
      return ValueAt((group_.rank() + group_.size() - 1) % group_.size(), i);
    case BenchKind::kBarrier:
      return 0;
  }
  return 0;
}

size_t BenchCase::Wrong() const {
  const bool in_place = kind_ == BenchKind::kAllReduce || kind_ == BenchKind::kBroadcast;
  const std::vector<float>& result = in_place ? input_ : output_;
  size_t wrong = 0;
  for (size_t i = 0; i < count_; ++i) {
    wrong += result[i] == Expected(i) ? 0 : 1;
  }
  return wrong;
}

}  // namespace dtrain::comm
