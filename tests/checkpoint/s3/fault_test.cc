// Saves through a network and a server that fail, and writers that race or are killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/file.h"
#include "base/numeric/prng.h"
#include "checkpoint/restore/verify.h"
#include "checkpoint/storage/s3/http.h"
#include "tests/checkpoint/s3/fault_proxy.h"
#include "tests/checkpoint/s3/s3_server.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::s3::fault_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kScale = 1500;  // A state of 6 MB: two parts.

// The network stands still when the request has been sent; without an end to it the transport would
// wait for the server.
TEST(CurlTransportTest, ARequestThatIsCancelledEnds) {
  std::atomic<bool> cancelled{false};
  FaultProxy proxy(/*server_port=*/0, [&](const std::string& /*line*/, int /*number*/) {
    cancelled = true;
    return Fault::kHold;
  });
  const auto transport = MakeCurlTransport("");
  ASSERT_TRUE(transport.ok()) << transport.status();
  HttpRequest request;
  request.url = absl::StrCat(proxy.endpoint(), "/key");
  request.deadline = Deadline::After(absl::Seconds(60));
  request.cancelled = &cancelled;
  const absl::Status status = (*transport)->Perform(request).status();
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_EQ(proxy.requests(), 1);
}

class FaultTest : public ::testing::TestWithParam<S3Server::Kind> {
 protected:
  EpochRecord Begin(Storage& storage) {
    auto latest = FindLatest(storage);
    std::optional<StepId> from;
    if (latest.ok()) {
      from = (*latest)->manifest().id;
    }
    auto epoch = BeginEpoch(storage, "job", 1, from);
    DT_CHECK_OK(epoch.status());
    return *epoch;
  }
  SaveReport Save(Storage& storage, const EpochRecord& epoch, int64_t step) {
    return SaveOnRanks(storage, OptionsFor(epoch), 1, step, kScale)[0];
  }
  // The step that loads without a proxy; -1: none.
  int64_t LoadedStep() {
    auto latest = FindLatest(*direct_);
    if (!latest.ok()) {
      EXPECT_TRUE(absl::IsNotFound(latest.status())) << latest.status();
      return -1;
    }
    const int64_t step = (*latest)->manifest().id.step;
    const absl::Status same = FakeState(step, 0, 1, kScale).Compare(**latest);
    EXPECT_TRUE(same.ok()) << same;
    return step;
  }

  S3Server& server_ = S3Server::Of(GetParam());
  const std::string url_ = server_.NewUrl();
  const std::unique_ptr<Storage> direct_ = OpenOrDie(url_, OptionsOf(server_.endpoint()));
};

TEST_P(FaultTest, EverySaveLandsWhileThirtyOfAHundredRequestsGet503) {
  std::mutex mutex;
  SplitMix64 random(11);
  FaultProxy proxy(server_.port(), [&](const std::string&, int) {
    const std::lock_guard lock(mutex);
    return random.Below(100) < 30 ? Fault::kSlowDown : Fault::kNone;
  });
  S3Options options = OptionsOf(proxy.endpoint());
  options.tries_max = 20;
  const auto storage = OpenOrDie(url_, options);
  const EpochRecord epoch = Begin(*storage);
  for (const int64_t step : {1, 2, 3}) {
    const SaveReport report = Save(*storage, epoch, step);
    ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  }
  EXPECT_EQ(LoadedStep(), 3);
  EXPECT_GT(proxy.faults(), 10);
}

TEST_P(FaultTest, LostRepliesResetsAndCutRepliesChangeNothing) {
  std::mutex mutex;
  SplitMix64 random(12);
  FaultProxy proxy(server_.port(), [&](const std::string&, int) {
    constexpr Fault kFaults[] = {Fault::kLoseReply, Fault::kReset, Fault::kCutReply};
    const std::lock_guard lock(mutex);
    return random.Below(100) < 25 ? kFaults[random.Below(3)] : Fault::kNone;
  });
  S3Options options = OptionsOf(proxy.endpoint());
  options.tries_max = 20;
  const auto storage = OpenOrDie(url_, options);
  const EpochRecord epoch = Begin(*storage);
  for (const int64_t step : {1, 2, 3}) {
    const SaveReport report = Save(*storage, epoch, step);
    ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  }
  EXPECT_EQ(LoadedStep(), 3);
  EXPECT_EQ(FindLatest(*storage).status(), absl::OkStatus()) << "read through the proxy as well";
}

