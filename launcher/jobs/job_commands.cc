// `dtrain ps`, `dtrain status`, `dtrain stop` and `dtrain drain`. They work on any host of a job,
// by the agent there, which asks the others or tells them.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/console/command_line.h"
#include "base/console/progress_line.h"
#include "base/json.h"
#include "base/status.h"
#include "base/text/text.h"
#include "launcher/commands/commands.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/job_registry.h"
#include "launcher/jobs/job_status.h"
#include "launcher/jobs/job_view.h"

namespace dtrain::launcher {
namespace {

std::string TimeSince(double started_at) {
  const double now = absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
  return FormatDuration(std::max(0.0, now - started_at));
}

// Sums up what all nodes of the job know of it. Where they cannot be asked, this node's agent
// counts.
JobSummary SummaryOf(const JobFacts& job, const absl::StatusOr<Json>& status) {
  JobSummary summary = status.ok() ? Summarize(*status, !job.nodes_socket.empty()) : JobSummary{};
  if (summary.started_at == 0) {  // All nodes of a fixed number start together.
    summary.started_at = job.started_at;
  }
  return summary;
}

// A row of `dtrain ps`.
std::string RowOf(const JobFacts& job, const JobSummary& summary) {
  const bool has_nodes = job.nodes > 1;
  return absl::StrFormat("%8d %10s %6d %5s %6s %9s  %-21s  %s\n", job.pid,
                         TimeSince(summary.started_at), job.ranks,
                         has_nodes ? absl::StrCat(job.node_rank) : "-",
                         summary.nodes < 0 ? "-" : absl::StrCat(summary.nodes),
                         summary.step < 0 ? "-" : WithThousands(summary.step),
                         job.coordinator.empty() ? "-" : Printable(job.coordinator), job.run_dir);
}

Json FactsOf(const JobFacts& job) {
  return {
      {"run_dir", job.run_dir}, {"run_id", job.run_id},         {"program", job.program},
      {"pid", job.pid},         {"nodes", job.nodes},           {"node_rank", job.node_rank},
      {"ranks", job.ranks},     {"started_at", job.started_at}, {"coordinator", job.coordinator}};
}

// The job of a run directory, or the only one. InvalidArgument names those that run.
absl::StatusOr<JobFacts> FindJob(const std::string& run_dir, const Environment& environment) {
  DT_ASSIGN_OR_RETURN(std::vector<JobFacts> jobs, RunningJobs(RegistryFolder(environment)));
  // Several nodes of one job may be on this host.
  if (run_dir.empty() && !jobs.empty() &&
      std::all_of(jobs.begin(), jobs.end(),
                  [&](const JobFacts& job) { return job.run_dir == jobs.front().run_dir; })) {
    return *JobIn(jobs.front().run_dir, jobs);
  }
  if (const JobFacts* const job = run_dir.empty() ? nullptr : JobIn(run_dir, jobs)) {
    return *job;
  }
  const std::string running =
      jobs.empty() ? "no job of yours runs on this host"
                   : absl::StrCat("these run here: ",
                                  absl::StrJoin(jobs, ", ", [](std::string* out, const auto& job) {
                                    absl::StrAppend(out, job.run_dir);
                                  }));
  return absl::InvalidArgumentError(
      run_dir.empty() ? absl::StrCat(running, jobs.empty() ? "" : "; name one by its run directory")
                      : absl::StrFormat("no job runs in %s; %s", run_dir, running));
}

void PrintStatus(const JobFacts& job, const Json& status) {
  const std::string ranks = status.contains("node_states")
                                ? CountNodes(status)
                                : absl::StrFormat("%d of %d ranks on this host", job.ranks,
                                                  status["world_size"].get<int>());
  const int attempt = status["attempt"];
  const std::string attempt_text =
      attempt < 0 ? "no attempt runs" : absl::StrCat("attempt ", attempt);
  const double started_at = status.value("job_started_at", job.started_at);
  std::printf("%s: %s for %s, %s, %s\n", job.run_dir.c_str(),
              status["phase"].get<std::string>().c_str(), TimeSince(started_at).c_str(),
              attempt_text.c_str(), ranks.c_str());
  std::fputs(StatusTable(status).c_str(), stdout);
  if (const std::string note = status.value("note", ""); !note.empty()) {
    std::printf("%s\n", Printable(note).c_str());
  }
}

// The parts that the three commands' lines have in common.
struct JobArguments {
  std::string run_dir;
  bool json = false;

