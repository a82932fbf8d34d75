#include "launcher/jobs/job_registry.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status.h"

namespace dtrain::launcher {
namespace {

absl::Status CheckFolder(const std::string& folder) {
  struct stat facts {};
  if (lstat(folder.c_str(), &facts) != 0) {
    return ErrnoStatus(errno, folder);
  }
  if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 0077) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "%s must be a folder of mode 0700 that belongs to user %d; remove it, or set "
        "XDG_RUNTIME_DIR to such a folder",
        folder, geteuid()));
  }
  return absl::OkStatus();
}

Json ToJson(const JobFacts& facts) {
  return {{"pid", facts.pid},
          {"process_start", facts.process_start},
          {"run_dir", facts.run_dir},
          {"run_id", facts.run_id},
          {"program", facts.program},
          {"socket", facts.socket},
          {"control", facts.control},
          {"nodes_socket", facts.nodes_socket},
          {"nodes", facts.nodes},
          {"node_rank", facts.node_rank},
          {"ranks", facts.ranks},
          {"started_at", facts.started_at},
          {"coordinator", facts.coordinator}};
}

absl::StatusOr<JobFacts> FromJson(const Json& json) {
  try {
    JobFacts facts;
    facts.pid = json.at("pid");
    facts.process_start = json.at("process_start");
    facts.run_dir = json.at("run_dir");
    facts.run_id = json.at("run_id");
    facts.program = json.at("program");
    facts.socket = json.at("socket");
    facts.control = json.value("control", "");
    facts.nodes_socket = json.value("nodes_socket", "");
    facts.coordinator = json.value("coordinator", "");
    facts.nodes = json.at("nodes");
    facts.node_rank = json.at("node_rank");
    facts.ranks = json.at("ranks");
    facts.started_at = json.at("started_at");
    return facts;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

absl::StatusOr<JobFacts> ReadFacts(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path));
  return FromJson(json);
}

}  // namespace

int64_t ProcessStart(int pid) {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  if (!text.ok()) {
    return 0;
  }
  // The name, in parentheses, may hold spaces. Behind it come " STATE", and the start as the 20th
  // field (proc(5)).
  constexpr size_t kStartField = 20;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(*text).substr(text->rfind(')') + 1), ' ');
  int64_t start = 0;
  const bool lives = fields.size() > kStartField && fields[1] != "Z";
  return lives && absl::SimpleAtoi(fields[kStartField], &start) ? start : 0;
}

std::string RegistryFolder(const Environment& environment) {
  const auto found = environment.find("XDG_RUNTIME_DIR");
  return found != environment.end() && !found->second.empty()
             ? absl::StrCat(found->second, "/dtrain")
             : absl::StrCat("/tmp/dtrain-", geteuid());
}

absl::StatusOr<JobEntry> JobEntry::Add(const std::string& folder, JobFacts facts) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat("cannot create ", folder));
  }
  DT_RETURN_IF_ERROR(CheckFolder(folder));
  facts.process_start = ProcessStart(facts.pid);
  std::string path = absl::StrCat(folder, "/", facts.pid, ".json");
  DT_RETURN_IF_ERROR(WriteFileAtomic(path, DumpJson(ToJson(facts)), 0600));
  return JobEntry(std::move(path));
}

JobEntry::~JobEntry() {
  if (!path_.empty()) {
    unlink(path_.c_str());
  }
}

absl::StatusOr<std::vector<JobFacts>> RunningJobs(const std::string& folder) {
  std::vector<JobFacts> jobs;
  std::error_code none;
  if (!std::filesystem::exists(folder, none)) {
    return jobs;
  }
  DT_RETURN_IF_ERROR(CheckFolder(folder));
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    const std::string path = entry.path();
    if (entry.path().extension() != ".json") {
      continue;
    }
    absl::StatusOr<JobFacts> facts = ReadFacts(path);
    if (facts.ok() && ProcessStart(facts->pid) == facts->process_start) {
      jobs.push_back(*std::move(facts));
    } else {
      unlink(path.c_str());  // Its agent was killed.
    }
  }
  std::sort(jobs.begin(), jobs.end(), [](const JobFacts& a, const JobFacts& b) {
    return std::pair(a.started_at, a.pid) < std::pair(b.started_at, b.pid);
  });
  return jobs;
}

const JobFacts* JobIn(const std::string& run_dir, absl::Span<const JobFacts> jobs) {
  std::error_code none;
  const auto wanted = std::filesystem::weakly_canonical(run_dir, none);
  const JobFacts* found = nullptr;
  for (const JobFacts& job : jobs) {
    const bool is_there = std::filesystem::weakly_canonical(job.run_dir, none) == wanted;
    if (is_there && (found == nullptr || job.node_rank < found->node_rank)) {
      found = &job;
    }
  }
  return found;
}

}  // namespace dtrain::launcher
