#include "runtime/plan/tools/data_prepare_command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/console/console.h"
#include "base/console/progress_line.h"
#include "base/console/terminal.h"
#include "base/status.h"
#include "runtime/plan/data/prepare_corpus.h"
#include "runtime/plan/data/text/prepare_output.h"
#include "runtime/plan/data/text/prepare_text.h"
#include "runtime/plan/tokenizer/bytes_tokenizer.h"

namespace dtrain::plan {
namespace {

constexpr const char* kDefaultFolder = "/usr/include";
constexpr double kMegabytesMax = 2048;  // Bytes as tokens: one file holds no more.
constexpr double kMegabytesDefault = 64;
constexpr double kTextMegabytesMax = 1e9;

// The progress of a preparation, on standard error: a line that is rewritten, or one every half
// minute where there is no terminal.
class ProgressBar {
 public:
  ProgressBar()
      : console_({.out_fd = STDERR_FILENO, .terminal = IsTerminal(STDERR_FILENO)}),
        begin_(absl::Now()),
        shown_(begin_) {}

  void Show(const TextProgress& now) {
    const absl::Time time = absl::Now();
    if (time - shown_ < (console_.on_terminal() ? absl::Milliseconds(200) : absl::Seconds(30))) {
      return;
    }
    shown_ = time;
    const double seconds = absl::ToDoubleSeconds(time - begin_);
    const double rate = static_cast<double>(now.bytes_done) / seconds;
    std::string line = absl::StrCat(now.resumed ? "resumed  " : "",
                                    FormatBytes(static_cast<double>(now.bytes_done)));
    if (now.bytes > 0) {
      const double share =
          std::min(1.0, static_cast<double>(now.bytes_done) / static_cast<double>(now.bytes));
      constexpr int kWidth = 20;
      const auto filled = static_cast<size_t>(share * kWidth);
      line = absl::StrFormat("[%s%s] %3.0f%%  %s of %s", std::string(filled, '#'),
                             std::string(kWidth - filled, ' '), 100 * share, line,
                             FormatBytes(static_cast<double>(now.bytes)));
      if (share > 0) {
        absl::StrAppend(&line, "  ETA ", FormatDuration(seconds / share * (1 - share)));
      }
    }
    absl::StrAppend(&line, "  ", FormatBytes(rate), "/s  ", WithThousands(now.documents),
                    " documents, ", WithThousands(now.tokens), " tokens");
    const auto columns = static_cast<size_t>(console_.progress_columns());
    console_.Progress(columns > 0 && line.size() > columns ? line.substr(0, columns) : line);
  }
  void End() { console_.LeaveProgress(); }

 private:
  Console console_;
  absl::Time begin_;
  absl::Time shown_;
};

std::vector<std::string> WithDots(std::vector<std::string> extensions) {
  for (std::string& extension : extensions) {
    if (extension == "none") {
      extension.clear();
    } else if (!extension.empty() && extension[0] != '.') {
      extension.insert(0, 1, '.');
    }
  }
  return extensions;
}

absl::StatusOr<CorpusFormat> FormatFromName(const std::string& name) {
  if (name == "llmc") {
    return CorpusFormat::kLlmc;
  }
  if (name == "megatron") {
    return CorpusFormat::kMegatron;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--format \"%s\" is unknown; allowed: llmc, megatron", name));
}

}  // namespace

struct PrepareCommand::Arguments {
  std::vector<std::string> sources;
  std::vector<std::string> extensions;
  std::string out;
  std::string tokenizer;
  std::string end_token;
  std::string chat;
  std::string long_samples = "cut";
  std::string format = "llmc";
  std::optional<double> max_megabytes;
  PrepareTextOptions text;  // What needs no translation.

  // Byte tokens of folders have a way of their own, whose output stays as it is.
  bool AreBytesOfFolders() const {
    return tokenizer.empty() && chat.empty() && format == "llmc" &&
           std::all_of(sources.begin(), sources.end(), [](const std::string& source) {
             std::error_code unknown;
             return source != kStandardInput && (!std::filesystem::exists(source, unknown) ||
                                                 std::filesystem::is_directory(source, unknown));
           });
  }
  absl::Status RunBytes() const;
  absl::Status RunText() const;
};

