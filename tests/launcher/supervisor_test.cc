// A supervisor with one rank, and a fake in place of the other nodes.
#include "launcher/ranks/supervisor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/unique_fd.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::supervisor_test {
namespace {

// Sends this process a stop signal at each Take, and reports a lost node from the second one on.
class LostWhileKilling final : public Peers {
 public:
  int poll_fd() const override { return event_.get(); }
  std::vector<Order> Take() override {
    ++asked_;
    raise(SIGTERM);
    return {};
  }
  absl::Status health() const override {
    return asked_ < 3 ? absl::OkStatus() : absl::UnavailableError("node 1 is lost");
  }
  void Publish(Order) override {}
  int nodes() const override { return 2; }

 private:
  UniqueFd event_{eventfd(0, EFD_CLOEXEC)};
  int asked_ = 0;
};

TEST(Supervisor, ARankThatItKilledIsNoCauseThoughAPeerIsLostMeanwhile) {
  const TempDir folder = *TempDir::Create(::testing::TempDir());
  auto signals = SignalSource::Create({SIGTERM});
  ASSERT_TRUE(signals.ok()) << signals.status();
  auto guard = Guard::Start(folder.path() + "/guarded");
  ASSERT_TRUE(guard.ok()) << guard.status();
  auto socket = AgentSocket::Listen(folder.path() + "/agent");
  ASSERT_TRUE(socket.ok()) << socket.status();
  auto reporter = Reporter::Start({.events_path = folder.path() + "/events.jsonl"});
  ASSERT_TRUE(reporter.ok()) << reporter.status();
  LostWhileKilling peers;
  Attempt attempt;
  attempt.program = "/bin/sh";
  attempt.name = "sh";
  attempt.arguments = {"-c", "trap '' TERM; while :; do sleep 0.1; done"};
  attempt.shape.ranks_of_node = {1, 1};
  attempt.shape.run_dir = folder.path();
  attempt.slots = {RankSlot{}};
  attempt.log_dir = folder.path();
  SupervisorLimits limits;
  limits.peers_end = absl::Milliseconds(100);
  Supervisor supervisor({*signals, *guard, *socket, **reporter, &peers}, limits, attempt);
  const AttemptResult result = supervisor.Run();
  ASSERT_EQ(result.ends.size(), 1U);
  EXPECT_EQ(result.ends[0].signal, SIGKILL);
  EXPECT_TRUE(result.ends[0].stopped);
  EXPECT_TRUE(result.stop.forced);
  EXPECT_EQ(ExitCodeOf(result), kExitTemporary);
}

}  // namespace
}  // namespace dtrain::launcher::supervisor_test
