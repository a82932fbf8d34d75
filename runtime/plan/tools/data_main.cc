// dtrain-data: writes and shows token files. `dtrain data ...` runs it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/console/command_line.h"
#include "base/status.h"
#include "runtime/plan/data/prepare_corpus.h"
#include "runtime/plan/data/token_file.h"

namespace dtrain::plan {
namespace {

constexpr const char* kDefaultFolder = "/usr/include";

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

struct PrepareArguments {
  PrepareOptions options;
  double max_megabytes = 64;
};

absl::Status Prepare(PrepareArguments arguments) {
  PrepareOptions& options = arguments.options;
  if (options.folders.empty()) {
    options.folders = {kDefaultFolder};
    if (options.extensions.empty()) {
      options.extensions = {".h", ".hpp", ".hh", ".hxx", ""};
    }
  }
  for (std::string& extension : options.extensions) {
    if (extension == "none") {
      extension.clear();
    } else if (!extension.empty() && extension[0] != '.') {
      extension.insert(0, 1, '.');
    }
  }
  if (!(arguments.max_megabytes > 0 && arguments.max_megabytes < 2048)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--max-mb is %g; want a number above 0 and below 2048", arguments.max_megabytes));
  }
  options.bytes_max = static_cast<int64_t>(arguments.max_megabytes * 1048576.0);
  DT_ASSIGN_OR_RETURN(const PrepareReport report, PrepareCorpus(options));
  Print(PrepareTable(report));
  return absl::OkStatus();
}

// Bytes as a reader can see them.
std::string Visible(const std::vector<int64_t>& tokens) {
  std::string text;
  for (const int64_t token : tokens) {
    const auto byte = static_cast<char>(token);
    text += byte == '\n'               ? "\\n"
            : byte == '\0'             ? "\\0"
            : byte >= 32 && byte < 127 ? std::string(1, byte)
                                       : ".";
  }
  return text;
}

absl::Status Show(const std::string& path, const std::string& format_name, int64_t head) {
  DT_ASSIGN_OR_RETURN(const TokenFormat format, TokenFormatFromName(format_name));
  DT_ASSIGN_OR_RETURN(const TokenFile file, TokenFile::Open(path, format));
  const TokenHeader& header = file.header();
  const int64_t count = std::min(head, file.tokens());
  std::vector<int64_t> tokens(static_cast<size_t>(count));
  DT_RETURN_IF_ERROR(file.Copy(0, absl::MakeSpan(tokens)));
  std::string ids;
  for (const int64_t token : tokens) {
    absl::StrAppendFormat(&ids, "%s%d", ids.empty() ? "" : " ", token);
  }
  Print(absl::StrFormat(
      "file        %s\nformat      %s, u%d\ntokens      %d\nvocabulary  %s\nhead        %s\n", path,
      header.data_offset == 0 ? "nanogpt (no header)" : "llm.c", 8 * header.bytes_per_token,
      header.tokens,
      header.vocabulary == 0 ? "not stated" : absl::StrFormat("%d", header.vocabulary), ids));
  if (header.vocabulary == 256) {
    Print(absl::StrFormat("as text     %s\n", Visible(tokens)));
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app("Writes token files for training and shows what is in them.", "dtrain data");
  app.footer(
      "Examples:\n"
      "  dtrain data prepare --out data            from the headers in /usr/include\n"
      "  dtrain data prepare --out data ~/books    from every text file in a folder\n"
      "  dtrain data show data/train.bin");
  app.require_subcommand(1);

  PrepareArguments prepare;
  CLI::App* prepare_app = app.add_subcommand(
      "prepare",
      "Write train.bin and val.bin from text files; every byte is a token (vocabulary 256)");
  prepare_app->footer("Example:\n  dtrain data prepare --out data --ext txt,md ~/books");
  prepare_app->add_option("FOLDERS", prepare.options.folders,
                          "Folders with text files. Default: /usr/include, with --ext "
                          "h,hpp,hh,hxx,none");
  prepare_app->add_option("--out", prepare.options.out, "Folder to write the token files to")
      ->option_text("FOLDER")
      ->required();
  prepare_app
      ->add_option("--ext", prepare.options.extensions,
                   "Read only files with these extensions, for example h,txt,none (none means a "
                   "name without extension). Default: all files")
      ->option_text("LIST")
      ->delimiter(',')
      ->allow_extra_args(false);  // The next argument is a folder.
  prepare_app
      ->add_option("--max-mb", prepare.max_megabytes,
                   "Stop after this much text, in MiB, above 0 and below 2048")
      ->capture_default_str();
  prepare_app
      ->add_option("--max-file-bytes", prepare.options.file_bytes_max,
                   "Leave out files with more bytes than this")
      ->capture_default_str();
  prepare_app
      ->add_option("--validation-percent", prepare.options.validation_percent,
                   "Percentage of the files for val.bin, from 1 to 50")
      ->capture_default_str();

  std::string path;
  std::string format = "auto";
  int64_t head = 32;
  CLI::App* show_app =
      app.add_subcommand("show", "Print the format, the size and the first tokens of a token file");
  show_app->footer("Example:\n  dtrain data show data/train.bin --head 64");
  show_app->add_option("FILE", path, "Token file")->required();
  show_app
      ->add_option("--format", format,
                   "Format of the file: auto (read the header), llmc or nanogpt-u16")
      ->capture_default_str();
  show_app->add_option("--head", head, "Number of tokens to print")
      ->capture_default_str()
      ->check(CLI::Range(0, 100000));

  if (const auto code = ParseCommandLine(app, argc, argv)) {
    return *code;
  }
  return EndOf("dtrain data", prepare_app->parsed() ? Prepare(prepare) : Show(path, format, head));
}

}  // namespace
}  // namespace dtrain::plan

int main(int argc, char** argv) { return dtrain::plan::Main(argc, argv); }
