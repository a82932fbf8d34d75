#include "launcher/ranks/job_watch.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

constexpr int64_t kLookNanos = 200'000'000;
constexpr int64_t kSampleNanos = 250'000'000;
constexpr int64_t kExchangeNanos = 1'000'000'000;
// So long a rank that seems to hang is told of at once. Node 0, which knows more, may see no hang
// for hours, as while somebody debugs a rank, and all nodes read what is told at once.
constexpr int64_t kUrgentNanos = 10'000'000'000;
// A look comes so long behind a limit, because poll counts milliseconds.
constexpr double kBehindSeconds = 1e-3;
// A look that comes later than this finds that the agent itself could not run.
constexpr int64_t kLateNanos = 1'000'000'000;
// A view of another node that is older than this is no basis for a verdict.
constexpr int64_t kFreshNanos = 4'000'000'000;
constexpr size_t kBlocksSharedMax = 512;
constexpr size_t kBlocksGatheredMax = 4096;  // Those of the nodes below too.

double SecondsOf(int64_t nanos) { return static_cast<double>(nanos) * 1e-9; }

}  // namespace

JobWatch::JobWatch(JobWatchOptions options, Peers& peers, Reporter& reporter)
    : options_(std::move(options)),
      peers_(peers),
      reporter_(reporter),
      tracker_(options_.node, options_.host),
      stragglers_(options_.world_size) {}

absl::Duration JobWatch::UntilLook(int64_t now_nanos) const {
  return absl::Nanoseconds(std::max<int64_t>(0, look_nanos_ - now_nanos));
}

void JobWatch::PlanLook(const StepStatistics& steps) {
  // The next look, at the latest, plans again.
  const double look_s = SecondsOf(kLookNanos);
  const double limit_s = UntilNextLimit(LocalViews(), steps).value_or(2 * look_s) + kBehindSeconds;
  limit_nanos_ = looked_nanos_ + std::llround(std::min(limit_s, 2 * look_s) * 1e9);
  look_nanos_ = std::min(looked_nanos_ + kLookNanos, limit_nanos_);
}

// Once a block of steps, for the rank that completes it.
void JobWatch::NoteCpuWait(const AgentMessage& message, int64_t now_nanos) {
  Cpu& cpu = cpu_[message.rank];
  const uint64_t wait_nanos = MainThreadWaitNanos(message.pid);
  if (cpu.noted_nanos > 0 && now_nanos > cpu.noted_nanos && wait_nanos >= cpu.wait_nanos) {
    cpu.wait_share = static_cast<double>(wait_nanos - cpu.wait_nanos) /
                     static_cast<double>(now_nanos - cpu.noted_nanos);
  }
  cpu.wait_nanos = wait_nanos;
  cpu.noted_nanos = now_nanos;
}

void JobWatch::Take(const AgentMessage& message, int64_t now_nanos) {
  tracker_.Take(message, now_nanos);
  if (message.kind != AgentMessage::Kind::kBeat || message.times.step < 0) {
    return;
  }
  if (message.times.step % kBlockSteps == kBlockSteps - 1) {
    NoteCpuWait(message, now_nanos);
  }
  std::vector<BlockTimes> blocks;
  collectors_[message.rank].Take(message.times, cpu_[message.rank].wait_share, blocks);
  for (const BlockTimes& block : blocks) {
    TakeBlock(message.rank, block);
  }
}

void JobWatch::TakeBlock(int rank, const BlockTimes& block) {
  if (options_.node == 0) {
    stragglers_.Take(rank, block);
  } else if (blocks_to_share_.size() < (shared_.empty() ? kBlocksSharedMax : kBlocksGatheredMax)) {
    blocks_to_share_.push_back(BlockJson(rank, block));
  }
}

void JobWatch::Sample(int64_t now_nanos) {
  sampled_nanos_ = now_nanos;
  for (const auto& [pid, rank] : tracker_.Suspects(now_nanos)) {
    tracker_.Observe(rank, SampleProcess(pid));
  }
}

void JobWatch::TakeShared(int64_t now_nanos) {
  for (const auto& [node, text] : peers_.TakeShared()) {
    const size_t hash = std::hash<std::string>()(text);
    const auto before = shared_.find(node);
    if (before != shared_.end() && before->second.hash == hash) {
      continue;  // The node has said nothing since.
    }
    absl::StatusOr<NodeSummary> summary = ParseSummary(text);
    if (!summary.ok() || summary->attempt != options_.attempt) {
      continue;
    }
    for (const auto& [rank, block] : BlocksIn(summary->blocks)) {
      TakeBlock(rank, block);
    }
    summary->blocks.clear();
    shared_[node] = {*std::move(summary), now_nanos, hash};
  }
}

