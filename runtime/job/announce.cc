#include "runtime/job/announce.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/console/record_line.h"
#include "base/log.h"
#include "base/version.h"
#include "runtime/plan/run_banner.h"

namespace dtrain {
namespace {

// 0 where ranks are not spread evenly, or their launcher does not say how.
int Nodes(const JobEnv& env) {
  const int local = env.local_world_size;
  return local > 0 && env.world_size % local == 0 ? env.world_size / local : 0;
}

}  // namespace

void Announce(Job::State& state, const ModelSize& model) {
  if (state.env.rank != 0 || std::exchange(state.announced, true)) {
    return;
  }
  plan::RunFacts facts{.version = kVersion,
                       .run_id = state.run_id,
                       .run_dir = state.run_dir,
                       .launcher = LaunchSourceName(state.env.source),
                       .transport = state.group->transport(),
                       .device = state.device->is_host() ? "CPU" : state.device->description(),
                       .device_transport = "",
                       .nodes = Nodes(state.env),
                       .attempt = state.env.attempt,
                       .parameters = model.parameters,
                       .trained = model.trained,
                       .tokens = state.train_tokens,
                       .files = state.train_files};
  if (state.device_group != nullptr) {
    facts.device_transport = state.device_group->transport();
  }
  const Banner banner = plan::RunBanner(*state.config, facts);
  Json rows = Json::array();
  for (const auto& [label, text] : banner.rows) {
    rows.push_back({label, text});
  }
  state.metrics->LogEvent(EventKind::kEvent,
                          {{"name", kBannerEvent}, {"title", banner.title}, {"rows", rows}});
}

void WarnOfSlowProducts(Job::State& state) {
  const PrecisionConfig::Kind kind = state.config->precision().kind;
  if (state.env.rank != 0 || !state.device->is_host() || kind == PrecisionConfig::Kind::kFloat32 ||
      std::exchange(state.products_checked, true)) {
    return;
  }
  const std::string warning =
      SlowProductsWarning(kind == PrecisionConfig::Kind::kFloat16 ? "fp16" : "bf16",
                          state.measure_products(*state.config));
  if (!warning.empty()) {
    DT_LOG(Warning) << warning;
  }
}

absl::Status CheckGroupEngines(Job::State& state) {
  if (state.groups_checked) {
    return absl::OkStatus();
  }
  std::vector<std::string> names;
  std::vector<std::string> parameters;
  for (const Job::State::EngineFacts& engine : state.engines) {
    names.push_back(engine.name);
    parameters.insert(parameters.end(), engine.parameters.begin(), engine.parameters.end());
  }
  const std::string called = absl::StrFormat(
      "the program's engines are called \"%s\" (EngineOptions::name), and are made before the "
      "first step",
      absl::StrJoin(names, "\", \""));
  const std::vector<ParamGroupConfig>& groups = state.config->optimizer().groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    if (std::none_of(state.engines.begin(), state.engines.end(),
                     [&](const auto& engine) { return IsFor(groups[i], engine.name); })) {
      return absl::InvalidArgumentError(
          absl::StrFormat("optimizer.param_groups[%d].engine \"%s\" is the name of no engine, and "
                          "the group would hold for no parameter; %s",
                          i, groups[i].engine, called));
    }
  }
  for (const std::string& name : state.config->engine_names()) {
    if (std::none_of(state.engines.begin(), state.engines.end(),
                     [&](const auto& engine) { return engine.name == name; })) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "engines.%s holds for no engine, because none has this name; %s", name, called));
    }
  }
  for (const std::string& pattern : state.config->optimizer().no_weight_decay) {
    if (std::all_of(state.engines.begin(), state.engines.end(), [&](const auto& engine) {
          const auto& unmatched = engine.unmatched_decay;
          return std::find(unmatched.begin(), unmatched.end(), pattern) != unmatched.end();
        })) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "optimizer.no_weight_decay: \"%s\" names no parameter of any engine; nearest: %s (* "
          "stands for any text); %s",
          pattern, absl::StrJoin(NearestNames(pattern, parameters), ", "), called));
    }
  }
  state.groups_checked = true;
  return absl::OkStatus();
}

}  // namespace dtrain
