// dtrain-data: writes and shows token files. `dtrain data ...` runs it.
#include <CLI/CLI.hpp>

#include "base/console/command_line.h"
#include "runtime/plan/tools/data_prepare_command.h"
#include "runtime/plan/tools/data_show_command.h"
#include "runtime/plan/tools/data_train_command.h"

namespace dtrain::plan {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Writes token files for training and shows what is in them.", "dtrain data");
  app.footer(
      "Examples:\n"
      "  dtrain data prepare --out data            from the headers in /usr/include\n"
      "  dtrain data prepare --out data ~/books    from every text file in a folder\n"
      "  dtrain data prepare --out data --tokenizer Qwen3-0.6B text.jsonl\n"
      "  dtrain data show data/train.bin");
  app.require_subcommand(1);
  const PrepareCommand prepare(&app);
  const ShowCommand show(&app);
  const TrainTokenizerCommand train_tokenizer(&app);
  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOf("dtrain data", prepare.parsed() ? prepare.Run()
                              : show.parsed()  ? show.Run()
                                               : train_tokenizer.Run());
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) { return dtrain::plan::Main(argc, argv); }
