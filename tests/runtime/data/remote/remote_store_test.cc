// Token files of a web server that is not ours (tests/testing/range_server.py), read by a store.
#include "runtime/data/remote/remote_store.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/plan/data/corpus_identity.h"
#include "runtime/plan/data/token_corpus.h"
#include "runtime/plan/data/token_file.h"
#include "runtime/plan/data/token_mask.h"
#include "runtime/plan/data/tokenizer_files.h"
#include "tests/runtime/plan/temp_folder.h"

namespace dtrain::remote::remote_store_test {
namespace {

using plan::TokenCorpus;
using plan::TokenFormat;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// range_server.py over a folder, until this object ends.
class WebServer {
 public:
  WebServer() {
    int to[2];
    int from[2];
    EXPECT_EQ(pipe(to), 0);
    EXPECT_EQ(pipe(from), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(to[0], STDIN_FILENO);
      dup2(from[1], STDOUT_FILENO);
      execl(TEST_PYTHON, TEST_PYTHON, RANGE_SERVER, folder_.path().c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    std::string port;
    for (char c = 0; read(from[0], &c, 1) == 1 && c != '\n';) {
      port.push_back(c);
    }
    close(from[0]);
    EXPECT_TRUE(absl::SimpleAtoi(port, &port_)) << "the server does not start";
    input_ = to[1];
  }
  WebServer(const WebServer&) = delete;
  WebServer& operator=(const WebServer&) = delete;
  ~WebServer() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(input_);
  }

  // Whether it answers, or takes connections only.
  void SetRuns(bool runs) const { kill(pid_, runs ? SIGCONT : SIGSTOP); }
  const std::string& folder() const { return folder_.path(); }
  std::string Url(const std::string& path) const {
    return absl::StrCat("http://127.0.0.1:", port_, "/", path);
  }

 private:
  plan::TempFolder folder_;
  int pid_ = -1;
  int port_ = 0;
  int input_ = -1;
};

std::string TokensFrom(int first, int count) {
  std::vector<uint16_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), static_cast<uint16_t>(first));
  return plan::MakeTokenHeader(count, 65536) +
         std::string(reinterpret_cast<const char*>(tokens.data()), 2 * tokens.size());
}

constexpr int kTokens = 20000;

class RemoteStoreTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = new WebServer; }
  static void TearDownTestSuite() {
    delete server_;
    server_ = nullptr;
  }

  // Replaces a file as a user would: whole, by renaming.
  static std::string Put(const std::string& name, const std::string& content) {
    EXPECT_TRUE(WriteFileAtomic(server_->folder() + "/" + name, content).ok());
    return server_->folder() + "/" + name;
  }
  static std::string Url(const std::string& path) { return server_->Url(path); }

  std::unique_ptr<plan::DataStore> Store(absl::Duration timeout = absl::Seconds(20)) {
    RemoteStoreOptions options;
    options.cache_dir = cache_.path() + "/cache";
    options.cache_bytes_max = 1 << 20;
    options.block_bytes = 4096;
    options.client.timeout = timeout;
    options.client.backoff_first = absl::Milliseconds(1);
    options.client.backoff_max = absl::Milliseconds(20);
    auto store = OpenRemoteStore(options);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  // Why these files cannot be opened.
  std::string Refusal(const std::string& address, absl::StatusCode code) {
    const auto store = Store(absl::Milliseconds(300));
    const plan::CorpusPart part{{address}, 1};
    const absl::Status status =
        TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get()).status();
    EXPECT_EQ(status.code(), code) << status;
    const std::string message(status.message());
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }

  static WebServer* server_;
  plan::TempFolder cache_;
};
WebServer* RemoteStoreTest::server_ = nullptr;

// The tokens of all windows of 100 of a corpus, in order.
std::vector<int64_t> AllWindows(const TokenCorpus& corpus) {
  std::vector<int64_t> all;
  for (size_t file = 0; file < corpus.files().size(); ++file) {
    for (int64_t offset = 0; offset + 101 <= corpus.files()[file].tokens(); offset += 100) {
      const plan::SampleLocation at{static_cast<int>(file), offset, 0};
      static_cast<void>(corpus.WillRead(at, 100));
      std::vector<int64_t> window(101);
      EXPECT_EQ(corpus.Read(at, 100, 0, window.data()), absl::OkStatus());
      all.insert(all.end(), window.begin(), window.end());
    }
  }
  return all;
}

TEST_F(RemoteStoreTest, TokensAndIdentityAreThoseOfTheLocalFileUnderFaultsToo) {
  const plan::CorpusPart local{
      {Put("a.bin", TokensFrom(5, kTokens)), Put("b.bin", TokensFrom(1000, kTokens / 2))}, 1};
  const TokenCorpus here = *TokenCorpus::Open({&local, 1}, TokenFormat::kAuto);
  for (const char* const how : {"", "often/", "moved/"}) {
    const plan::CorpusPart part{{Url(absl::StrCat(how, "a.bin")), Url("b.bin")}, 1};
    const auto store = Store();
    const auto there = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
    ASSERT_TRUE(there.ok()) << there.status();
    EXPECT_EQ(*plan::CorpusIdentity(*there), *plan::CorpusIdentity(here));
    store->StartReading();
    EXPECT_TRUE(AllWindows(*there) == AllWindows(here)) << how;
    EXPECT_TRUE(AllWindows(*there) == AllWindows(here)) << how << ", read again";
  }
}

