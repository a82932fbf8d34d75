#include "launcher/nodes/coordinator_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/job_env.h"
#include "base/json.h"
#include "base/status.h"
#include "base/system/own_program.h"
#include "base/threads/worker.h"
#include "launcher/nodes/peers.h"
#include "launcher/ranks/rank_end.h"
#include "launcher/ranks/spawn.h"

namespace dtrain::launcher {
namespace {

constexpr int kStartsAgainMax = 10;
constexpr absl::Duration kEndTime = absl::Seconds(5);
constexpr char kEndLine[] = "end";  // An agent that is killed does not write it.
constexpr size_t kOptionsBytesMax = size_t{64} << 10;

// Reads up to a newline. Unavailable: the end of the file, or an error, came first.
absl::StatusOr<std::string> ReadLine(int fd, Deadline deadline) {
  std::string line;
  char next = 0;
  while (line.size() < kOptionsBytesMax) {
    pollfd entry{fd, POLLIN, 0};
    if (poll(&entry, 1, deadline.PollTimeoutMs()) <= 0) {
      if (deadline.Expired()) {
        return absl::DeadlineExceededError("nothing came in time");
      }
      continue;
    }
    const ssize_t n = read(fd, &next, 1);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n != 1) {
      return absl::UnavailableError("it has ended");
    }
    if (next == '\n') {
      return line;
    }
    line.push_back(next);
  }
  return absl::InvalidArgumentError("the line is too long");
}

bool WriteLine(int fd, const std::string& text) {
  const std::string line = text + "\n";
  return write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

// An agent has one coordinator at most. The mutex is held from before it is a child of this process
// until its number is known, because CoordinatorPid tells it from strays.
std::mutex coordinator_mutex;
pid_t coordinator_pid = -1;  // Guarded by coordinator_mutex.

double JsonSeconds(absl::Duration duration) { return absl::ToDoubleSeconds(duration); }

struct PipeEnds {
  UniqueFd read_end;
  UniqueFd write_end;
};
absl::StatusOr<PipeEnds> MakePipeEnds() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    return ErrnoStatus(errno, "pipe to the coordinator");
  }
  return PipeEnds{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Runs it in a session of its own, so that signals for the terminal or the agent's group do not
// reach it. 0 is the input, 1 the output.
absl::StatusOr<pid_t> SpawnCoordinator(int input, int output) {
  const std::vector<std::string> command = {OwnProgram(), "coordinator"};
  std::vector<std::string> variables;
  for (const auto& [name, value] : ReadEnvironment()) {
    variables.push_back(absl::StrCat(name, "=", value));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, input, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int error = posix_spawn(&pid, command[0].c_str(), &actions, &attributes,
                                ExecPointers(command).data(), ExecPointers(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return ErrnoStatus(error, absl::StrCat("cannot run ", command[0]));
  }
  return pid;
}

}  // namespace

pid_t CoordinatorPid() {
  const std::lock_guard lock(coordinator_mutex);
  return coordinator_pid;
}

std::string EncodeCoordinatorOptions(const CoordinatorOptions& options) {
  const absl::Span<const uint8_t> token = options.key.secret_bytes();
  const ElasticOptions& job = options.job;
  return DumpJson(Json{{"host", options.endpoint.host},
                       {"port", options.endpoint.port},
                       {"token", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(token.data()), token.size()))},
                       {"silence", JsonSeconds(options.silence)},
                       {"started_at", options.started_at},
                       {"nodes", {job.nodes_min, job.nodes_max}},
                       {"batch", {job.batch.global, job.batch.micro}},
                       {"restarts_max", job.restarts_max},
                       {"first_attempt", job.first_attempt},
                       {"join_timeout", JsonSeconds(job.join_timeout)},
                       {"last_call", JsonSeconds(job.last_call)},
                       {"settle", JsonSeconds(job.settle)},
                       {"reports", JsonSeconds(job.reports)},
                       {"stop_grace", JsonSeconds(job.stop_grace)},
                       {"exit_barrier", JsonSeconds(job.exit_barrier)},
                       {"is_successor", job.is_successor},
                       {"adoption", JsonSeconds(job.adoption)}});
}

absl::StatusOr<CoordinatorOptions> ParseCoordinatorOptions(absl::string_view text) {
  DT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "the coordinator's options"));
  try {
    const std::string token = absl::HexStringToBytes(json.at("token").get<std::string>());
    DT_ASSIGN_OR_RETURN(comm::JobKey key,
                        comm::JobKey::FromBytes(absl::MakeConstSpan(
                            reinterpret_cast<const uint8_t*>(token.data()), token.size())));
    const auto time = [&json](const char* name) {
      return absl::Seconds(json.at(name).get<double>());
    };
    CoordinatorOptions options{.endpoint = {json.at("host"), json.at("port")}, .key = key};
    options.silence = time("silence");
    options.started_at = json.at("started_at");
    options.job = {.nodes_min = json.at("nodes").at(0),
                   .nodes_max = json.at("nodes").at(1),
                   .batch = {json.at("batch").at(0), json.at("batch").at(1)},
                   .restarts_max = json.at("restarts_max"),
                   .first_attempt = json.at("first_attempt"),
                   .join_timeout = time("join_timeout"),
                   .last_call = time("last_call"),
                   .settle = time("settle"),
                   .reports = time("reports"),
                   .stop_grace = time("stop_grace"),
                   .exit_barrier = time("exit_barrier"),
                   .is_successor = json.at("is_successor"),
                   .adoption = time("adoption")};
    return options;
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError("the coordinator's options are malformed");
  }
}

