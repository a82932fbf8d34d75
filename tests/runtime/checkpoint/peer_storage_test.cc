// A rank uses the storage of another one over a connection: every call does what it does there, and
// a peer that ends is an error in time.
#include "runtime/checkpoint/tiers/peer_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/memory_file_system.h"
#include "checkpoint/storage/posix_storage.h"
#include "comm/group.h"
#include "runtime/checkpoint/tiers/file_server.h"
#include "runtime/checkpoint/tiers/hosts_storage.h"
#include "tests/runtime/testing/job_for_tests.h"
#include "tests/testing/cluster.h"

namespace dtrain::peer_storage_test {
namespace {

using testing::RankContext;

constexpr absl::Duration kTime = absl::Seconds(20);

absl::Span<const std::byte> AsBytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

absl::Status Expect(bool holds, absl::string_view what) {
  return holds ? absl::OkStatus() : absl::InternalError(absl::StrCat("not so: ", what));
}

// Rank 1 serves a folder to rank 0, whose part is `body`. `end`: rank 1 ends its server.
using Body =
    std::function<absl::Status(PeerStorage& disk, const std::function<absl::Status()>& end)>;

absl::Status Serve(RankContext& context, const comm::SideLines& lines, checkpoint::Storage& disk,
                   checkpoint::Storage* behind = nullptr) {
  const Deadline deadline = Deadline::After(kTime);
  DT_ASSIGN_OR_RETURN(auto listener, lines.Listen());
  auto server = std::make_unique<FileServer>(
      std::move(listener), FileServer::Options{.disk = &disk, .behind = behind, .timeout = kTime});
  DT_RETURN_IF_ERROR(context.store->Set("where", server->endpoint().ToString(), deadline));
  DT_RETURN_IF_ERROR(context.store->Get("end", deadline).status());
  server.reset();
  return context.store->Set("ended", "1", deadline);
}

absl::Status Use(RankContext& context, const comm::SideLines& lines, const std::string& folder,
                 const Body& body) {
  const Deadline deadline = Deadline::After(kTime);
  DT_ASSIGN_OR_RETURN(const std::string text, context.store->Get("where", deadline));
  DT_ASSIGN_OR_RETURN(const comm::Endpoint where, comm::ParseEndpoint(text));
  const auto to_peer =
      std::make_shared<PeerLines>(lines, PeerLines::Peer{1, where, "other"}, kTime);
  PeerStorage disk(to_peer, FilePlace::kDisk, folder);
  const auto end = [&]() -> absl::Status {
    DT_RETURN_IF_ERROR(context.store->Set("end", "1", deadline));
    return context.store->Get("ended", deadline).status();
  };
  DT_RETURN_IF_ERROR(body(disk, end));
  return end();
}

using Part = std::function<absl::Status(RankContext& context, const comm::SideLines& lines)>;

// Rank 1 serves, and rank 0 uses what it serves.
void ExpectBothWell(const Part& use, const Part& serve) {
  for (const auto& result :
       testing::RunRanks({.size = 2}, [&](RankContext& context) -> absl::Status {
         DT_ASSIGN_OR_RETURN(const auto group,
                             comm::CreateHostGroup(context.store, context.group_options()));
         DT_ASSIGN_OR_RETURN(const comm::SideLines lines,
                             comm::SideLines::Of(*group, *context.store));
         DT_RETURN_IF_ERROR(context.rank == 1 ? serve(context, lines) : use(context, lines));
         return group->Barrier(Deadline::After(kTime));
       })) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
}

void ExpectAllWell(const Part& serve, const std::string& folder, const Body& body) {
  ExpectBothWell([&](RankContext& context,
                     const comm::SideLines& lines) { return Use(context, lines, folder, body); },
                 serve);
}

void ExpectAllWell(const std::string& folder, const Body& body) {
  ExpectAllWell(
      [&](RankContext& context, const comm::SideLines& lines) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto storage, checkpoint::OpenPosixStorage(folder));
        return Serve(context, lines, *storage);
      },
      folder, body);
}