  void AddRunDir(CLI::App& app) {
    app.add_option("RUN_DIR", run_dir,
                   "Run directory of the job. May be left out if one job runs on this host");
  }
  void AddJson(CLI::App& app) {
    app.add_flag("--json", json, "Print JSON instead of text. Default: off");
  }
};

absl::Status Signal(const JobFacts& job, int signal) {
  if (ProcessStart(job.pid) != job.process_start || kill(job.pid, signal) != 0) {
    return absl::NotFoundError(absl::StrFormat("the job in %s has just ended", job.run_dir));
  }
  return absl::OkStatus();
}

// Lets `node` leave the job, and waits until it has left.
absl::Status Drain(const JobFacts& job, const std::string& node) {
  constexpr absl::Duration kAskTime = absl::Seconds(15);
  if (job.control.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the job in %s has a fixed number of nodes, so none can leave; start it with "
        "--nnodes MIN:MAX, or stop it with `dtrain stop`",
        job.run_dir));
  }
  DT_ASSIGN_OR_RETURN(ControlClient client,
                      ControlClient::Ask(job.control, absl::StrCat("drain ", node)));
  DT_ASSIGN_OR_RETURN(const std::optional<std::string> answer,
                      client.Next(Deadline::After(kAskTime)));
  const std::string text = answer.value_or("no the agent has just ended");
  absl::string_view name = text;
  if (!absl::ConsumePrefix(&name, "ok ")) {
    return absl::FailedPreconditionError(absl::StripPrefix(text, "no "));
  }
  const int64_t began = Clock::Real().MonotonicNanos();
  std::printf("%s saves and leaves %s\n", std::string(name).c_str(), job.run_dir.c_str());
  std::fflush(stdout);
  // The agent bounds the wait by --stop-grace. It ends too when the agent itself leaves.
  DT_ASSIGN_OR_RETURN(const std::optional<std::string> left, client.Next(Deadline::Infinite()));
  if (left.has_value() && *left != "left") {
    return absl::UnavailableError(absl::StripPrefix(*left, "no "));
  }
  std::printf("%s has left after %.1f s\n", std::string(name).c_str(),
              static_cast<double>(Clock::Real().MonotonicNanos() - began) * 1e-9);
  return absl::OkStatus();
}

}  // namespace

int PsCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Lists the jobs of this user that have a node on this host. The columns are the launcher's "
      "pid, the time since the job began, the ranks and the number of this node, the number of "
      "nodes that have ranks, the newest step, and the coordinator's address.",
      "dtrain ps");
  JobArguments given;
  given.AddJson(app);
  app.footer("Example:\n  dtrain ps");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const auto jobs = RunningJobs(RegistryFolder(environment));
  if (!jobs.ok()) {
    return EndOf("dtrain ps", jobs.status());
  }
  Json rows = Json::array();
  if (!given.json && !jobs->empty()) {
    std::printf("%8s %10s %6s %5s %6s %9s  %-21s  %s\n", "pid", "up", "ranks", "node", "nodes",
                "step", "coordinator", "run directory");
  }
  const std::vector<absl::StatusOr<Json>> answers = AskJobs(*jobs);
  for (size_t i = 0; i < jobs->size(); ++i) {
    const JobFacts& job = (*jobs)[i];
    const JobSummary summary = SummaryOf(job, answers[i]);
    if (given.json) {
      rows.push_back(FactsOf(job));
      rows.back()["step"] = summary.step < 0 ? Json() : Json(summary.step);
      rows.back()["nodes_with_ranks"] = summary.nodes < 0 ? Json() : Json(summary.nodes);
      rows.back()["job_started_at"] = summary.started_at;
      continue;
    }
    std::fputs(RowOf(job, summary).c_str(), stdout);
  }
  if (given.json) {
    std::printf("%s\n", DumpJson(rows).c_str());
  } else if (jobs->empty()) {
    std::printf("No job of yours runs on this host.\n");
  }
  return kExitOk;
}

int StatusCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Shows what each rank of a running job does, on all its nodes, and when it last reported; "
      "with --nnodes MIN:MAX also the nodes without ranks. Works on each host of the job. The "
      "ranks "
      "of a node that does not answer within a second have the phase \"?\".",
      "dtrain status");
  JobArguments given;
  given.AddRunDir(app);
  given.AddJson(app);
  app.footer("Examples:\n  dtrain status\n  dtrain status runs/gpt");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const absl::StatusOr<JobFacts> job = FindJob(given.run_dir, environment);
  const absl::StatusOr<Json> status = job.ok() ? AskJob(*job) : job.status();
  if (!status.ok()) {
    return EndOf("dtrain status", status.status());
  }
  if (given.json) {
    Json all = FactsOf(*job);
    all.update(*status);
    std::printf("%s\n", DumpJson(all).c_str());
    return kExitOk;
  }
  PrintStatus(*job, *status);
  return kExitOk;
}

int StopCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Lets the ranks of a running job, on all its nodes, save and stop, and waits for "
      "the end. Ctrl-C ends the wait, not the stop.",
      "dtrain stop");
  JobArguments given;
  given.AddRunDir(app);
  bool now = false;
  app.add_flag("--now", now, "Kill the ranks at once, without a save. Default: off");
  app.footer("Examples:\n  dtrain stop runs/gpt\n  dtrain stop --now runs/gpt");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const absl::StatusOr<JobFacts> job = FindJob(given.run_dir, environment);
  // In an elastic job SIGTERM is for one node alone.
  const int signal = job.ok() && !job->control.empty() ? SIGINT : SIGTERM;
  absl::Status status = job.ok() ? Signal(*job, signal) : job.status();
  if (!status.ok()) {
    return EndOf("dtrain stop", status);
  }
  const int64_t began = Clock::Real().MonotonicNanos();
  std::printf("%s is told to %s\n", job->run_dir.c_str(), now ? "end now" : "save and stop");
  std::fflush(stdout);
  constexpr absl::Duration kLook = absl::Milliseconds(20);
  for (bool told = false; ProcessStart(job->pid) == job->process_start;) {
    Clock::Real().Sleep(kLook);
    if (now && !told) {  // The second signal kills. It must not melt into the first.
      const absl::StatusOr<Json> answer = AskOwnNode(*job);
      told = !answer.ok() || (*answer)["phase"] != "running";
      if (told) {
        Signal(*job, signal).IgnoreError();
      }
    }
  }
  std::printf("%s has ended after %.1f s\n", job->run_dir.c_str(),
              static_cast<double>(Clock::Real().MonotonicNanos() - began) * 1e-9);
  return kExitOk;
}

int DrainCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  CLI::App app(
      "Takes a node out of a running job that was started with --nnodes MIN:MAX: at the end of "
      "their step all ranks save, and the job goes on with a spare in the node's place or with "
      "fewer nodes. Waits until the node has left. Ctrl-C ends the wait, not the drain.",
      "dtrain drain");
  std::string node;
  app.add_option("NODE", node,
                 "Host name of the node, its name in the hostfile, or its number (--node-rank)")
      ->required();
  JobArguments given;
  given.AddRunDir(app);
  app.footer("Examples:\n  dtrain drain n3\n  dtrain drain 2 runs/gpt");
  if (const auto code = ParseCommandLine(app, arguments)) {
    return *code;
  }
  const absl::StatusOr<JobFacts> job = FindJob(given.run_dir, environment);
  const absl::Status status = job.ok() ? Drain(*job, node) : job.status();
  return EndOf("dtrain drain", status);
}

}  // namespace dtrain::launcher