TEST_P(FaultTest, TheLostReplyOfACommitIsACommit) {
  std::atomic<int> lost{0};
  FaultProxy proxy(server_.port(), [&](const std::string& line, int) {
    const bool commit = absl::StartsWith(line, "PUT ") && absl::StrContains(line, "MANIFEST.json");
    return commit && lost++ == 0 ? Fault::kLoseReply : Fault::kNone;
  });
  const auto storage = OpenOrDie(url_, OptionsOf(proxy.endpoint()));
  EXPECT_EQ(Save(*storage, Begin(*storage), 1).outcome, SaveOutcome::kCommitted);
  EXPECT_GE(lost, 2) << "the reply was lost, and the request came again";
  EXPECT_EQ(LoadedStep(), 1);
}

TEST_P(FaultTest, AnOutageOfSecondsIsWaitedOutAndALongerOneLosesOneSave) {
  std::atomic<bool> down{false};
  FaultProxy proxy(server_.port(),
                   [&](const std::string&, int) { return down ? Fault::kReset : Fault::kNone; });
  S3Options options = OptionsOf(proxy.endpoint());
  options.backoff_first = absl::Milliseconds(200);
  options.backoff_max = absl::Seconds(1);
  options.tries_max = 100;
  options.request_timeout = absl::Seconds(30);
  const auto storage = OpenOrDie(url_, options);
  const EpochRecord epoch = Begin(*storage);
  down = true;
  // Seconds from the first request that is refused on, so that the save meets all of them.
  std::thread repair([&] {
    const Deadline bound = Deadline::After(absl::Seconds(60));
    while (proxy.faults() == 0 && !bound.Expired()) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    absl::SleepFor(absl::Seconds(3));
    down = false;
  });
  const SaveReport report = Save(*storage, epoch, 1);
  repair.join();
  EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  EXPECT_GT(report.seconds, 2.5);

  options.request_timeout = absl::Seconds(1);
  const auto impatient = OpenOrDie(url_, options);
  down = true;
  const SaveReport failed = Save(*impatient, epoch, 2);
  EXPECT_EQ(failed.outcome, SaveOutcome::kAbandoned) << failed.status;
  EXPECT_THAT(std::string(failed.status.message()), HasSubstr("gave up after "));
  down = false;
  EXPECT_EQ(LoadedStep(), 1);
  EXPECT_EQ(Save(*storage, epoch, 3).outcome, SaveOutcome::kCommitted) << "it catches up";
  EXPECT_EQ(LoadedStep(), 3);
}

TEST_P(FaultTest, DamageOnTheWayFromTheServerIsFound) {
  const EpochRecord epoch = Begin(*direct_);
  ASSERT_TRUE(Save(*direct_, epoch, 1).durable());
  FaultProxy proxy(server_.port(), [&](const std::string& line, int) {
    return absl::StartsWith(line, "GET ") && absl::StrContains(line, "/state/") ? Fault::kFlipReply
                                                                                : Fault::kNone;
  });
  const auto storage = OpenOrDie(url_, OptionsOf(proxy.endpoint()));
  const auto manifest = ReadManifest(*storage, {1, 1});
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const absl::Status status = VerifyFiles(*storage, *manifest, Verify::kHashes);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("is damaged: bytes 0 to 4194304"));
}