TEST(PeerStorageTest, FilesAreWrittenReadListedAndRemovedThere) {
  const testing::TempFolder folder;
  // Three parts, of which the last is short.
  const std::string content(2 * kFilePartBytes + 12345, 'x');
  ExpectAllWell(folder.path(), [&](PeerStorage& disk, const auto& /*end*/) -> absl::Status {
    DT_RETURN_IF_ERROR(disk.MakeDirectory("step/state"));
    DT_ASSIGN_OR_RETURN(
        auto file, disk.CreateFile("step/state/a", content.size(), checkpoint::Access::kOwner));
    DT_RETURN_IF_ERROR(file->Append(AsBytes(content)));
    DT_RETURN_IF_ERROR(file->Finish());
    DT_RETURN_IF_ERROR(disk.SyncDirectory("step/state"));
    DT_RETURN_IF_ERROR(
        Expect(absl::IsAlreadyExists(
                   disk.CreateFile("step/state/a", 1, checkpoint::Access::kOwner).status()),
               "a second file of one name is refused"));
    DT_ASSIGN_OR_RETURN(const auto opened, disk.OpenFile("step/state/a"));
    DT_RETURN_IF_ERROR(Expect(opened->bytes() == content.size(), "its size"));
    std::string read(kFilePartBytes + 77, '\0');
    DT_RETURN_IF_ERROR(
        opened->ReadAt(5, absl::MakeSpan(reinterpret_cast<std::byte*>(read.data()), read.size())));
    DT_RETURN_IF_ERROR(Expect(read == content.substr(5, read.size()), "its bytes"));
    std::byte one{};
    DT_RETURN_IF_ERROR(
        Expect(absl::IsOutOfRange(opened->ReadAt(content.size(), absl::MakeSpan(&one, 1))),
               "a read behind its end is out of range"));
    checkpoint::FileChecksummer checksummer;
    checksummer.Add(AsBytes(content));
    const checkpoint::FileChecksum expected = checksummer.Finish();
    DT_ASSIGN_OR_RETURN(const auto far, opened->FarChecksum(true));
    DT_RETURN_IF_ERROR(Expect(far.has_value() && *far == expected, "its checksums"));
    DT_RETURN_IF_ERROR(
        checkpoint::VerifyFile(disk, "step/state/a", expected, checkpoint::Verify::kHashes));
    DT_RETURN_IF_ERROR(disk.Publish("step/MANIFEST.json", "text"));
    DT_RETURN_IF_ERROR(Expect(absl::IsAlreadyExists(disk.Publish("step/MANIFEST.json", "other")),
                              "a second commit is refused"));
    DT_RETURN_IF_ERROR(disk.Replace("latest", "one"));
    DT_RETURN_IF_ERROR(disk.Replace("latest", "two"));
    DT_ASSIGN_OR_RETURN(const std::string latest, checkpoint::ReadSmallFile(disk, "latest", 10));
    DT_RETURN_IF_ERROR(Expect(latest == "two", "what was replaced"));
    DT_ASSIGN_OR_RETURN(const auto entries, disk.List("step"));
    DT_RETURN_IF_ERROR(Expect(entries.size() == 2 && entries[0].name == "MANIFEST.json" &&
                                  entries[0].bytes == 4 && entries[1].is_directory,
                              "the list"));
    DT_RETURN_IF_ERROR(Expect(disk.FreeBytes().value_or(0) > 0, "what is free"));
    DT_RETURN_IF_ERROR(checkpoint::RemoveTree(disk, "step"));
    return Expect(absl::IsNotFound(disk.List("step").status()), "it is removed");
  });
  EXPECT_EQ(*ReadFile(folder.path() + "/latest"), "two");
}

