// Helper of deepspeed_rules_test.py: prints dtrain's loss scales, learning rates, betas and
// orthogonalised matrices for the cases of a JSON file, as JSON on stdout.
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Functions.h"
#include "absl/status/statusor.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"
#include "dtrain/config.h"
#include "runtime/optimizer/newton_schulz.h"
#include "runtime/plan/optimizer/loss_scale.h"
#include "runtime/plan/optimizer/lr_schedule.h"

namespace dtrain {
namespace {

absl::StatusOr<Config> ConfigOf(const Json& sections) {
  Json config = {{"train_batch_size", 1}, {"train_steps", 1000}};
  config.update(sections);
  return Config::Parse(DumpJson(config), "case", {}, 1);
}

// The scale after each step; some steps overflow.
absl::StatusOr<Json> LossScales(const Json& example) {
  DT_ASSIGN_OR_RETURN(const Config config, ConfigOf(example.at("config")));
  plan::LossScale scale = plan::FirstLossScale(config.precision());
  Json scales = Json::array();
  for (const Json& overflow : example.at("overflows")) {
    scale = plan::NextLossScale(config.precision(), scale, overflow.get<bool>());
    scales.push_back(scale.scale);
  }
  return scales;
}

// [learning rate, first beta] of each optimizer step.
absl::StatusOr<Json> Rates(const Json& example) {
  DT_ASSIGN_OR_RETURN(const Config config, ConfigOf(example.at("config")));
  const OptimizerConfig& optimizer = config.optimizer();
  Json rates = Json::array();
  for (int64_t step = 0; step < example.at("steps").get<int64_t>(); ++step) {
    const plan::Betas betas =
        plan::BetasAt(config.scheduler(), {optimizer.beta1, optimizer.beta2}, step);
    rates.push_back({plan::LrAt(config.scheduler(), step), betas.first});
  }
  return rates;
}

// A matrix, row after row.
absl::StatusOr<Json> Orthogonalised(const Json& example) {
  auto values = example.at("values").get<std::vector<float>>();
  const at::Tensor matrix =
      at::from_blob(values.data(), example.at("shape").get<std::vector<int64_t>>(), at::kFloat);
  const at::Tensor result = NewtonSchulz(matrix);
  return Json(std::vector<float>(result.const_data_ptr<float>(),
                                 result.const_data_ptr<float>() + result.numel()));
}

absl::StatusOr<Json> Answers(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  DT_ASSIGN_OR_RETURN(const Json cases, ParseJson(text, path));
  const std::pair<const char*, absl::StatusOr<Json> (*)(const Json&)> kinds[] = {
      {"loss_scale", LossScales}, {"schedule", Rates}, {"newton_schulz", Orthogonalised}};
  Json answers = Json::object();
  for (const auto& [kind, answer] : kinds) {
    answers[kind] = Json::array();
    for (const Json& example : cases.at(kind)) {
      DT_ASSIGN_OR_RETURN(Json one, answer(example));
      answers[kind].push_back(std::move(one));
    }
  }
  return answers;
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s CASES.json\n", argv[0]);
    return 64;
  }
  const absl::StatusOr<dtrain::Json> answers = dtrain::Answers(argv[1]);
  if (!answers.ok()) {
    std::fprintf(stderr, "%s\n", answers.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", dtrain::DumpJson(*answers).c_str());
  return 0;
}