TEST_P(FaultTest, OfTwoAttemptsThatBeginAtOnceTheLaterOneCounts) {
  ASSERT_TRUE(Save(*direct_, Begin(*direct_), 1).durable());
  EpochRecord epochs[2];
  SaveReport reports[2];
  std::vector<std::thread> attempts;
  for (int i = 0; i < 2; ++i) {
    attempts.emplace_back([&, i] {
      const auto storage = OpenOrDie(url_, OptionsOf(server_.endpoint()));
      epochs[i] = Begin(*storage);
      reports[i] = SaveOnRanks(*storage, OptionsFor(epochs[i]), 1, 2, kScale)[0];
    });
  }
  for (std::thread& attempt : attempts) {
    attempt.join();
  }
  const int later = epochs[0].epoch > epochs[1].epoch ? 0 : 1;
  EXPECT_EQ(epochs[later].epoch, epochs[1 - later].epoch + 1) << "each has an epoch of its own";
  EXPECT_EQ(reports[later].outcome, SaveOutcome::kCommitted) << reports[later].status;
  EXPECT_NE(reports[1 - later].outcome, SaveOutcome::kUnknown) << reports[1 - later].status;
  auto latest = FindLatest(*direct_);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ((*latest)->manifest().id, (StepId{epochs[later].epoch, 2}));
}

TEST_P(FaultTest, AWriterThatIsKilledInTheMiddleOfAnUploadLeavesNothingThatCounts) {
  ASSERT_TRUE(Save(*direct_, Begin(*direct_), 1).durable());
  const TemporaryFolder folder;
  // The second part of the state never arrives; the writer is killed while it waits.
  FaultProxy proxy(server_.port(), [&](const std::string& line, int) {
    return absl::StrContains(line, "/state/") && absl::StrContains(line, "partNumber=2")
               ? Fault::kHold
               : Fault::kNone;
  });
  ChildProcess writer({WRITER_PATH, url_, "2", absl::StrCat(kScale)},
                      WriterEnvironment(proxy.endpoint()), folder.path() + "/out");
  const Deadline deadline = Deadline::After(absl::Seconds(60));
  while (proxy.held() == 0) {
    ASSERT_TRUE(writer.Running()) << *ReadFile(folder.path() + "/out");
    ASSERT_FALSE(deadline.Expired());
    absl::SleepFor(absl::Milliseconds(5));
  }
  writer.Kill();
  EXPECT_EQ(LoadedStep(), 1);
  EXPECT_THAT(FilesBelow(*direct_, "step-000000000002.e2/state"), IsEmpty());
  int left = 0;
  const auto count = [&left](const std::string& path) {
    left += absl::StrContains(path, "/state/") ? 1 : 0;
    return false;
  };
  ASSERT_TRUE(direct_->RemoveUnfinished(count).ok());
  EXPECT_EQ(left, 1) << "the upload of the writer that was killed";

  // The next attempt resumes, saves, and removes what is left.
  ASSERT_EQ(Save(*direct_, Begin(*direct_), 2).outcome, SaveOutcome::kCommitted);
  EXPECT_EQ(LoadedStep(), 2);
  left = 0;
  ASSERT_TRUE(direct_->RemoveUnfinished(count).ok());
  EXPECT_EQ(left, 0);
  EXPECT_THAT(FilesBelow(*direct_, "step-000000000002.e2"), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Servers, FaultTest, ::testing::ValuesIn(S3Server::kKinds),
                         [](const auto& test) { return S3Server::Name(test.param); });

// SeaweedFS checks what arrives against the digest that was signed.
TEST(DamagedUploadTest, DamageOnTheWayToTheServerIsFoundAndSentAgain) {
  const S3Server& server = S3Server::Of(S3Server::Kind::kSeaweed);
  std::atomic<int> damaged{0};
  FaultProxy proxy(server.port(), [&](const std::string& line, int) {
    return absl::StartsWith(line, "PUT ") && absl::StrContains(line, "/state/") && damaged++ == 0
               ? Fault::kFlipRequest
               : Fault::kNone;
  });
  const std::string url = server.NewUrl();
  const auto storage = OpenOrDie(url, OptionsOf(proxy.endpoint()));
  auto epoch = BeginEpoch(*storage, "job", 1, std::nullopt);
  ASSERT_TRUE(epoch.ok()) << epoch.status();
  WriterOptions options = OptionsFor(*epoch);
  const SaveReport report = SaveOnRanks(*storage, options, 1, 1, kScale)[0];
  EXPECT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
  EXPECT_GE(damaged, 3) << "two parts, one of them twice";
  auto latest = FindLatest(*storage);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_TRUE(FakeState(1, 0, 1, kScale).Compare(**latest).ok());
}

}  // namespace
}  // namespace dtrain::checkpoint::s3::fault_test