TEST(PeerStorageTest, AHostCopiesAFileToTheTierBehindItself) {
  const testing::TempFolder folder;
  const testing::TempFolder behind_folder;
  const std::string content(kFilePartBytes + 99, 's');
  ExpectAllWell(
      [&](RankContext& context, const comm::SideLines& lines) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto disk, checkpoint::OpenPosixStorage(folder.path()));
        DT_ASSIGN_OR_RETURN(const auto behind, checkpoint::OpenPosixStorage(behind_folder.path()));
        return Serve(context, lines, *disk, behind.get());
      },
      folder.path(),
      [&](PeerStorage& disk, const auto& /*end*/) -> absl::Status {
        DT_RETURN_IF_ERROR(disk.Publish("a", content));
        DT_ASSIGN_OR_RETURN(const checkpoint::FileChecksum sent,
                            disk.Send("a", content.size(), checkpoint::Access::kOwner));
        checkpoint::FileChecksummer checksummer;
        checksummer.Add(AsBytes(content));
        DT_RETURN_IF_ERROR(Expect(sent == checksummer.Finish(), "the checksums"));
        const absl::Status again =
            disk.Send("a", content.size(), checkpoint::Access::kOwner).status();
        DT_RETURN_IF_ERROR(Expect(absl::IsAlreadyExists(again), again.ToString()));
        const absl::Status missing = disk.Send("b", 1, checkpoint::Access::kOwner).status();
        return Expect(absl::IsNotFound(missing), missing.ToString());
      });
  EXPECT_EQ(*ReadFile(behind_folder.path() + "/a", 16 << 20), content);
}

TEST(PeerStorageTest, AStreamIsThereOnceItIsSynced) {
  const testing::TempFolder folder;
  ExpectAllWell(folder.path(), [&](PeerStorage& disk, const auto& end) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto stream, disk.CreateStream("a", checkpoint::Access::kOwner));
    DT_RETURN_IF_ERROR(
        Expect(absl::IsAlreadyExists(disk.CreateStream("a", checkpoint::Access::kOwner).status()),
               "a second file of one name is refused"));
    std::string content;
    for (int i = 0; i < 200; ++i) {  // More than may be unanswered.
      const std::string part(static_cast<size_t>(i * 100), static_cast<char>('a' + i % 26));
      DT_RETURN_IF_ERROR(stream->Append(AsBytes(part)));
      content += part;
    }
    DT_RETURN_IF_ERROR(stream->Sync());
    DT_ASSIGN_OR_RETURN(const std::string there,
                        checkpoint::ReadSmallFile(disk, "a", content.size()));
    DT_RETURN_IF_ERROR(Expect(there == content, "its bytes"));
    DT_RETURN_IF_ERROR(end());
    absl::Status gone = stream->Append(AsBytes("two"));  // May be sent before the end is seen,
    gone.Update(stream->Sync());                         // but never counts as taken.
    return Expect(!gone.ok(), gone.ToString());
  });
}

// Another storage over the same places may have dropped a damaged copy since the list was made.
TEST(PeerStorageTest, ACopyThatIsGoneIsLookedForElsewhere) {
  const testing::TempFolder folder;
  const testing::TempFolder own_folder;
  const testing::TempFolder behind_folder;
  ExpectAllWell(folder.path(), [&](PeerStorage& disk, const auto& /*end*/) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto own, checkpoint::OpenPosixStorage(own_folder.path()));
    DT_ASSIGN_OR_RETURN(const auto behind, checkpoint::OpenPosixStorage(behind_folder.path()));
    const std::string place = "step-000000000001.e1/state";
    const std::string path = place + "/a";
    for (checkpoint::Storage* const storage : {static_cast<checkpoint::Storage*>(&disk),
                                               static_cast<checkpoint::Storage*>(behind.get())}) {
      DT_RETURN_IF_ERROR(storage->MakeDirectory(place));
      DT_ASSIGN_OR_RETURN(auto file, storage->CreateFile(path, 3, checkpoint::Access::kOwner));
      DT_RETURN_IF_ERROR(file->Append(AsBytes("abc")));
      DT_RETURN_IF_ERROR(file->Finish());
    }
    HostsStorage hosts({.disks = {{own.get(), nullptr}, {&disk, &disk}},
                        .behind = behind.get(),
                        .reads_behind = true,
                        .is_rank0 = true});
    DT_RETURN_IF_ERROR(hosts.List(place).status());
    DT_RETURN_IF_ERROR(disk.RemoveFile(path));
    DT_ASSIGN_OR_RETURN(const std::string text, checkpoint::ReadSmallFile(hosts, path, 10));
    return Expect(text == "abc", "the other copy");
  });
}

