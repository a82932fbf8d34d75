// dtrain-config: checks a configuration and prints the reference pages. `dtrain config ...` runs
// it.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "dtrain/config.h"
#include "runtime/plan/config/config_docs.h"
#include "runtime/plan/config/reference_docs.h"
#include "runtime/plan/data/training_data.h"

namespace dtrain::plan {
namespace {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

struct CheckArguments {
  std::string path;
  int world_size = 1;
  std::vector<std::string> overrides;
  bool all = false;
};

// With the number of steps, where the token files for an epoch are here.
absl::StatusOr<Config> LoadWithSteps(const CheckArguments& arguments) {
  DT_ASSIGN_OR_RETURN(Config config,
                      Config::Load(arguments.path, arguments.overrides, arguments.world_size));
  if (config.train_epochs() == 0) {
    return config;
  }
  const absl::StatusOr<double> steps = StepsPerEpoch(config);
  if (steps.ok()) {
    return config.WithStepsPerEpoch(*steps);
  }
  std::fprintf(stderr,
               "note: train_epochs %g: the number of steps is known when the run opens its data "
               "(%s)\n",
               config.train_epochs(), std::string(steps.status().message()).c_str());
  return config;
}

absl::Status Check(const CheckArguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Config config, LoadWithSteps(arguments));
  for (const std::string& warning : config.warnings()) {
    std::fprintf(stderr, "note: %s\n", warning.c_str());
  }
  Print(config.Summary());
  if (arguments.all) {
    Print(DumpJson(config.values_in_force(), 2) + "\n");
  }
  Print(absl::StrFormat(
      "identity %016x (a run is resumed with the same one, or with --accept-change)\n",
      config.identity_hash()));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Checks a configuration file and prints reference pages.", "dtrain config");
  app.footer(
      "Examples:\n"
      "  dtrain config check run.json --world-size 8 --set optimizer.params.lr=3e-4\n"
      "  dtrain config schema > dtrain.schema.json\n"
      "  dtrain config docs > CONFIG.md");
  app.require_subcommand(1);

  CheckArguments check;
  CLI::App* check_app = app.add_subcommand(
      "check", "Check a file. Print the batch numbers and every value that is not a default.");
  check_app->footer(
      "Example:\n  dtrain config check run.json --world-size 8 --set train_steps=100");
  check_app->add_option("FILE", check.path, "Configuration file")->required();
  check_app->add_option("--world-size", check.world_size, "Number of ranks, 1 or more")
      ->capture_default_str();
  check_app
      ->add_option("--set", check.overrides,
                   "Change a value of the file. May be repeated. Default: no change")
      ->option_text("KEY=VALUE")
      ->allow_extra_args(false);
  check_app->add_flag("--all", check.all,
                      "Also print every value in force, and where it comes from, as JSON. Default: "
                      "off");
  CLI::App* schema_app = app.add_subcommand(
      "schema",
      "Print a JSON Schema, with which an editor completes and checks configuration files");
  schema_app->footer("Example:\n  dtrain config schema > dtrain.schema.json");
  std::string page = "config";
  CLI::App* docs_app = app.add_subcommand("docs", "Print a reference page in Markdown");
  docs_app->footer("Example:\n  dtrain config docs metrics > METRICS.md");
  docs_app
      ->add_option("PAGE", page,
                   "Page to print: the configuration keys, the names of metrics, or the "
                   "environment variables")
      ->check(CLI::IsMember({"config", "metrics", "environment"}))
      ->capture_default_str();

  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  if (check_app->parsed()) {
    return EndOf("dtrain config", Check(check));
  }
  Print(schema_app->parsed()    ? DumpJson(ConfigSchema(), 2) + "\n"
        : page == "metrics"     ? MetricsMarkdown()
        : page == "environment" ? EnvironmentMarkdown()
                                : ConfigMarkdown());
  return kExitOk;
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) { return dtrain::plan::Main(argc, argv); }
