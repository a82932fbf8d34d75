#include "launcher/hosts/node_agent.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/console/command_line.h"
#include "base/crc32c.h"
#include "base/file.h"
#include "base/status.h"
#include "base/system/resource_limits.h"
#include "launcher/hosts/agent_relay.h"
#include "launcher/hosts/frames.h"
#include "launcher/hosts/host_relay.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/launch.h"
#include "launcher/options.h"
#include "launcher/program.h"
#include "launcher/ranks/signals.h"

namespace dtrain::launcher {
namespace {

// Waits for the next frame on stdin; nothing when the starter is gone.
absl::StatusOr<std::optional<Frame>> ReadFrame(FrameReader& reader) {
  std::array<char, 65536> chunk{};
  while (true) {
    absl::StatusOr<std::optional<Frame>> frame = reader.Next();
    if (!frame.ok() || frame->has_value()) {
      return frame;
    }
    const ssize_t n = read(STDIN_FILENO, chunk.data(), chunk.size());
    if (n == 0 || (n < 0 && errno != EINTR)) {
      return std::nullopt;
    }
    reader.Add(absl::string_view(chunk.data(), n > 0 ? static_cast<size_t>(n) : 0));
  }
}

absl::Status WriteFrame(FrameKind kind, absl::string_view payload) {
  const std::string frame = EncodeFrame(kind, payload);
  return WriteFully(STDOUT_FILENO, frame.data(), frame.size());
}

// Size and checksum of a file, to tell different programs apart.
absl::StatusOr<std::string> DigestOf(const std::string& path) {
  DT_ASSIGN_OR_RETURN(const UniqueFd file, OpenFile(path, O_RDONLY));
  std::vector<char> chunk(1U << 20);
  uint64_t bytes = 0;
  uint32_t checksum = 0;
  while (true) {
    const ssize_t n = read(file.get(), chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n < 0) {
      return ErrnoStatus(errno, absl::StrCat("cannot read ", path));
    }
    if (n == 0) {
      return absl::StrFormat("%d bytes, CRC-32C %08x", bytes, checksum);
    }
    checksum = Crc32c(chunk.data(), static_cast<size_t>(n), checksum);
    bytes += static_cast<uint64_t>(n);
  }
}

// The options of this node, ready but for the address of the meeting. Changes the working directory
// and this process's environment.
absl::StatusOr<LaunchOptions> PrepareNode(const JobMessage& job) {
  if (chdir(job.directory.c_str()) != 0) {
    return ErrnoStatus(errno, absl::StrCat("cannot work in the folder ", job.directory));
  }
  for (const auto& [name, value] : job.environment) {
    setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  std::vector<std::string> words = job.flags;
  words.insert(words.end(), {"--", job.program});
  words.insert(words.end(), job.arguments.begin(), job.arguments.end());
  DT_ASSIGN_OR_RETURN(const ParsedLaunch parsed, ParseLaunch(words, {}));
  LaunchOptions options = parsed.options;
  options.nodes = job.nodes;
  options.nodes_min = job.nodes_min;
  options.node_rank = job.node_rank;
  options.host_alias = job.host;
  options.ranks_per_node = absl::StrCat(job.ranks);
  options.quiet = options.quiet || job.node_rank > 0;  // Node 0 speaks for all, but for errors.
  return options;
}

// Fills in what this host has of the job's program, or why the node cannot start.
absl::StatusOr<LaunchOptions> Greet(const JobMessage& job, HelloMessage& hello) {
  DT_ASSIGN_OR_RETURN(LaunchOptions options, PrepareNode(job));
  const Environment environment = ReadEnvironment();
  const auto path = environment.find("PATH");
  DT_ASSIGN_OR_RETURN(hello.program,
                      FindProgram(options.program, path == environment.end() ? "" : path->second));
  DT_ASSIGN_OR_RETURN(hello.digest, DigestOf(hello.program));
  return options;
}

// The addresses of "CLIENT PORT SERVER PORT", which sshd sets.
void TakeAddresses(const Environment& environment, HelloMessage& hello) {
  const auto found = environment.find("SSH_CONNECTION");
  const std::vector<std::string> words =
      absl::StrSplit(found == environment.end() ? "" : found->second, ' ');
  if (words.size() == 4) {
    hello.client_address = words[0];
    hello.address = words[2];
  }
}

// The process of the node itself, after fork.
[[noreturn]] void RunNode(const LaunchOptions& options, const JobMessage& job, int serving,
                          const sigset_t& mask) {
  setpgid(0, 0);  // A signal to the group of the first process is passed on by it.
  sigprocmask(SIG_SETMASK, &mask, nullptr);
  const auto token =
      absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(job.token.data()), job.token.size());
  const absl::StatusOr<comm::JobKey> key = comm::JobKey::FromBytes(token);
  if (!key.ok()) {
    std::_Exit(EndOf("dtrain launch", key.status()));
  }
  const NodeStart start{*key, [serving](const comm::Endpoint& endpoint) {
                          const std::string text = endpoint.ToString();
                          WriteFully(serving, text.data(), text.size()).IgnoreError();
                        }};
  const int code = RunLaunch(options, ReadEnvironment(), &start);
  std::fflush(nullptr);
  std::_Exit(code);
}

// Starts the node's process and talks for it until it has ended; the exit code.
absl::StatusOr<int> StartNode(const LaunchOptions& options, const JobMessage& job,
                              FrameReader reader) {
  sigset_t before;
  sigprocmask(SIG_SETMASK, nullptr, &before);
  DT_ASSIGN_OR_RETURN(SignalSource signals, SignalSource::Create(options.signals));
  DT_ASSIGN_OR_RETURN(NodePipes pipes, NodePipes::Create());
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid < 0) {
    return CannotStart("the node's launcher", errno);
  }
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) {
      std::_Exit(kExitTemporary);  // The first process died before the line above.
    }
    const int serving = pipes.EnterNode();
    RunNode(options, job, serving, before);
  }
  pipes.LeaveNode();
  return AgentRelay({pid, SIGTERM, signals, std::move(pipes), std::move(reader)}).Run();
}