absl::Status PrepareCommand::Arguments::RunBytes() const {
  PrepareOptions options;
  options.folders = sources;
  options.extensions = WithDots(extensions);
  options.out = out;
  options.file_bytes_max = text.file_bytes_max;
  options.validation_percent = text.validation_percent;
  options.tokenizer = BytesTokenizerFiles();
  if (options.folders.empty()) {
    options.folders = {kDefaultFolder};
    if (options.extensions.empty()) {
      options.extensions = {".h", ".hpp", ".hh", ".hxx", ""};
    }
  }
  const double megabytes = max_megabytes.value_or(kMegabytesDefault);
  if (!(megabytes > 0 && megabytes < kMegabytesMax)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--max-mb is %g; want a number above 0 and below %g", megabytes, kMegabytesMax));
  }
  options.bytes_max = static_cast<int64_t>(megabytes * 1048576.0);
  DT_ASSIGN_OR_RETURN(const PrepareReport report, PrepareCorpus(options));
  std::fputs(PrepareTable(report).c_str(), stdout);
  return absl::OkStatus();
}

absl::Status PrepareCommand::Arguments::RunText() const {
  if (sources.empty()) {
    return absl::InvalidArgumentError(
        "no source of text is named; name files, folders, or - for standard input");
  }
  PrepareTextOptions options = text;
  options.sources = sources;
  options.extensions = WithDots(extensions);
  options.out = out;
  DT_ASSIGN_OR_RETURN(options.format, FormatFromName(format));
  DT_ASSIGN_OR_RETURN(options.rules.long_samples, LongSamplesFromName(long_samples));
  if (max_megabytes.has_value()) {
    if (!(*max_megabytes > 0 && *max_megabytes < kTextMegabytesMax)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--max-mb is %g; want a number above 0 and below %g", *max_megabytes, kTextMegabytesMax));
    }
    options.bytes_max = static_cast<int64_t>(*max_megabytes * 1048576.0);
  }
  std::unique_ptr<TextEncoder> encoder = TextEncoder::OfBytes();
  if (!tokenizer.empty()) {
    DT_ASSIGN_OR_RETURN(encoder, TextEncoder::OfTokenizer(tokenizer, end_token));
  }
  if (!chat.empty()) {
    DT_ASSIGN_OR_RETURN(options.rules.chat, ChatTemplateFromName(chat));
    DT_RETURN_IF_ERROR(CheckTemplate(*options.rules.chat, *encoder));
  }
  ProgressBar bar;
  options.progress = [&bar](const TextProgress& now) { bar.Show(now); };
  const absl::StatusOr<TextReport> report = PrepareText(options, *encoder);
  bar.End();
  DT_RETURN_IF_ERROR(report.status());
  std::fputs(TextTable(*report, *encoder).c_str(), stdout);
  return absl::OkStatus();
}

