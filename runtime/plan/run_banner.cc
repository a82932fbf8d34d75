#include "runtime/plan/run_banner.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/progress_line.h"

namespace dtrain::plan {
namespace {

// "1 rank", "2 ranks", "1,200 steps".
std::string Count(int64_t count, absl::string_view noun) {
  return absl::StrCat(WithThousands(count), " ", noun, count == 1 ? "" : "s");
}

// 5123456 -> "5.12M", 124439808 -> "124M", 7615616512 -> "7.62B".
std::string Rounded(int64_t count) {
  constexpr std::array<const char*, 5> kUnits = {"", "K", "M", "B", "T"};
  auto value = static_cast<double>(count);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return absl::StrFormat("%.*f%s", decimals, value, kUnits.at(unit));
}

std::string Ranks(const Config& config, const RunFacts& facts) {
  std::string text = Count(config.world_size(), "rank");
  if (facts.nodes > 0) {
    absl::StrAppend(&text, " on ", Count(facts.nodes, "node"));
  }
  absl::StrAppend(&text, ", ", facts.device);
  if (config.world_size() > 1) {
    absl::StrAppend(&text, ", over ", facts.transport);
  }
  if (!facts.device_transport.empty()) {
    absl::StrAppend(&text, ", gradients over ", facts.device_transport);
  }
  return absl::StrCat(text, " (", facts.launcher, ")");
}

std::string Model(const Config& config, const RunFacts& facts) {
  std::vector<std::string> parts;
  if (facts.parameters > 0) {
    parts.push_back(absl::StrCat(Rounded(facts.parameters), " parameters"));
    if (facts.trained != facts.parameters) {
      parts.back() += absl::StrCat(" (", Rounded(facts.trained), " trained)");
    }
  }
  switch (config.precision().kind) {
    case PrecisionConfig::Kind::kFloat32:
      parts.emplace_back("fp32");
      break;
    case PrecisionConfig::Kind::kBFloat16:
      parts.emplace_back("bf16");
      break;
    case PrecisionConfig::Kind::kFloat16:
      parts.emplace_back("fp16");
      break;
  }
  parts.push_back(absl::StrCat("ZeRO stage ", config.zero_stage()));
  return absl::StrJoin(parts, ", ");
}

// The highest rate of the schedule, if one number can say it.
double PeakRate(const SchedulerConfig& scheduler) {
  switch (scheduler.kind) {
    case SchedulerConfig::Kind::kWarmup:
    case SchedulerConfig::Kind::kWarmupDecay:
      return scheduler.warmup_max_lr;
    case SchedulerConfig::Kind::kOneCycle:
      return scheduler.cycle.max_lr;
    case SchedulerConfig::Kind::kRangeTest:
      return scheduler.range_min_lr;  // It grows from there without a bound.
    case SchedulerConfig::Kind::kConstant:
    case SchedulerConfig::Kind::kWarmupCosine:
    case SchedulerConfig::Kind::kWarmupStableDecay:
      break;
  }
  return scheduler.base_lr;
}

std::string Optimizer(const Config& config) {
  std::string text = absl::StrCat(config.Find("optimizer.type")->get<std::string>(), ", lr ",
                                  FormatShort(PeakRate(config.scheduler())));
  const Json* const schedule = config.Find("scheduler.type");
  if (schedule != nullptr && schedule->is_string()) {
    absl::StrAppend(&text, ", ", schedule->get<std::string>());
  }
  return text;
}

std::string Batch(const Config& config) {
  return absl::StrFormat("%s = micro-batch %d x accumulation %d x %s",
                         WithThousands(config.global_batch()), config.micro_batch(),
                         config.gradient_accumulation_steps(), Count(config.world_size(), "rank"));
}

// "0.7 x web/*.bin, 0.3 x code.bin" for a mixture, in shares of 1.
std::string Files(const Config& config) {
  const std::vector<DataPart>& parts = config.data_parts();
  if (parts.size() == 1) {
    return absl::StrJoin(config.data_train(), ", ");
  }
  double sum = 0;
  for (const DataPart& part : parts) {
    sum += part.weight;
  }
  return absl::StrJoin(parts, ", ", [&](std::string* out, const DataPart& part) {
    absl::StrAppend(out, FormatShort(part.weight / sum), " x ", absl::StrJoin(part.files, " + "));
  });
}

std::string Data(const Config& config, const RunFacts& facts) {
  return absl::StrFormat("%s tokens in %s (%s), rows of %s", Rounded(facts.tokens),
                         Count(facts.files, "file"), Files(config),
                         WithThousands(config.sequence_length()));
}

std::string Steps(const Config& config) {
  std::string text = WithThousands(config.train_steps());
  if (const double epochs = config.train_epochs(); epochs > 0) {
    absl::StrAppend(&text, " (", FormatShort(epochs), epochs == 1 ? " epoch)" : " epochs)");
  }
  if (config.eval_interval() > 0 && !config.data_validation().empty()) {
    absl::StrAppend(&text, ", evaluated every ", WithThousands(config.eval_interval()));
  }
  return text;
}

std::string Checkpoints(const Config& config, const RunFacts& facts) {
  const int64_t interval = config.checkpoint_interval();
  std::string text = config.checkpoint_continuous() ? std::string("one after the other")
                     : interval > 0
                         ? absl::StrCat("every ", Count(interval, "step"), " and at the end")
                         : std::string("at the end");
  if (const int64_t keep = config.checkpoint_keep(); keep > 0) {
    absl::StrAppend(&text, ", the newest ", keep, " kept");
    if (const int64_t every = config.checkpoint_keep_every(); every > 0) {
      absl::StrAppend(&text, " and those of each ", WithThousands(every), " steps");
    }
    if (const BestCheckpointsConfig best = config.checkpoint_best(); best.count > 0) {
      absl::StrAppend(&text, " and the ", best.count, " best by ", best.metric);
    }
  }
  if (config.checkpoint_journal() != "off") {
    absl::StrAppend(&text, ", each step between them journalled");
  }
  const std::string& dir = config.checkpoint_dir();
  std::string place = dir.empty() ? facts.run_dir + "/checkpoints" : dir;
  if (const std::string& local = config.checkpoint_local_dir(); !local.empty()) {
    const std::string& remote = config.checkpoint_remote();
    place = absl::StrCat(local, " of each host",
                         config.checkpoint_replicas() > 0 ? " and the memory of the next" : "",
                         ", copied to ", remote.empty() ? place : remote);
  }
  return absl::StrCat(text, ", in ", place);
}

}  // namespace

Banner RunBanner(const Config& config, const RunFacts& facts) {
  Banner banner;
  banner.title =
      absl::StrCat("dtrain ", facts.version, "  run ", facts.run_id, " in ", facts.run_dir);
  if (facts.attempt > 0) {
    absl::StrAppend(&banner.title, ", restart ", facts.attempt);
  }
  banner.rows = {{"ranks", Ranks(config, facts)},
                 {"model", Model(config, facts)},
                 {"optimizer", Optimizer(config)},
                 {"batch", Batch(config)}};
  if (facts.tokens > 0) {
    banner.rows.emplace_back("data", Data(config, facts));
  }
  banner.rows.emplace_back("steps", Steps(config));
  banner.rows.emplace_back("checkpoints", Checkpoints(config, facts));
  banner.rows.emplace_back("records",
                           absl::StrCat("config.json and metrics/rank-0.jsonl in ", facts.run_dir));
  return banner;
}

}  // namespace dtrain::plan
