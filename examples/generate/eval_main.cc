// dtrain-eval: the loss of a model folder on a corpus. `dtrain eval FOLDER --data ...` runs it.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/console/command_line.h"
#include "base/console/console.h"
#include "base/console/progress_line.h"
#include "base/console/terminal.h"
#include "base/status.h"
#include "generate/eval_rows.h"
#include "generate/evaluate.h"
#include "generate/program.h"
#include "generate/text_folder.h"

namespace {

constexpr char kProgram[] = "dtrain eval";

struct Arguments {
  ReadingOptions reading;
  EvalData data;
  EvaluateOptions evaluate;
  std::string chat;
  bool json = false;
};

void AddDataOptions(CLI::App& app, Arguments& a) {
  app.add_option("--data", a.data.paths,
                 "Token files (*.bin), or texts: files, JSONL (also .gz and .zst), Parquet, "
                 "folders, or - for standard input")
      ->option_text("PATH...")
      ->required();
  app.add_option("--sequence-length", a.data.sequence_length,
                 "Tokens of a window; the last window of a file may be shorter. Default: the rows "
                 "of packed samples, else 1024, or fewer where the model takes fewer")
      ->option_text("TOKENS")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 24));
  app.add_option("--template", a.chat,
                 "The lines or rows are instruction data, written as: chatml, llama3, qwen, "
                 "alpaca or plain; only completions count. Default: they are texts")
      ->option_text("NAME");
  app.add_option("--text-key", a.data.text_key,
                 "Member of a JSONL line, or column of a Parquet file, that is its text")
      ->option_text("NAME")
      ->capture_default_str();
  app.add_option("--document-token", a.evaluate.documents.token,
                 "Token id that ends documents. Attention then stays inside each document. "
                 "Default: a window is one text")
      ->option_text("ID")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_option("--batch", a.evaluate.batch, "Windows that are computed together")
      ->option_text("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--windows", a.evaluate.rows_max, "Stop after N windows. Default: all")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  app.add_flag("--json", a.json, "Print the result as a JSON object. Default: as text");
}

void Report(const Arguments& a, const Evaluated& result, double seconds, const EvalRows& rows) {
  if (a.json) {
    const dtrain::Json json = {{"loss", result.loss()},
                               {"perplexity", result.perplexity()},
                               {"tokens", result.tokens},
                               {"windows", result.rows},
                               {"sequence_length", rows.sequence_length()},
                               {"seconds", seconds}};
    std::printf("%s\n", dtrain::DumpJson(json).c_str());
  } else {
    std::printf("loss        %.6f nats a token\nperplexity  %.4f\ntokens      %s in %s windows\n",
                result.loss(), result.perplexity(), dtrain::WithThousands(result.tokens).c_str(),
                dtrain::WithThousands(result.rows).c_str());
  }
  if (!rows.LeftOut().empty()) {
    std::fprintf(stderr, "%s: %s\n", kProgram, rows.LeftOut().c_str());
  }
}

absl::Status Run(Arguments& a) {
  if (!a.chat.empty()) {
    DT_ASSIGN_OR_RETURN(a.data.chat, dtrain::plan::ChatTemplateFromName(a.chat));
  }
  DT_RETURN_IF_ERROR(FindModel(kProgram, a.reading));
  PrepareToCompute(a.reading);
  DT_ASSIGN_OR_RETURN(const TextFolder folder,
                      OpenTextFolder({a.reading.folder, a.reading.type, a.reading.tokenizer}));
  a.data.positions = folder.options().max_position_embeddings;
  a.data.vocabulary = folder.options().vocab_size;
  a.data.tokenizer_name = folder.tokenizer_name;
  DT_ASSIGN_OR_RETURN(const auto rows, OpenEvalRows(a.data, *folder.tokenizer));
  dtrain::Console console({.out_fd = STDERR_FILENO, .terminal = dtrain::IsTerminal(STDERR_FILENO)});
  const absl::Time begin = absl::Now();
  absl::Time shown = begin;
  const auto result =
      EvaluateRows(*folder.model.ptr(), *rows, a.evaluate, [&](const Evaluated& so_far) {
        const absl::Time now = absl::Now();
        if (!console.on_terminal() || now - shown < absl::Milliseconds(200)) {
          return;
        }
        shown = now;
        console.Progress(absl::StrFormat(
            "%s windows  %s tokens/s  loss %.4f", dtrain::WithThousands(so_far.rows),
            dtrain::WithThousands(static_cast<int64_t>(static_cast<double>(so_far.tokens) /
                                                       absl::ToDoubleSeconds(now - begin))),
            so_far.tokens > 0 ? so_far.loss() : 0.0));
      });
  console.LeaveProgress();
  DT_RETURN_IF_ERROR(result.status());
  if (!std::isfinite(result->loss())) {
    return absl::OutOfRangeError(absl::StrFormat(
        "the loss of the model in %s is %g; its weights are damaged, or too large for the type in "
        "which it computes: try --dtype float32",
        a.reading.folder, result->loss()));
  }
  Report(a, *result, absl::ToDoubleSeconds(absl::Now() - begin), *rows);
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Prints the loss and the perplexity of a model on a corpus. Every window counts once. It "
      "computes on this machine's CPU.",
      kProgram);
  app.footer(
      "Examples:\n"
      "  dtrain eval Qwen2.5-0.5B --data book.txt\n"
      "  dtrain eval runs/gpt --data data/val.bin\n"
      "  dtrain eval tuned --data data/val.bin\n"
      "  dtrain eval tuned --data chats.jsonl --template qwen --json");
  Arguments arguments;
  AddReadingOptions(app, arguments.reading);
  AddDataOptions(app, arguments);
  if (const auto code = dtrain::ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOfProgram(kProgram, [&] { return Run(arguments); });
}