// Starts other hosts for the starter, and this one's agent, until it has gone.
absl::StatusOr<int> RunRelay(const std::string& directory, FrameReader reader) {
  // ssh looks there for files that the user's options name. If there is no such folder, the agent
  // of this host says so.
  std::error_code ignored;
  std::filesystem::current_path(directory, ignored);
  DT_ASSIGN_OR_RETURN(SignalSource signals,
                      SignalSource::Create({SIGTERM, SIGINT, SIGHUP, SIGQUIT}));
  HelloMessage hello;
  hello.version = OwnVersion();
  DT_RETURN_IF_ERROR(WriteFrame(FrameKind::kHello, hello.Encode()));
  HostRelay(signals, std::move(reader)).Run();
  return kExitOk;
}

absl::StatusOr<int> RunAgent(const Environment& environment) {
  DT_RETURN_IF_ERROR(WriteFully(STDOUT_FILENO, kPreamble, sizeof(kPreamble) - 1));
  FrameReader reader{""};
  DT_ASSIGN_OR_RETURN(const std::optional<Frame> first, ReadFrame(reader));
  if (!first.has_value()) {
    return kExitTemporary;
  }
  if (first->kind == FrameKind::kRelay) {
    return RunRelay(first->payload, std::move(reader));
  }
  HelloMessage hello;
  hello.version = OwnVersion();
  TakeAddresses(environment, hello);
  absl::StatusOr<JobMessage> job = absl::InvalidArgumentError("the first message is not the job");
  if (first->kind == FrameKind::kJob) {
    job = JobMessage::Parse(first->payload);
  }
  absl::StatusOr<LaunchOptions> options = job.ok() ? Greet(*job, hello) : job.status();
  hello.error = std::string(options.status().message());
  DT_RETURN_IF_ERROR(WriteFrame(FrameKind::kHello, hello.Encode()));
  if (!options.ok()) {
    return ExitCodeFor(options.status());
  }
  DT_ASSIGN_OR_RETURN(const std::optional<Frame> meet, ReadFrame(reader));
  if (!meet.has_value() || meet->kind != FrameKind::kMeet) {
    return kExitTemporary;  // The starter has ended, or stops the job before it began.
  }
  options->rendezvous = meet->payload;
  return StartNode(*options, *job, std::move(reader));
}

}  // namespace

int NodeAgentCommand(const std::vector<std::string>& arguments, const Environment& environment) {
  if (!arguments.empty() || isatty(STDIN_FILENO) != 0) {
    std::fprintf(stderr,
                 "dtrain node-agent: `dtrain launch --hostfile` starts this on each host; it is "
                 "not for use by hand\n");
    return kExitUsage;
  }
  const absl::StatusOr<int> code = RunAgent(environment);
  return code.ok() ? *code : EndOf("dtrain node-agent", code.status());
}

}  // namespace dtrain::launcher