// The bytes of a process that was killed before it synced the file.
absl::Status WriteUnsynced(checkpoint::FileSystem& files, const std::string& content) {
  DT_ASSIGN_OR_RETURN(const int handle, files.Create("journal", 0600));
  DT_RETURN_IF_ERROR(files.Write(handle, AsBytes(content)).status());
  DT_RETURN_IF_ERROR(files.Close(handle));
  return files.SyncDirectory("");
}

TEST(PeerStorageTest, WhatItsWriterDidNotSyncIsMadeDurableThere) {
  const std::string content(100'000, 'j');
  // A power cut that loses a part of it.
  const auto survives = [&](checkpoint::MemoryFileSystem& files, uint64_t cut) {
    files.Crash(cut);
    const auto storage = checkpoint::MakePosixStorage(files);
    const auto text = checkpoint::ReadSmallFile(*storage, "journal", content.size());
    return text.ok() && *text == content;
  };
  uint64_t cut = 0;
  for (bool lost = false; !lost; cut += lost ? 0 : 1) {
    ASSERT_LT(cut, 100U);
    checkpoint::MemoryFileSystem files;
    ASSERT_TRUE(WriteUnsynced(files, content).ok());
    lost = !survives(files, cut);
  }
  ExpectAllWell(
      [&](RankContext& context, const comm::SideLines& lines) -> absl::Status {
        checkpoint::MemoryFileSystem files;
        DT_RETURN_IF_ERROR(WriteUnsynced(files, content));
        const auto storage = checkpoint::MakePosixStorage(files);
        DT_RETURN_IF_ERROR(Serve(context, lines, *storage));
        return Expect(survives(files, cut), "the file is whole behind a power cut");
      },
      "memory",
      [&](PeerStorage& disk, const auto& /*end*/) -> absl::Status {
        DT_ASSIGN_OR_RETURN(const auto opened, disk.OpenFile("journal"));
        return opened->MakeDurable();
      });
}

TEST(PeerStorageTest, ErrorsNameTheHostAndPathsStayBelowTheFolder) {
  const testing::TempFolder folder;
  ASSERT_TRUE(MakeDirectories(folder.path() + "/inside").ok());
  ExpectAllWell(
      folder.path() + "/inside", [&](PeerStorage& disk, const auto& /*end*/) -> absl::Status {
        const absl::Status missing = disk.OpenFile("none").status();
        DT_RETURN_IF_ERROR(Expect(absl::IsNotFound(missing), missing.ToString()));
        DT_RETURN_IF_ERROR(
            Expect(absl::StrContains(missing.message(), "host other: "), missing.ToString()));
        const absl::Status outside = disk.Publish("../outside", "x");
        DT_RETURN_IF_ERROR(Expect(absl::IsInvalidArgument(outside), outside.ToString()));
        // The connection goes on.
        return Expect(disk.List("").ok(), "it still answers");
      });
  EXPECT_FALSE(FileExists(folder.path() + "/outside"));
}

TEST(PeerStorageTest, APeerThatEndsIsAnErrorInTime) {
  const testing::TempFolder folder;
  ExpectAllWell(folder.path(), [&](PeerStorage& disk, const auto& end) -> absl::Status {
    DT_ASSIGN_OR_RETURN(auto file, disk.CreateFile("a", 10, checkpoint::Access::kOwner));
    DT_RETURN_IF_ERROR(file->Append(AsBytes("one")));
    DT_RETURN_IF_ERROR(end());
    const int64_t begin = Clock::Real().MonotonicNanos();
    const absl::Status gone = file->Append(AsBytes("two"));
    DT_RETURN_IF_ERROR(Expect(absl::IsUnavailable(gone), gone.ToString()));
    DT_RETURN_IF_ERROR(Expect(!disk.List("").ok(), "a new connection fails"));
    DT_RETURN_IF_ERROR(Expect(!disk.List("").ok(), "and again"));
    const double seconds = static_cast<double>(Clock::Real().MonotonicNanos() - begin) * 1e-9;
    return Expect(seconds < 10, absl::StrCat("it took ", seconds, " s"));
  });
}

// While it lives the system gives this process no further thread, as at a limit of processes: the
// stack of each would be larger than the address space.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    pthread_attr_t attributes;
    DT_CHECK(pthread_getattr_default_np(&former_) == 0);
    DT_CHECK(pthread_attr_init(&attributes) == 0);
    DT_CHECK(pthread_attr_setstacksize(&attributes, size_t{1} << 48) == 0);
    DT_CHECK(pthread_setattr_default_np(&attributes) == 0);
    pthread_attr_destroy(&attributes);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;
  ~NoMoreThreads() {
    pthread_setattr_default_np(&former_);
    pthread_attr_destroy(&former_);
  }

 private:
  pthread_attr_t former_{};
};

