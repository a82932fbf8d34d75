#include "tests/checkpoint/tool_runs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "checkpoint/storage/posix_storage.h"

namespace dtrain::checkpoint {
namespace {

namespace fs = std::filesystem;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr double kRefusalSeconds = 10;
#else
constexpr double kRefusalSeconds = 1;
#endif

template <class T>
absl::Span<const std::byte> BytesOf(absl::Span<const T> values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

// The bounds of the ranks' parts of `total` elements, of which ranks have different numbers.
std::vector<size_t> Bounds(size_t total, int world_size) {
  std::vector<size_t> bounds = {0};
  for (int rank = 1; rank < world_size; ++rank) {
    bounds.push_back(total * static_cast<size_t>(rank) / static_cast<size_t>(world_size) + 1);
  }
  bounds.push_back(total);
  return bounds;
}

struct Pipe {
  Pipe() { DT_CHECK(pipe2(ends, O_CLOEXEC) == 0); }
  int ends[2];

  // Reads until all others have closed their end.
  std::string ReadAll() {
    close(ends[1]);
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
      text.append(buffer, static_cast<size_t>(n));
    }
    close(ends[0]);
    return text;
  }
};

// Starts `command` as a child of this process that was not forked from it, and gives its id. The
// kernel counts the memory that a process had before exec as its own, and this one may have much:
// so a shell starts it and ends, and this process, as the next reaper above, has it then. It waits
// for that, because the shell would reap it if it ended before.
pid_t StartSmall(const std::string& command, Pipe& output, uid_t user) {
  constexpr int kIdFd = 3;
  constexpr int kGoFd = 4;
  const std::string script = absl::StrCat("(exec 3>&-; read go <&", kGoFd, "; exec ", command,
                                          " 4<&-) & echo $! >&", kIdFd);
  DT_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
  Pipe id;
  Pipe go;
  const pid_t shell = fork();
  DT_CHECK(shell >= 0);
  if (shell == 0) {
    dup2(output.ends[1], STDOUT_FILENO);
    // Both above what the script uses, wherever the pipes lie.
    const int id_end = fcntl(id.ends[1], F_DUPFD_CLOEXEC, kGoFd + 1);
    const int go_end = fcntl(go.ends[0], F_DUPFD_CLOEXEC, kGoFd + 1);
    dup2(id_end, kIdFd);
    dup2(go_end, kGoFd);
    if (user != 0 && setuid(user) != 0) {
      _exit(126);
    }
    execl("/bin/sh", "sh", "-c", script.c_str(), nullptr);
    _exit(127);
  }
  const std::string text = id.ReadAll();
  int status = 0;
  DT_CHECK(waitpid(shell, &status, 0) == shell && status == 0) << script;
  DT_CHECK(prctl(PR_SET_CHILD_SUBREAPER, 0) == 0);
  close(go.ends[0]);
  close(go.ends[1]);
  int started = 0;
  DT_CHECK(absl::SimpleAtoi(text, &started)) << text;
  return started;
}

}  // namespace

ToolRun RunTool(const std::string& arguments, const char* stderr_to, uid_t user) {
  const auto begin = std::chrono::steady_clock::now();
  Pipe output;
  const pid_t tool =
      StartSmall(absl::StrCat("\"", TOOL_PATH, "\" ", arguments, " 2>", stderr_to), output, user);
  ToolRun run;
  run.output = output.ReadAll();
  int status = 0;
  rusage used{};
  DT_CHECK(wait4(tool, &status, 0, &used) == tool);
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  for (const timeval& time : {used.ru_utime, used.ru_stime}) {
    run.cpu_seconds += static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  }
  run.memory_bytes = static_cast<uint64_t>(used.ru_maxrss) << 10;
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

Json ToolJson(const std::string& arguments, int code) {
  const ToolRun run = RunTool(arguments + " --json", "/dev/null");
  EXPECT_EQ(run.code, code) << arguments << "\n" << run.output;
  const absl::StatusOr<Json> json = ParseJson(run.output, "output");
  EXPECT_TRUE(json.ok()) << json.status() << "\n" << run.output;
  return json.ok() ? *json : Json();
}

void ExpectRefused(const std::string& arguments, int code, const std::vector<std::string>& texts,
                   uid_t user) {
  SCOPED_TRACE(arguments);
  const ToolRun run = RunTool(arguments, "&1", user);
  EXPECT_EQ(run.code, code) << run.output;
  EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
  EXPECT_LT(run.cpu_seconds, kRefusalSeconds);
  EXPECT_LT(run.seconds, 10 * kRefusalSeconds) << "it waited for something";
  for (const std::string& text : texts) {
    EXPECT_THAT(run.output, ::testing::HasSubstr(text));
  }
}

std::map<std::string, std::string> Snapshot(const std::string& folder) {
  std::map<std::string, std::string> files;
  if (!fs::exists(folder)) {
    return files;
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = fs::relative(entry.path(), folder);
    if (entry.is_symlink()) {
      files[name] = "link to " + fs::read_symlink(entry.path()).string();
    } else {
      files[name] = entry.is_directory() ? "folder" : *ReadFile(entry.path());
    }
  }
  return files;
}

ShardedState ShardedState::Random(uint64_t seed) {
  ShardedState state;
  SplitMix64 random(seed);
  for (float& value : state.weight) {
    value = static_cast<float>(random.Uniform()) - 0.5F;
  }
  for (uint16_t& value : state.bias) {
    value = static_cast<uint16_t>(0x3f80 + random.Below(128));  // From 1 to 2.
  }
  for (float& value : state.exp_avg) {
    value = static_cast<float>(random.Uniform());
  }
  state.engine = {{"optimizer", "AdamW"}, {"step", 100}, {"loss_scale", {{"scale", 1.0}}}};
  return state;
}

std::string SaveSharded(Storage& storage, const EpochRecord& epoch, int world_size, int64_t step,
                        const ShardedState& state) {
  const std::vector<size_t> bounds = Bounds(state.exp_avg.size(), world_size);
  const std::vector<uint8_t> rng = {1, 2, 3};
  RunRanks(world_size, [&](int rank, Exchange& exchange) {
    SpanSource source;
    if (rank == 0) {
      source.model.push_back(
          {{"layers.0.weight", DType::kFloat32, {static_cast<int64_t>(state.weight.size() / 8), 8}},
           BytesOf(absl::MakeConstSpan(state.weight))});
      source.model_files = {{"config.json", state.config}};
    }
    if (rank == world_size - 1) {
      source.model.push_back(
          {{"layers.0.bias", DType::kBFloat16, {static_cast<int64_t>(state.bias.size())}},
           BytesOf(absl::MakeConstSpan(state.bias))});
    }
    const size_t first = bounds[static_cast<size_t>(rank)];
    const size_t last = bounds[static_cast<size_t>(rank) + 1];
    // Two ranges a rank, as buckets give them.
    const size_t middle = (first + last) / 2;
    source.rank = {{"ranges", {{first, middle}, {middle, last}}}, {"tracked", {{"position", 7}}}};
    source.state.push_back(
        {{"exp_avg", DType::kFloat32, {static_cast<int64_t>(last - first)}},
         BytesOf(absl::MakeConstSpan(state.exp_avg).subspan(first, last - first))});
    source.state.push_back({{"rng.cpu", DType::kUInt8, {3}}, BytesOf(absl::MakeConstSpan(rng))});
    source.job.zero_stage = 1;
    source.job.layout_hash = state.layout_hash;
    source.job.engine = state.engine;
    WriterOptions options = OptionsFor(epoch);
    options.keep.newest = 0;
    Writer writer(storage, options);
    const SaveReport report = writer.Save(step, source, exchange);
    DT_CHECK(report.durable()) << report.status.ToString();
  });
  return storage.DisplayName(StepId{epoch.epoch, step}.DirectoryName());
}

RunFolder BeginRun(const std::string& path, const std::string& job) {
  RunFolder run;
  run.storage = *OpenPosixStorage(path);
  run.epoch = *BeginEpoch(*run.storage, job, 2, std::nullopt);
  return run;
}

SmallDisk::SmallDisk(size_t bytes) {
  mounted_ = mount("tmpfs", folder_.path().c_str(), "tmpfs", MS_NOSUID | MS_NODEV,
                   absl::StrCat("size=", bytes).c_str()) == 0;
}

SmallDisk::~SmallDisk() {
  if (mounted_) {
    umount2(folder_.path().c_str(), MNT_DETACH);
  }
}

void FlipBit(const std::string& path, int64_t offset) {
  std::string content = *ReadFile(path);
  const auto at =
      static_cast<size_t>(offset < 0 ? static_cast<int64_t>(content.size()) + offset : offset);
  content[at] = static_cast<char>(content[at] ^ 1);
  DT_CHECK_OK(WriteFileAtomic(path, content));
}

}  // namespace dtrain::checkpoint
