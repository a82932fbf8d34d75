// dtrain-config: checks a configuration and prints its documents. `dtrain config ...` runs it.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "dtrain/config.h"
#include "runtime/plan/config_docs.h"
#include "runtime/plan/tools/tool_main.h"

namespace dtrain::plan {
namespace {

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

struct CheckArguments {
  std::string path;
  int world_size = 1;
  std::vector<std::string> overrides;
  bool all = false;
};

absl::Status Check(const CheckArguments& arguments) {
  DT_ASSIGN_OR_RETURN(const Config config,
                      Config::Load(arguments.path, arguments.overrides, arguments.world_size));
  for (const std::string& warning : config.warnings()) {
    std::fprintf(stderr, "note: %s\n", warning.c_str());
  }
  Print(config.Summary());
  if (arguments.all) {
    Print(DumpJson(config.values_in_force(), 2) + "\n");
  }
  Print(absl::StrFormat("identity %016x\n", config.identity_hash()));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Checks configurations and prints what is known about them.\n\nExamples:\n"
      "  dtrain config check run.json --world-size 8 --set optimizer.params.lr=3e-4\n"
      "  dtrain config schema > dtrain.schema.json\n"
      "  dtrain config docs > docs/CONFIG.md\n",
      "dtrain config");
  app.require_subcommand(1);

  CheckArguments check;
  CLI::App* check_app = app.add_subcommand(
      "check", "Check a file; print the batch numbers and every value that is not a default");
  check_app->add_option("file", check.path, "Configuration file")->required();
  check_app->add_option("--world-size", check.world_size, "Ranks of the job")
      ->capture_default_str();
  check_app->add_option("--set", check.overrides, "KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  check_app->add_flag("--all", check.all, "Print every value in force, with its origin, as JSON");
  CLI::App* schema_app = app.add_subcommand("schema", "Print the JSON Schema");
  app.add_subcommand("docs", "Print docs/CONFIG.md");

  if (const int code = ParseCommandLine(app, argc, argv); code >= 0) {
    return code;
  }
  if (check_app->parsed()) {
    return Finish("dtrain config", Check(check));
  }
  Print(schema_app->parsed() ? DumpJson(ConfigSchema(), 2) + "\n" : ConfigMarkdown());
  return kExitOk;
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) { return dtrain::plan::Main(argc, argv); }