TEST_F(RemoteStoreTest, TheMaskBesideAFileIsReadAndOneThatIsNotThereIsNone) {
  Put("m.bin", TokensFrom(0, 300));
  std::string bits(300, '\1');
  bits[0] = '\2';
  Put("m.bin.mask", plan::MakeMaskHeader({300, 0, 299}) + bits);
  const plan::CorpusPart part{{Url("m.bin"), Url("m.bin?v=2")}, 1};
  const auto store = Store();
  const auto corpus = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  store->StartReading();
  EXPECT_TRUE(corpus->is_masked(0));
  EXPECT_FALSE(corpus->is_masked(1)) << "an address with a query has no mask";
  uint8_t mask[3];
  ASSERT_TRUE(corpus->ReadMask({0, 0, 0}, 2, mask).ok());
  EXPECT_THAT(mask, ElementsAre(2, 1, 1));
}

TEST_F(RemoteStoreTest, KeptBlocksAreReadWhenTheServerIsGoneButNotOfAnotherVersion) {
  const std::string path = Put("kept.bin", TokensFrom(0, kTokens));
  const plan::CorpusPart part{{Url("kept.bin")}, 1};
  const auto store = Store(absl::Milliseconds(200));
  const auto corpus = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  store->StartReading();
  const std::string identity = *plan::CorpusIdentity(*corpus);
  const std::vector<int64_t> before = AllWindows(*corpus);
  std::filesystem::remove(path);
  EXPECT_TRUE(AllWindows(*corpus) == before);
  Put("kept.bin", TokensFrom(7, kTokens));
  EXPECT_TRUE(AllWindows(*corpus) == before) << "a run goes on with what it has";
  const auto later = Store();
  const auto changed = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, later.get());
  ASSERT_TRUE(changed.ok()) << changed.status();
  later->StartReading();
  EXPECT_EQ(AllWindows(*changed)[0], 7) << "a later run reads the new file";
  EXPECT_NE(*plan::CorpusIdentity(*changed), identity);
}

TEST_F(RemoteStoreTest, AFileThatChangesWhileItIsReadIsAnErrorByName) {
  for (const int tokens : {kTokens, kTokens - 1}) {  // Of the same length, and of another.
    Put("changing.bin", TokensFrom(0, kTokens));
    const plan::CorpusPart part{{Url("changing.bin")}, 1};
    const auto store = Store();
    const auto corpus = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
    ASSERT_TRUE(corpus.ok()) << corpus.status();
    store->StartReading();
    Put("changing.bin", TokensFrom(1, tokens));
    std::vector<int64_t> window(101);
    const absl::Status status = corpus->Read({0, 15000, 0}, 100, 0, window.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("token file: " + Url("changing.bin")),
                      HasSubstr("has changed while the run reads it"), HasSubstr("41024 bytes")));
  }
}

TEST_F(RemoteStoreTest, WhatCannotBeReadIsOneLineThatSaysWhatToDo) {
  Put("x.bin", TokensFrom(0, 300));
  using Code = absl::StatusCode;
  EXPECT_THAT(Refusal(Url("none.bin"), Code::kNotFound),
              AllOf(HasSubstr(Url("none.bin")), HasSubstr("no such file [404]")));
  EXPECT_THAT(Refusal(Url("denied/x.bin"), Code::kPermissionDenied), HasSubstr("[403]"));
  EXPECT_THAT(Refusal(Url("whole/x.bin"), Code::kFailedPrecondition),
              HasSubstr("does not serve ranges"));
  EXPECT_THAT(Refusal(Url("down/x.bin"), Code::kUnavailable),
              AllOf(HasSubstr(Url("down/x.bin")), HasSubstr("[503]"), HasSubstr("gave up after"),
                    HasSubstr("data.remote_timeout_s")));
  EXPECT_THAT(Refusal("http://127.0.0.1:1/x.bin", Code::kUnavailable),
              AllOf(HasSubstr("http://127.0.0.1:1/x.bin"), HasSubstr("data.remote_timeout_s")));
  EXPECT_THAT(Refusal(Url("*.bin"), Code::kInvalidArgument), HasSubstr("name each file"));
  EXPECT_THAT(Refusal("gs://bucket/x.bin", Code::kInvalidArgument), HasSubstr("allowed are"));
  Put("cut.bin", TokensFrom(0, 300).substr(0, 1300));
  EXPECT_THAT(Refusal(Url("cut.bin"), Code::kInvalidArgument),
              AllOf(HasSubstr(Url("cut.bin")), HasSubstr("truncated")));
  Put("empty.bin", "");
  EXPECT_THAT(Refusal(Url("empty.bin"), Code::kInvalidArgument), HasSubstr("it is empty"));
}

