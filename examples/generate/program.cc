#include "generate/program.h"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/job_env.h"
#include "base/status.h"
#include "base/system/cgroup.h"
#include "base/system/constant_pages.h"
#include "base/system/hidden_tiles.h"
#include "dtrain/warm_start.h"

void AddReadingOptions(CLI::App& app, ReadingOptions& options) {
  app.add_option("FOLDER", options.folder,
                 "Folder of a model: config.json, *.safetensors and its tokenizer. Or a run "
                 "directory or a checkpoint: its newest whole model")
      ->required();
  app.add_option("--tokenizer", options.tokenizer,
                 "Folder or file of the tokenizer, or bytes: every byte is a token. Default: the "
                 "one in the model's folder")
      ->option_text("PATH");
  app.add_option("--dtype", options.type, "Type of the weights in memory and of the arithmetic")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "Threads that compute. Default: one for each core that this process may use")
      ->option_text("N")
      ->check(CLI::Range(1, 4096));
}

absl::Status FindModel(const char* program, ReadingOptions& options) {
  DT_ASSIGN_OR_RETURN(std::string found, dtrain::FindModelFolder(options.folder));
  if (found != options.folder) {
    std::fprintf(stderr, "%s: the model is %s\n", program, found.c_str());
    options.folder = std::move(found);
  }
  return dtrain::FileExists(options.folder + "/config.json")
             ? absl::OkStatus()
             : absl::NotFoundError(absl::StrCat(
                   options.folder,
                   " has no config.json, which a folder of adapters lacks; give the folder of the "
                   "whole model: what `dtrain finetune` left in --out, or RUN_DIR/export/merged"));
}

void PrepareToCompute(const ReadingOptions& options) {
  dtrain::AvoidHiddenTiles(/*tell=*/true);
  dtrain::MapConstantPages();
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  } else if (!dtrain::ThreadsAreChosen(dtrain::ReadEnvironment())) {
    at::set_num_threads(dtrain::CpusWithin(dtrain::CpuQuota(), at::get_num_threads()));
  }
}

int EndOfProgram(const char* program, absl::FunctionRef<absl::Status()> run) {
  absl::Status status;
  try {
    status = run();
  } catch (const std::exception& error) {
    // The first line; LibTorch's exceptions have a stack behind it.
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(error.what(), absl::MaxSplits('\n', 1));
    status = absl::InvalidArgumentError(parts.first);
  }
  if (status.ok() && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    status = dtrain::ErrnoStatus(errno, "cannot write to standard output");
  }
  return dtrain::EndOf(program, status);
}
