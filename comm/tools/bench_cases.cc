#include "comm/tools/bench_cases.h"

#include <algorithm>

#include "base/status.h"
#include "comm/tools/bench_elements.h"

namespace dtrain::comm {
namespace {

bool DividesOverRanks(BenchKind kind) {
  return kind == BenchKind::kReduceScatter || kind == BenchKind::kAllGather ||
         kind == BenchKind::kAllToAll;
}

size_t CountOf(const BenchSetting& setting, size_t bytes, size_t ranks) {
  const size_t unit = DividesOverRanks(setting.kind) ? ranks : 1;
  return setting.kind == BenchKind::kBarrier
             ? 0
             : std::max(unit, bytes / DTypeBytes(setting.dtype) / unit * unit);
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

bool Reduces(BenchKind kind) {
  return kind == BenchKind::kAllReduce || kind == BenchKind::kReduceScatter;
}

bool WorksInPlace(BenchKind kind) {
  return Reduces(kind) || kind == BenchKind::kAllGather || kind == BenchKind::kBroadcast;
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

BenchCase::BenchCase(const BenchSetting& setting, Group& group, BenchMemory& memory, size_t bytes)
    : setting_(setting),
      group_(group),
      memory_(memory),
      count_(CountOf(setting, bytes, static_cast<size_t>(group.size()))),
      part_(count_ / static_cast<size_t>(group.size())) {}

Buffer BenchCase::Of(char* base, size_t start, size_t count) const {
  const size_t width = DTypeBytes(setting_.dtype);
  return {base + start * width, count * width, setting_.dtype, memory_.device()};
}

absl::Status BenchCase::StoreTiles(char* at, size_t count, const std::string& tile) {
  const size_t width = DTypeBytes(setting_.dtype);
  for (size_t start = 0; start < count; start += kBenchTile) {
    const size_t now = std::min(kBenchTile, count - start);
    DT_RETURN_IF_ERROR(memory_.Store(at + start * width, tile.data(), now * width));
  }
  return absl::OkStatus();
}

absl::Status BenchCase::Fill() {
  const std::string nobodys = MakeTile(setting_.dtype, 0, [](size_t) { return -1.0; });
  DT_RETURN_IF_ERROR(StoreTiles(memory_.input(), count_, nobodys));
  DT_RETURN_IF_ERROR(StoreTiles(memory_.output(), count_, nobodys));
  const std::string mine = MakeTile(setting_.dtype, 0, [this](size_t index) {
    return BenchValue(setting_.dtype, group_.size(), group_.rank(), index);
  });
  const bool gathers = setting_.kind == BenchKind::kAllGather;
  const size_t start =
      gathers && setting_.in_place ? static_cast<size_t>(group_.rank()) * part_ : 0;
  return StoreTiles(memory_.input() + start * DTypeBytes(setting_.dtype), gathers ? part_ : count_,
                    mine);
}

absl::Status BenchCase::Clear() {
  const std::string zeros = MakeTile(setting_.dtype, 0, [](size_t) { return 0.0; });
  DT_RETURN_IF_ERROR(StoreTiles(memory_.input(), count_, zeros));
  return StoreTiles(memory_.output(), count_, zeros);
}

absl::Status BenchCase::RunSendReceive() {
  const int next = (group_.rank() + 1) % group_.size();
  const int previous = (group_.rank() + group_.size() - 1) % group_.size();
  DT_ASSIGN_OR_RETURN(const Work send, group_.Send(Of(memory_.input(), 0, count_), next));
  DT_ASSIGN_OR_RETURN(const Work receive,
                      group_.Receive(Of(memory_.output(), 0, count_), previous));
  DT_RETURN_IF_ERROR(memory_.Finish(send));
  return memory_.Finish(receive);
}

absl::StatusOr<Work> BenchCase::Start() {
  const CollectiveOptions options{.name = "bench", .caller_waits = true};
  char* const input = memory_.input();
  char* const output = setting_.in_place ? input : memory_.output();
  const size_t mine = setting_.in_place ? static_cast<size_t>(group_.rank()) * part_ : 0;
  const bool copies = !setting_.in_place &&
                      (setting_.kind == BenchKind::kAllReduce ||
                       (setting_.kind == BenchKind::kBroadcast && group_.rank() == setting_.root));
  if (copies) {
    DT_RETURN_IF_ERROR(memory_.Copy(output, input, bytes()));
  }
  switch (setting_.kind) {
    case BenchKind::kAllReduce:
      return group_.AllReduce(Of(output, 0, count_), setting_.op, options);
    case BenchKind::kReduceScatter:
      return group_.ReduceScatter(Of(input, 0, count_), Of(output, mine, part_), setting_.op,
                                  options);
    case BenchKind::kAllGather:
      return group_.AllGather(Of(input, mine, part_), Of(output, 0, count_), options);
    case BenchKind::kBroadcast:
      return group_.Broadcast(Of(output, 0, count_), setting_.root, options);
    case BenchKind::kAllToAll:
      return group_.AllToAll(Of(input, 0, count_), Of(output, 0, count_), options);
    default:
      return absl::InternalError("not one call that gives a Work");
  }
}

absl::Status BenchCase::Run() {
  if (setting_.kind == BenchKind::kBarrier) {
    return group_.Barrier(Deadline::Infinite());
  }
  if (setting_.kind == BenchKind::kSendReceive) {
    return RunSendReceive();
  }
  DT_ASSIGN_OR_RETURN(const Work work, Start());
  return memory_.Finish(work);
}

std::vector<BenchCase::Segment> BenchCase::Expected() const {
  const int size = group_.size();
  const size_t mine = static_cast<size_t>(group_.rank()) * part_;
  std::vector<Segment> segments;
  switch (setting_.kind) {
    case BenchKind::kAllReduce:
      return {{count_, -1, 0}};
    case BenchKind::kReduceScatter:
      return {{part_, -1, mine}};
    case BenchKind::kBroadcast:
      return {{count_, setting_.root, 0}};
    case BenchKind::kSendReceive:
      return {{count_, (group_.rank() + size - 1) % size, 0}};
    case BenchKind::kAllGather:
    case BenchKind::kAllToAll:
      for (int rank = 0; rank < size; ++rank) {
        segments.push_back({part_, rank, setting_.kind == BenchKind::kAllToAll ? mine : 0});
      }
      return segments;
    case BenchKind::kBarrier:
      return {};
  }
  return {};
}

double BenchCase::ValueOf(const Segment& segment, size_t index) const {
  if (segment.rank >= 0) {
    return BenchValue(setting_.dtype, group_.size(), segment.rank, index);
  }
  double result = BenchValue(setting_.dtype, group_.size(), 0, index);
  for (int rank = 1; rank < group_.size(); ++rank) {
    const double value = BenchValue(setting_.dtype, group_.size(), rank, index);
    result = setting_.op == ReduceOp::kMax   ? std::max(result, value)
             : setting_.op == ReduceOp::kMin ? std::min(result, value)
                                             : result + value;
  }
  return setting_.op == ReduceOp::kAverage ? result / group_.size() : result;
}

absl::StatusOr<size_t> BenchCase::WrongIn(const Segment& segment, const char* at) {
  const size_t width = DTypeBytes(setting_.dtype);
  const std::string want = MakeTile(setting_.dtype, segment.first,
                                    [&](size_t index) { return ValueOf(segment, index); });
  const bool averages = segment.rank < 0 && setting_.op == ReduceOp::kAverage;
  const double tolerance = averages ? AverageTolerance(setting_.dtype) : 0;
  size_t wrong = 0;
  for (size_t start = 0; start < segment.count; start += kBenchTile) {
    const size_t now = std::min(kBenchTile, segment.count - start);
    DT_ASSIGN_OR_RETURN(const char* const got, memory_.View(at + start * width, now * width));
    wrong += CountWrong(setting_.dtype, got, want.data(), now, tolerance);
  }
  return wrong;
}

absl::StatusOr<size_t> BenchCase::Wrong() {
  const size_t width = DTypeBytes(setting_.dtype);
  const char* at = setting_.in_place ? memory_.input() : memory_.output();
  if (setting_.in_place && setting_.kind == BenchKind::kReduceScatter) {
    at += static_cast<size_t>(group_.rank()) * part_ * width;
  }
  size_t wrong = 0;
  for (const Segment& segment : Expected()) {
    DT_ASSIGN_OR_RETURN(const size_t here, WrongIn(segment, at));
    wrong += here;
    at += segment.count * width;
  }
  return wrong;
}

}  // namespace dtrain::comm