TEST_F(RemoteStoreTest, AnAddressWithoutAStoreIsRefused) {
  const plan::CorpusPart part{{"s3://bucket/x.bin"}, 1};
  const absl::Status status = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("only a training reads files at addresses"));
}

TEST_F(RemoteStoreTest, TheTokenizerOfACorpusIsReadByTheNamesInItsManifest) {
  const std::string vocabulary(1500000, 'v');  // Longer than what a store looks at as a whole.
  std::filesystem::create_directories(server_->folder() + "/corpus/corpus.tokenizer");
  Put("corpus/corpus.tokenizer/tokenizer.json", vocabulary);
  Put("corpus/corpus.tokenizer/tokenizer_config.json", "{}");
  const auto tokenizer_of = [&](const std::string& manifest, const std::string& folder) {
    Put("corpus/corpus.json", manifest);
    const auto store = Store();
    return plan::ReadCorpusTokenizer(plan::CorpusFolderOf(Url(folder + "/train.bin")), store.get());
  };
  const std::string both = R"({"tokenizer_files": ["tokenizer.json", "tokenizer_config.json"]})";
  for (const char* const folder : {"corpus", "often/corpus"}) {
    const auto files = tokenizer_of(both, folder);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_THAT(*files, ElementsAre(Pair("tokenizer.json", vocabulary),
                                    Pair("tokenizer_config.json", "{}")));
  }
  EXPECT_THAT(*tokenizer_of(both, "nowhere"), IsEmpty());
  EXPECT_THAT(*tokenizer_of(R"({"tokenizer": "bytes"})", "corpus"), IsEmpty())
      << "of an older version";
  EXPECT_THAT(tokenizer_of(R"({"tokenizer_files": ["../secret"]})", "corpus").status().message(),
              HasSubstr("tokenizer_files names \"../secret\", which is no file of a tokenizer"));
  EXPECT_THAT(tokenizer_of(R"({"tokenizer_files": ["a b.tiktoken"]})", "corpus").status().message(),
              HasSubstr("names \"a b.tiktoken\", which is no file of a tokenizer"));
  const std::string twice = R"({"tokenizer_files": ["tokenizer.json", "tokenizer.json"]})";
  EXPECT_THAT(tokenizer_of(twice, "corpus").status().message(), HasSubstr("which is there twice"));
  EXPECT_THAT(tokenizer_of(R"({"tokenizer_files": ["merges.txt"]})", "corpus").status().message(),
              HasSubstr("corpus/corpus.tokenizer/merges.txt"));
  EXPECT_EQ(tokenizer_of(both, "denied/corpus").status().code(),
            absl::StatusCode::kPermissionDenied);
}

// The end of a read during which the store is cancelled.
absl::Status CancelledRead(plan::DataStore& store, const TokenCorpus& corpus) {
  absl::Status status;
  std::thread reader([&] {
    std::vector<int64_t> window(101);
    status = corpus.Read({0, 15000, 0}, 100, 0, window.data());
  });
  store.Cancel();
  reader.join();
  return status;
}

TEST_F(RemoteStoreTest, ACancelledStoreEndsAReadThatWaits) {
  Put("slow.bin", TokensFrom(0, kTokens));
  const plan::CorpusPart part{{Url("slow.bin")}, 1};
  const auto store = Store(absl::Minutes(10));
  const auto corpus = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  store->StartReading();
  server_->SetRuns(false);
  const absl::Status status = CancelledRead(*store, *corpus);
  server_->SetRuns(true);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

// The locks of all blocks in a folder, as other processes that fetch them hold them.
std::vector<UniqueFd> HoldAllLocks(const std::string& folder) {
  constexpr int kLocks = 1024;
  rlimit limit{};
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = std::max<rlim_t>(limit.rlim_cur, 2 * kLocks);
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<UniqueFd> locks;
  for (int i = 0; i < kLocks; ++i) {
    absl::StatusOr<UniqueFd> fd =
        OpenFile(absl::StrCat(folder, "/locks/", i), O_CREAT | O_RDWR, 0600);
    EXPECT_TRUE(fd.ok() && flock(fd->get(), LOCK_EX | LOCK_NB) == 0) << fd.status();
    locks.push_back(*std::move(fd));
  }
  return locks;
}

TEST_F(RemoteStoreTest, ACancelledStoreLeavesBlocksToOtherProcesses) {
  Put("held.bin", TokensFrom(0, kTokens));
  const plan::CorpusPart part{{Url("held.bin")}, 1};
  auto store = Store(absl::Minutes(10));
  const auto corpus = TokenCorpus::Open({&part, 1}, TokenFormat::kAuto, store.get());
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  store->StartReading();
  const std::vector<UniqueFd> held = HoldAllLocks(cache_.path() + "/cache");
  const Deadline soon = Deadline::After(absl::Seconds(10));  // Half of what a lock is waited for.
  static_cast<void>(corpus->WillRead({0, 5000, 0}, 100));
  const absl::Status status = CancelledRead(*store, *corpus);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_FALSE(soon.Expired());
}

}  // namespace
}  // namespace dtrain::remote::remote_store_test