absl::StatusOr<std::unique_ptr<CoordinatorProcess>> CoordinatorProcess::Start(
    const CoordinatorOptions& options, std::function<void(const std::string&)> say) {
  std::unique_ptr<CoordinatorProcess> process(new CoordinatorProcess(options, std::move(say)));
  process->stop_ = UniqueFd(eventfd(0, EFD_CLOEXEC));
  if (!process->stop_.valid()) {
    return ErrnoStatus(errno, "eventfd");
  }
  DT_RETURN_IF_ERROR(process->Spawn());
  process->options_.job.is_successor = true;
  process->thread_ = std::thread([raw = process.get()] { raw->Run(); });
  return process;
}

CoordinatorProcess::CoordinatorProcess(const CoordinatorOptions& options,
                                       std::function<void(const std::string&)> say)
    : options_(options), say_(std::move(say)) {}

CoordinatorProcess::~CoordinatorProcess() {
  if (thread_.joinable()) {
    (void)eventfd_write(stop_.get(), 1);
    thread_.join();
  }
}

// It answers "PORT", or "CODE MESSAGE".
absl::Status CoordinatorProcess::Spawn() {
  DT_ASSIGN_OR_RETURN(PipeEnds input, MakePipeEnds());
  DT_ASSIGN_OR_RETURN(PipeEnds output, MakePipeEnds());
  {
    const std::lock_guard lock(coordinator_mutex);
    DT_ASSIGN_OR_RETURN(coordinator_pid,
                        SpawnCoordinator(input.read_end.get(), output.write_end.get()));
  }
  output.write_end.reset();
  input_ = std::move(input.write_end);
  output_ = std::move(output.read_end);
  absl::Status status = absl::UnavailableError("it has ended");
  if (WriteLine(input_.get(), EncodeCoordinatorOptions(options_))) {
    const absl::StatusOr<std::string> answer =
        ReadLine(output_.get(), Deadline::After(kStoreCallTimeout));
    status = answer.status();
    int number = 0;
    if (answer.ok() && absl::SimpleAtoi(*answer, &options_.endpoint.port)) {
      return absl::OkStatus();
    }
    const size_t space = answer.ok() ? answer->find(' ') : std::string::npos;
    if (space != std::string::npos && absl::SimpleAtoi(answer->substr(0, space), &number)) {
      status = absl::Status(static_cast<absl::StatusCode>(number), answer->substr(space + 1));
    }
  }
  kill(CoordinatorPid(), SIGKILL);
  AwaitEnd();
  return status;
}

void CoordinatorProcess::AwaitEnd() {
  const pid_t pid = CoordinatorPid();
  while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  const std::lock_guard lock(coordinator_mutex);
  coordinator_pid = -1;
}

void CoordinatorProcess::Run() {
  PrepareThread("dtrain-keeper", /*low_priority=*/false);
  for (int starts = 0;;) {
    // No events are asked for, so that the end alone (POLLHUP) wakes, and no stray output.
    std::array<pollfd, 2> entries = {{{output_.get(), 0, 0}, {stop_.get(), POLLIN, 0}}};
    if (poll(entries.data(), entries.size(), -1) < 0) {
      continue;
    }
    if (entries[1].revents != 0) {
      WriteLine(input_.get(), kEndLine);
      input_.reset();
      pollfd end{output_.get(), 0, 0};
      if (poll(&end, 1, static_cast<int>(absl::ToInt64Milliseconds(kEndTime))) <= 0) {
        kill(CoordinatorPid(), SIGKILL);
      }
      AwaitEnd();
      return;
    }
    AwaitEnd();
    const bool again = ++starts <= kStartsAgainMax;
    const absl::Status started =
        again ? Spawn()
              : absl::ResourceExhaustedError(absl::StrFormat("it has ended %d times", starts));
    say_(started.ok() ? "the coordinator has ended; another takes its place"
                      : absl::StrCat("the coordinator has ended, and cannot be started again: ",
                                     started.message()));
    if (!started.ok()) {
      return;  // The agents find it lost.
    }
  }
}

// Ends when the agent says so. When the agent has ended without a word, it ends at once, so that
// its address is free.
int CoordinatorCommand() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE}) {
    std::signal(signal, SIG_IGN);
  }
  const auto text = ReadLine(STDIN_FILENO, Deadline::After(kStoreCallTimeout));
  const auto options = text.ok() ? ParseCoordinatorOptions(*text)
                                 : absl::StatusOr<CoordinatorOptions>(text.status());
  if (!options.ok()) {
    std::fprintf(stderr, "dtrain coordinator: `dtrain launch` starts this; it is not for users\n");
    return kExitUsage;
  }
  auto coordinator = Coordinator::Start(*options);
  if (!coordinator.ok()) {
    WriteLine(STDOUT_FILENO, absl::StrCat(static_cast<int>(coordinator.status().code()), " ",
                                          coordinator.status().message()));
    return ExitCodeFor(coordinator.status());
  }
  if (!WriteLine(STDOUT_FILENO, absl::StrCat((*coordinator)->endpoint().port))) {
    _exit(kExitTemporary);
  }
  const auto end = ReadLine(STDIN_FILENO, Deadline::Infinite());
  if (!end.ok() || *end != kEndLine) {
    _exit(kExitTemporary);
  }
  return kExitOk;
}

}  // namespace dtrain::launcher