// `is_over`: a rank seems to hang, by what this node knows.
void JobWatch::Share(int64_t now_nanos, bool is_over) {
  const bool is_news = is_over && over_nanos_ == 0;
  if (is_news || !is_over) {
    over_nanos_ = is_over ? now_nanos : 0;
  }
  if (!is_news && now_nanos - exchanged_nanos_ < kExchangeNanos) {
    return;
  }
  exchanged_nanos_ = now_nanos;
  const bool at_once = is_over && now_nanos - over_nanos_ < kUrgentNanos;
  NodeSummary summary{
      .attempt = options_.attempt, .ranks = AllViews(now_nanos), .steps = AllSteps()};
  if (!at_once) {  // What is sent at once may be replaced before it is read.
    summary.blocks = std::exchange(blocks_to_share_, Json::array());
  }
  std::string text = EncodeSummary(summary, shared_.empty() ? kSummaryBytesMax : kGatheredBytesMax);
  if (at_once) {
    peers_.ShareAtOnce(std::move(text));
  } else {
    peers_.Share(std::move(text));
  }
}

void JobWatch::LookAtOnce(int64_t now_nanos) { look_nanos_ = std::min(look_nanos_, now_nanos); }

void JobWatch::SayStragglers() {
  for (const Straggler& straggler : stragglers_.Find()) {
    reporter_.Say(absl::StrFormat(
        "rank %d is a straggler: in steps %d to %d its own work took %.0f%% longer than that of "
        "the others, most of it in %s",
        straggler.rank, straggler.first_step, straggler.last_step, 100 * straggler.slower,
        straggler.part));
    reporter_.Event("straggler", {{"rank", straggler.rank},
                                  {"slower", straggler.slower},
                                  {"part", straggler.part},
                                  {"first_step", straggler.first_step},
                                  {"last_step", straggler.last_step}});
  }
}

std::vector<RankView> JobWatch::AllViews(int64_t now_nanos) const {
  std::vector<RankView> views = tracker_.Views(now_nanos);
  for (const auto& [node, shared] : shared_) {
    if (now_nanos - shared.seen_nanos <= kFreshNanos) {
      views.insert(views.end(), shared.summary.ranks.begin(), shared.summary.ranks.end());
    }
  }
  return views;
}

std::vector<RankView> JobWatch::OtherViews(int64_t now_nanos) const {
  std::vector<RankView> views;
  for (const auto& [node, shared] : shared_) {
    for (const RankView& view : shared.summary.ranks) {
      views.push_back(view);
      views.back().silent_s += SecondsOf(now_nanos - shared.seen_nanos);
    }
  }
  return views;
}

StepStatistics JobWatch::AllSteps() const {
  StepStatistics steps = tracker_.Steps();
  for (const auto& [node, shared] : shared_) {
    steps.steps = std::min(steps.steps, shared.summary.steps.steps);
    steps.p99_s = std::max(steps.p99_s, shared.summary.steps.p99_s);
    steps.pause_s = std::max(steps.pause_s, shared.summary.steps.pause_s);
  }
  return steps;
}

RankEnd JobWatch::EndOf(const Hang& hang, const std::vector<RankView>& views) const {
  RankEnd end;
  const auto view = std::find_if(views.begin(), views.end(), [&](const RankView& candidate) {
    return candidate.rank == hang.ranks.front();
  });
  end.rank = hang.ranks.front();
  end.exit_code = kExitTemporary;
  end.hang = HangKindName(hang.kind);
  end.error = hang.text;
  if (view != views.end()) {
    end.node = view->node;
    end.host = view->host;
    end.pid = view->pid;
    end.step = view->step;
    end.phase = view->phase;
  }
  return end;
}

std::optional<RankEnd> JobWatch::Look(int64_t now_nanos) {
  if (now_nanos < look_nanos_) {
    return std::nullopt;
  }
  if (looked_nanos_ != 0 && now_nanos - looked_nanos_ > kLateNanos) {
    tracker_.AgentSlept(SecondsOf(now_nanos - look_nanos_));
  }
  looked_nanos_ = now_nanos;
  if (now_nanos >= limit_nanos_ || now_nanos - sampled_nanos_ >= kSampleNanos) {
    Sample(now_nanos);
  }
  TakeShared(now_nanos);
  const StepStatistics steps = AllSteps();
  PlanLook(steps);
  std::vector<RankView> views = AllViews(now_nanos);
  std::optional<Hang> hang = FindHang(views, options_.world_size, steps);
  if (hang.has_value() && sampled_nanos_ != now_nanos) {
    // Since the last sample a rank may have waited for a CPU, or a signal may have continued it.
    Sample(now_nanos);
    views = AllViews(now_nanos);
    hang = FindHang(views, options_.world_size, steps);
  }
  if (options_.node != 0) {
    Share(now_nanos, hang.has_value());
    return std::nullopt;
  }
  SayStragglers();
  if (!hang.has_value()) {
    return std::nullopt;
  }
  reporter_.Event("hang", {{"kind", HangKindName(hang->kind)},
                           {"ranks", hang->ranks},
                           {"group", hang->group},
                           {"collective", hang->collective},
                           {"call", hang->call},
                           {"still_s", hang->still_s},
                           {"limit_s", hang->limit_s},
                           {"text", hang->text}});
  return EndOf(*hang, views);
}

}  // namespace dtrain::launcher