absl::Status ServeWithoutThreads(RankContext& context, const comm::SideLines& lines,
                                 checkpoint::Storage& disk) {
  const Deadline deadline = Deadline::After(kTime);
  DT_ASSIGN_OR_RETURN(auto listener, lines.Listen());
  const FileServer server(std::move(listener),
                          FileServer::Options{.disk = &disk, .timeout = kTime});
  {
    const NoMoreThreads no_more_threads;
    DT_RETURN_IF_ERROR(context.store->Set("where", server.endpoint().ToString(), deadline));
    DT_RETURN_IF_ERROR(context.store->Get("refused", deadline).status());
  }
  DT_RETURN_IF_ERROR(context.store->Set("threads", "1", deadline));
  return context.store->Get("end", deadline).status();
}

absl::Status AskTwice(RankContext& context, const comm::SideLines& lines) {
  const Deadline deadline = Deadline::After(kTime);
  DT_ASSIGN_OR_RETURN(const std::string text, context.store->Get("where", deadline));
  DT_ASSIGN_OR_RETURN(const comm::Endpoint where, comm::ParseEndpoint(text));
  PeerStorage disk(std::make_shared<PeerLines>(lines, PeerLines::Peer{1, where, "other"}, kTime),
                   FilePlace::kDisk, "/there");
  const absl::Status refused = disk.List("").status();
  DT_RETURN_IF_ERROR(Expect(absl::IsUnavailable(refused), refused.ToString()));
  DT_RETURN_IF_ERROR(context.store->Set("refused", "1", deadline));
  DT_RETURN_IF_ERROR(context.store->Get("threads", deadline).status());
  DT_RETURN_IF_ERROR(disk.List("").status());
  return context.store->Set("end", "1", deadline);
}

TEST(PeerStorageTest, AHostThatGetsNoThreadRefusesOneConnectionAndServesTheNext) {
  const testing::TempFolder folder;
  ExpectBothWell(AskTwice, [&](RankContext& context, const comm::SideLines& lines) -> absl::Status {
    DT_ASSIGN_OR_RETURN(const auto storage, checkpoint::OpenPosixStorage(folder.path()));
    return ServeWithoutThreads(context, lines, *storage);
  });
}

}  // namespace
}  // namespace dtrain::peer_storage_test
