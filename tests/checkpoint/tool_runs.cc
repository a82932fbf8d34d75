#include "tests/checkpoint/tool_runs.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

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

}  // namespace

ToolRun RunTool(const std::string& arguments, const char* stderr_to, uid_t user) {
  const std::string command =
      absl::StrCat("exec \"", TOOL_PATH, "\" ", arguments, " 2>", stderr_to);
  int ends[2];
  DT_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const auto begin = std::chrono::steady_clock::now();
  const pid_t child = fork();
  DT_CHECK(child >= 0);
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    if (user != 0 && setuid(user) != 0) {
      _exit(126);
    }
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  ToolRun run;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    run.output.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  struct rusage used {};
  DT_CHECK(wait4(child, &status, 0, &used) == child);
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