PrepareCommand::PrepareCommand(CLI::App* app)
    : arguments_(std::make_unique<Arguments>()),
      app_(app->add_subcommand("prepare", "Write token files from text or instruction data")) {
  Arguments& a = *arguments_;
  app_->footer(
      "Without --tokenizer every byte is a token (vocabulary 256).\n"
      "With --template lines and rows are instruction data: {\"prompt\", \"completion\"},\n"
      "{\"messages\": [{\"role\", \"content\"}]} or Alpaca's {\"instruction\", \"output\"}.\n"
      "Run the same command again after an interruption: it goes on.\n"
      "Examples:\n"
      "  dtrain data prepare --out data --ext txt,md ~/books\n"
      "  dtrain data prepare --out data --tokenizer Qwen3-0.6B text.jsonl.zst\n"
      "  dtrain data prepare --out data --tokenizer Qwen3-0.6B --template chatml \\\n"
      "      --sequence-length 2048 chats.jsonl");
  app_->add_option("SOURCES", a.sources,
                   "Text files, JSONL files (also .gz and .zst), Parquet files, folders, or - for "
                   "standard input. Default: /usr/include, with --ext h,hpp,hh,hxx,none");
  app_->add_option("--out", a.out, "Folder to write the token files to")
      ->option_text("FOLDER")
      ->required();
  app_->add_option("--tokenizer", a.tokenizer,
                   "Folder of a model, or its tokenizer.json, tokenizer.model, tekken.json or "
                   "*.tiktoken. Default: bytes are tokens")
      ->option_text("PATH");
  app_->add_option("--end-token", a.end_token,
                   "Token that ends each document. Default: the one that the tokenizer's files "
                   "name")
      ->option_text("TOKEN");
  app_->add_option("--text-key", a.text.rules.text_key,
                   "Member of a JSONL line, or column of a Parquet file, that is its text")
      ->option_text("NAME")
      ->capture_default_str();
  app_->add_option("--template", a.chat,
                   "The lines or rows are instruction data, written as: chatml, llama3, qwen, "
                   "alpaca or plain. Default: they are texts")
      ->option_text("NAME");
  app_->add_option("--prompt-key", a.text.rules.keys.prompt,
                   "Member of a line, or column, that is its prompt")
      ->option_text("NAME")
      ->capture_default_str();
  app_->add_option("--completion-key", a.text.rules.keys.completion,
                   "Member of a line, or column, that is its completion")
      ->option_text("NAME")
      ->capture_default_str();
  AddLimits();
}

void PrepareCommand::AddLimits() {
  Arguments& a = *arguments_;
  app_->add_option("--sequence-length", a.text.rules.row_length,
                   "Tokens of a row, into which whole samples of instruction data are packed; "
                   "data.sequence_length must be the same")
      ->option_text("TOKENS")
      ->capture_default_str();
  app_->add_option("--long-samples", a.long_samples,
                   "What becomes of a sample that is longer than a row: cut, drop or refuse")
      ->capture_default_str();
  app_->add_option("--format", a.format, "Format of the files: llmc or megatron")
      ->capture_default_str();
  app_->add_option("--shard-tokens", a.text.shard_tokens, "Largest number of tokens in a file")
      ->capture_default_str();
  app_->add_option("--skip-bad", a.text.skip_bad,
                   "Leave out up to N records that cannot be read, such as lines that are no JSON")
      ->option_text("N")
      ->capture_default_str();
  app_->add_option("--ext", a.extensions,
                   "In folders, read only files with these extensions, for example h,txt,none "
                   "(none means a name without extension). Default: all files")
      ->option_text("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);  // The next argument is a source.
  app_->add_option("--max-mb", a.max_megabytes,
                   "Take at most this much text, in MiB. Default: all text; for folders without "
                   "--tokenizer 64, and allowed there: below 2048");
  app_->add_option("--max-file-bytes", a.text.file_bytes_max,
                   "Leave out text files of folders with more bytes than this")
      ->capture_default_str();
  app_->add_option("--validation-percent", a.text.validation_percent,
                   "Percentage of the documents for val.bin, from 1 to 50")
      ->capture_default_str();
  app_->add_option("--threads", a.text.threads,
                   "Threads that make tokens. Default: one for each core")
      ->option_text("N");
}

PrepareCommand::~PrepareCommand() = default;

bool PrepareCommand::parsed() const { return app_->parsed(); }

absl::Status PrepareCommand::Run() const {
  if (!arguments_->end_token.empty() && arguments_->tokenizer.empty()) {
    return absl::InvalidArgumentError(
        "--end-token is the token of a vocabulary, and needs --tokenizer; bytes end with 0");
  }
  constexpr const char* kOfText[] = {"--text-key",     "--prompt-key", "--completion-key",
                                     "--shard-tokens", "--skip-bad",   "--threads"};
  const bool is_text = std::any_of(std::begin(kOfText), std::end(kOfText),
                                   [&](const char* option) { return app_->count(option) > 0; });
  return !is_text && arguments_->AreBytesOfFolders() ? arguments_->RunBytes()
                                                     : arguments_->RunText();
}

}  // namespace dtrain::plan
