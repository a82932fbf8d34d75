#include "tests/runtime/checkpoint/hosts_training.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/restore/reader.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/posix_storage.h"
#include "comm/group.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::testing::hosts {

std::string HostFolder(const std::string& folder, int host) {
  return absl::StrCat(folder, "/host-", host);
}

std::string Disk(const std::string& folder, int host) {
  return HostFolder(folder, host) + "/disk/test";  // The run's id is "test".
}

std::string Memory(const std::string& folder, int host) {
  return HostFolder(folder, host) + "/memory/dtrain-replicas-test";
}

std::string Shared(const std::string& folder) { return folder + "/run/checkpoints"; }

namespace {

absl::Status TrainRank(RankContext& context, const std::string& folder, const Training& training) {
  at::set_num_threads(1);
  const std::string host = HostFolder(folder, training.hosts[static_cast<size_t>(context.rank)]);
  std::vector<std::string> overrides = {
      "train_batch_size=36",
      absl::StrCat("train_micro_batch_size_per_gpu=", 36 / context.size),
      "deterministic=true",
      "checkpoint.interval=2",
      "checkpoint.keep=2",
      absl::StrCat("checkpoint.local_dir=", host, "/disk"),
      absl::StrCat("checkpoint.replica_dir=", host, "/memory")};
  overrides.insert(overrides.end(), training.overrides.begin(), training.overrides.end());
  DT_ASSIGN_OR_RETURN(
      auto job,
      MakeTestJob({.run_dir = folder + "/run", .overrides = overrides, .rank = &context}));
  at::manual_seed(5);
  Chain model;
  DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
  DT_ASSIGN_OR_RETURN(auto checkpoints, Checkpointer::Open(*job));
  checkpoints->Track("engine", *engine);
  DT_RETURN_IF_ERROR(checkpoints->RestoreLatest());
  job->metrics().Log("own/resumed", static_cast<double>(engine->step()));
  Tokens source{engine->step(), job->rank(), job->world_size(), 1};
  while (engine->step() < training.until) {
    DT_RETURN_IF_ERROR(TakeStep(*engine, model, source).status());
    DT_RETURN_IF_ERROR(checkpoints->MaybeSave(engine->step()));
  }
  // All are killed at once, when what follows the last commit is done too.
  return training.ends ? checkpoints->Finish()
                       : job->group().Barrier(Deadline::After(absl::Seconds(30)));
}

}  // namespace

std::vector<absl::Status> Train(const std::string& folder, const Training& training) {
  std::vector<absl::Status> all;
  const int ranks = static_cast<int>(training.hosts.size());
  for (const auto& result : RunRanks({.size = ranks}, [&](RankContext& context) {
         return TrainRank(context, folder, training);
       })) {
    all.push_back(result.status);
  }
  return all;
}

std::map<std::string, std::string> LastFiles(const std::string& folder, int64_t step) {
  std::map<std::string, std::string> files;
  const auto storage = *checkpoint::OpenPosixStorage(Shared(folder));
  const std::vector<checkpoint::StepId> ids = *checkpoint::ListCheckpoints(*storage);
  for (const checkpoint::StepId& id : ids) {
    const auto opened = checkpoint::Checkpoint::Open(*storage, id, checkpoint::Verify::kHashes);
    EXPECT_TRUE(opened.ok()) << opened.status();
    for (size_t i = 0; opened.ok() && id.step == step && i < (*opened)->manifest().files.size();
         ++i) {
      const std::string& path = (*opened)->manifest().files[i].path;
      files[path] = *ReadFile(absl::StrCat(Shared(folder), "/", id.DirectoryName(), "/", path));
    }
  }
  return files;
}

std::map<std::string, std::string> Straight(const std::vector<int>& hosts,
                                            const std::vector<std::string>& overrides) {
  const TempFolder folder;
  for (const absl::Status& status :
       Train(folder.path(), {.hosts = hosts, .overrides = overrides, .until = 8})) {
    EXPECT_TRUE(status.ok()) << status;
  }
  std::map<std::string, std::string> files = LastFiles(folder.path(), 8);
  EXPECT_FALSE(files.empty());
  return files;
}

std::vector<Json> Records(const std::string& folder, absl::string_view text) {
  std::vector<Json> found;
  const std::string all = ReadFile(folder + "/run/metrics/rank-0.jsonl", 1 << 24).value_or("");
  for (const absl::string_view line : absl::StrSplit(all, '\n', absl::SkipEmpty())) {
    if (const auto record = ParseJson(line, "metrics");
        record.ok() && absl::StrContains(line, text)) {
      found.push_back(*record);
    }
  }
  return found;
}

int64_t Resumed(const std::string& folder) {
  const std::vector<Json> records = Records(folder, "own/resumed");
  return records.empty() ? -1 : records.back()["m"]["own/resumed"].get<int64_t>();
}

std::vector<std::string> Below(const std::string& folder) {
  std::vector<std::string> names;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      names.push_back(entry.path().string().substr(folder.size() + 1));
    }
  }
  return names;
}

void LoseSharedStep(const std::string& folder, int64_t step) {
  for (const int64_t epoch : {1, 2}) {
    std::filesystem::remove_all(
        absl::StrCat(Shared(folder), "/", checkpoint::StepId{epoch, step}.DirectoryName()));
  }
}

std::string FileBelow(const std::string& folder, absl::string_view end) {
  std::string found;
  for (const std::string& name : Below(folder)) {
    if (absl::EndsWith(name, end)) {
      EXPECT_EQ(found, "") << name;
      found = absl::StrCat(folder, "/", name);
    }
  }
  EXPECT_NE(found, "") << folder << " has no " << end;
  return found;
}

void FlipAByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path) - 5);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(file.good()) << path;
}

}  // namespace dtrain::testing::hosts
