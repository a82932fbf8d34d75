#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/console/command_line.h"
#include "base/file.h"
#include "base/status.h"
#include "launcher/commands/commands.h"
#include "launcher/export/pickle.h"
#include "launcher/records/flight_trace.h"

namespace dtrain::launcher {
namespace {

struct TraceOptions {
  bool merge = true;
  std::string run_dir;
  std::string out;
};

// The text of a rank's file, and its parsed form.
struct RankRecord {
  Json json;
  FlightFile file;
};

// The records of all ranks, in rank order.
absl::StatusOr<std::vector<RankRecord>> ReadRecords(const std::string& run_dir) {
  std::vector<RankRecord> records;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run_dir + "/flight", ignored)) {
    const std::string name = entry.path().filename();
    if (absl::StartsWith(name, "rank-") && absl::EndsWith(name, ".json")) {
      const std::string path = entry.path();
      DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
      DT_ASSIGN_OR_RETURN(Json json, ParseJson(text, path));
      DT_ASSIGN_OR_RETURN(FlightFile file, ParseFlightFile(json, path));
      records.push_back({std::move(json), std::move(file)});
    }
  }
  if (records.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "there is no %s/flight/rank-R.json; ranks write it when a collective fails, on SIGTERM and "
        "on SIGUSR2",
        run_dir));
  }
  std::sort(records.begin(), records.end(),
            [](const RankRecord& a, const RankRecord& b) { return a.file.rank < b.file.rank; });
  return records;
}

absl::Status WritePickles(const TraceOptions& options, const std::vector<RankRecord>& records) {
  DT_RETURN_IF_ERROR(MakeDirectories(options.out));
  for (const RankRecord& record : records) {
    DT_RETURN_IF_ERROR(WriteFileAtomic(absl::StrCat(options.out, "/rank_", record.file.rank),
                                       ToPickle(record.json)));
  }
  std::printf("wrote the records of %zu ranks to %s; now run: torchfrtrace %s\n", records.size(),
              options.out.c_str(), options.out.c_str());
  return absl::OkStatus();
}

absl::Status Merge(const TraceOptions& options, std::vector<RankRecord> records) {
  std::vector<FlightFile> files;
  for (RankRecord& record : records) {
    files.push_back(std::move(record.file));
  }
  const std::vector<ClockOffset> offsets = AlignClocks(files);
  size_t calls = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    calls += files[i].entries.size();
    if (!offsets[i].known) {
      std::fprintf(stderr,
                   "dtrain trace: the clock of rank %d is not aligned, because it finished no "
                   "collective that another rank has recorded\n",
                   files[i].rank);
    }
  }
  DT_RETURN_IF_ERROR(WriteFileAtomic(options.out, DumpJson(ChromeTrace(files, offsets)) + "\n"));
  std::printf("wrote %zu calls of %zu ranks to %s\n", calls, files.size(), options.out.c_str());
  for (size_t i = 1; i < files.size(); ++i) {
    if (offsets[i].nanos != 0) {
      std::printf("rank %d: clock %+.3f ms against rank %d (to %.3f ms)\n", files[i].rank,
                  static_cast<double>(offsets[i].nanos) * 1e-6, files[0].rank,
                  static_cast<double>(offsets[i].error_nanos) * 1e-6);
    }
  }
  return absl::OkStatus();
}

absl::Status Run(TraceOptions options) {
  if (options.out.empty()) {
    options.out =
        absl::StrCat(options.run_dir, options.merge ? "/flight/trace.json" : "/flight/torch");
  }
  DT_ASSIGN_OR_RETURN(std::vector<RankRecord> records, ReadRecords(options.run_dir));
  return options.merge ? Merge(options, std::move(records)) : WritePickles(options, records);
}

}  // namespace

int TraceCommand(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Converts the ranks' records of their last collectives, which are in "
      "RUN_DIR/flight/rank-R.json. A rank writes its record when a collective fails, when the rank "
      "ends with an error, on SIGTERM and on SIGUSR2.",
      "dtrain trace");
  app.require_subcommand(1);
  TraceOptions options;
  CLI::App* const merge = app.add_subcommand(
      "merge",
      "Write a timeline for https://ui.perfetto.dev or chrome://tracing.\nEach rank is a process "
      "and each group a track. A call shows its bucket, bytes and step, "
      "and the rank that entered it last. The clocks of different hosts are aligned.");
  merge->add_option("RUN_DIR", options.run_dir, "Run directory")->required();
  merge->add_option("--out", options.out, "File to write. Default: RUN_DIR/flight/trace.json")
      ->option_text("FILE");
  merge->footer("Example:\n  kill -USR2 PID && dtrain trace merge --out trace.json runs/gpt");
  CLI::App* const torch = app.add_subcommand(
      "torch", "Write one pickle for each rank, for PyTorch's analyser: torchfrtrace DIR");
  torch->add_option("RUN_DIR", options.run_dir, "Run directory")->required();
  torch->add_option("--out", options.out, "Folder to write. Default: RUN_DIR/flight/torch")
      ->option_text("DIR");
  torch->footer("Example:\n  dtrain trace torch runs/gpt && torchfrtrace runs/gpt/flight/torch");
  app.footer(
      "Examples:\n"
      "  dtrain trace merge runs/gpt\n"
      "  dtrain trace torch --out pickles runs/gpt");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  options.merge = merge->parsed();
  return EndOf("dtrain trace", Run(options));
}

}  // namespace dtrain::launcher
