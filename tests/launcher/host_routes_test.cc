// Hosts that start others for `dtrain launch --hostfile`: what runs behind them is written to, read
// and ended as if it ran here. The built program is the host's agent, without ssh before it.
#include "launcher/hosts/host_routes.h"

#include <poll.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/hosts/node_messages.h"
#include "launcher/hosts/relay_link.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::host_routes_test {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kBound = absl::Minutes(1);

std::vector<std::string> Agent() { return {DTRAIN_PROGRAM, "node-agent"}; }

// Lets what can move move until `is_done`.
template <typename Mover, typename Done>
bool Await(Mover& mover, StarterConsole& console, Done is_done) {
  const Deadline bound = Deadline::After(kBound);
  while (!is_done()) {
    if (bound.Expired()) {
      return false;
    }
    std::vector<pollfd> entries;
    mover.AddTo(entries, true);
    poll(entries.data(), entries.size(), 20);
    mover.Move(console);
  }
  return true;
}

// Two relays, the second behind the first.
struct TwoRelays {
  std::unique_ptr<RelayLink> outer;
  std::unique_ptr<RelayLink> inner;

  void AddTo(std::vector<pollfd>& entries, bool may_read) const { outer->AddTo(entries, may_read); }
  void Move(StarterConsole& console) const {
    outer->Move(console);
    if (inner != nullptr) {
      inner->Move(console);
    }
  }
};

class HostRelays : public testing::Test {
 protected:
  HostRelays() { std::signal(SIGPIPE, SIG_IGN); }

  static std::unique_ptr<AgentProcess> StartHere(const std::vector<std::string>& command) {
    absl::StatusOr<std::unique_ptr<AgentProcess>> process = LocalProcess::Start(command);
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }

  // Connects both; n1 starts n2.
  void Connect() {
    const auto make = [&](const char* host, std::unique_ptr<AgentProcess> process) {
      return std::make_unique<RelayLink>(host, std::move(process), folder_.path(),
                                         Deadline::After(kBound));
    };
    relays_.outer = make("n1", StartHere(Agent()));
    ASSERT_TRUE(Await(relays_, console_,
                      [&] { return relays_.outer->state() == RelayLink::State::kReady; }));
    relays_.inner = make("n2", relays_.outer->Start(Agent()));
    ASSERT_TRUE(Await(relays_, console_,
                      [&] { return relays_.inner->state() == RelayLink::State::kReady; }));
  }

  // Moves the process until it has ended.
  void AwaitEnd(AgentProcess& process) {
    out_.clear();
    err_.clear();
    end_.reset();
    EXPECT_TRUE(Await(relays_, console_, [&] {
      process.Move(true, out_, err_);
      end_ = process.TakeEnd(out_, err_);
      return end_.has_value();
    }));
  }

  const TempDir folder_ = *TempDir::Create("/tmp");
  StarterConsole console_;
  TwoRelays relays_;
  std::string out_;  // What the process of AwaitEnd has written, and how it ended.
  std::string err_;
  std::optional<ProcessEnd> end_;
};

TEST_F(HostRelays, AProcessBehindTwoHostsReadsWritesAndEndsAsOneHere) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string input(3U << 20, 'x');  // More than one message may hold.
  const auto process = relays_.inner->Start(
      {"sh", "-c", absl::StrCat("head -c ", input.size(), "; pwd; echo \"$0\" >&2; exit 3"),
       "$(touch x) it's"});
  process->Write(input);
  AwaitEnd(*process);
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(out_ == absl::StrCat(input, folder_.path(), "\n")) << out_.size();
  EXPECT_EQ(err_, "$(touch x) it's\n");
  EXPECT_TRUE(WIFEXITED(end_->wait_status));
  EXPECT_EQ(WEXITSTATUS(end_->wait_status), 3);
  EXPECT_EQ(end_->why_lost, "");
}

TEST_F(HostRelays, ACommandThatCannotBeRunThereSaysSo) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto process = relays_.inner->Start({"/no/such/ssh"});
  AwaitEnd(*process);
  ASSERT_TRUE(end_.has_value());
  EXPECT_THAT(err_, HasSubstr("cannot run /no/such/ssh"));
  EXPECT_EQ(WEXITSTATUS(end_->wait_status), 127);
}

TEST_F(HostRelays, TheHostsOwnAgentIsStartedThereAndKilledFromHere) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto agent = relays_.inner->Start({});
  std::string greeting;
  std::string errors;
  ASSERT_TRUE(Await(relays_, console_,
                    [&] {
                      agent->Move(true, greeting, errors);
                      return greeting == kPreamble;
                    }))
      << greeting << errors;
  agent->Kill();
  AwaitEnd(*agent);
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(WIFSIGNALED(end_->wait_status));
}

TEST_F(HostRelays, WhenAHostIsLostWhatItHasStartedLosesItsInputAndIsLostHere) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const std::string file = folder_.path() + "/stopped";
  const auto own = relays_.outer->Start({});
  const auto behind = relays_.inner->Start({"sh", "-c", "cat; touch \"$0\"", file});
  behind->Write("started\n");
  std::string out;
  ASSERT_TRUE(Await(relays_, console_, [&] {
    behind->Move(true, out, err_);
    return out == "started\n";
  }));
  relays_.outer->Kill();
  AwaitEnd(*own);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->why_lost, "ssh was killed by SIGKILL");
  AwaitEnd(*behind);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(end_->why_lost, "it was started from host n2, which is lost");
  EXPECT_TRUE(Await(relays_, console_, [&] { return std::filesystem::exists(file); }));
  EXPECT_TRUE(relays_.outer->has_ended());
}

TEST_F(HostRelays, AProcessHasEndedAlthoughOneThatItHasStartedWritesOn) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto process = relays_.outer->Start({"sh", "-c", "yes & exit 4"});
  AwaitEnd(*process);
  ASSERT_TRUE(end_.has_value());
  EXPECT_EQ(WEXITSTATUS(end_->wait_status), 4);
}

TEST_F(HostRelays, OneThatWritesWithoutEndDoesNotHideAnother) {
  ASSERT_NO_FATAL_FAILURE(Connect());
  const auto flood = relays_.inner->Start({"yes"});
  const auto other = relays_.inner->Start({"sh", "-c", "echo up; cat"});
  std::string out;
  EXPECT_TRUE(Await(relays_, console_, [&] {
    std::string dropped;
    flood->Move(true, dropped, err_);
    other->Move(true, out, err_);
    return out == "up\n";
  }));
  flood->Kill();
  AwaitEnd(*flood);
  ASSERT_TRUE(end_.has_value());
  EXPECT_TRUE(WIFSIGNALED(end_->wait_status));
}

TEST_F(HostRelays, TheLimitOfOpenFilesIsRaisedForMoreProcesses) {
  const std::string with_limit = "ulimit -Sn 32; exec \"$0\" node-agent";
  relays_.outer =
      std::make_unique<RelayLink>("n1", StartHere({"sh", "-c", with_limit, DTRAIN_PROGRAM}),
                                  folder_.path(), Deadline::After(kBound));
  ASSERT_TRUE(
      Await(relays_, console_, [&] { return relays_.outer->state() == RelayLink::State::kReady; }));
  std::vector<std::unique_ptr<AgentProcess>> processes(16);
  for (auto& process : processes) {
    process = relays_.outer->Start({"cat"});
    process->Write("up");
    std::string out;
    std::string err;
    EXPECT_TRUE(Await(relays_, console_, [&] {
      process->Move(true, out, err);
      return !out.empty() || !err.empty();
    }));
    EXPECT_EQ(out, "up") << err;
  }
}

TEST_F(HostRelays, AnotherVersionStartsNothing) {
  HelloMessage hello;
  hello.version = "9.9.9";
  const std::string said = folder_.path() + "/said";
  std::ofstream(said) << "Welcome!\n"
                      << kPreamble << EncodeFrame(FrameKind::kHello, hello.Encode());
  RelayLink relay("n1", StartHere({"sh", "-c", "cat \"$0\"; cat >/dev/null", said}), "/",
                  Deadline::After(kBound));
  EXPECT_TRUE(Await(relay, console_, [&] { return relay.has_ended(); }));
  EXPECT_EQ(relay.state(), RelayLink::State::kFailed);
}

TEST_F(HostRelays, ASilentHostStartsNothing) {
  RelayLink relay("n1", StartHere({"sleep", "1000"}), "/", Deadline::After(absl::ZeroDuration()));
  EXPECT_TRUE(Await(relay, console_, [&] { return relay.has_ended(); }));
  EXPECT_EQ(relay.state(), RelayLink::State::kFailed);
}

// Hosts n0 to n3: n0 starts n1, which starts n2; n3 is started from here.
std::vector<HostPlan> Plans(const std::string& folder) {
  std::vector<HostPlan> plans(4);
  for (size_t i = 0; i < plans.size(); ++i) {
    plans[i].host = absl::StrCat("n", i);
    plans[i].job.node_rank = static_cast<int>(i);
    plans[i].job.directory = folder;
    plans[i].command = Agent();
  }
  plans[1].place = {0, 2};
  plans[2].place = {1, 3};
  return plans;
}

TEST_F(HostRelays, EachHostIsStartedByTheOneThatItsPlaceNames) {
  const std::vector<HostPlan> plans = Plans(folder_.path());
  HostRoutes routes(plans, kBound);
  EXPECT_FALSE(routes.WayTo(plans[2]).has_value()) << "n0 and n1 are not connected";
  EXPECT_EQ(routes.WayTo(plans[3]), HostRoutes::kFromHere);
  ASSERT_TRUE(Await(routes, console_, [&] {
    EXPECT_TRUE(routes.Connect().ok());
    return routes.WayTo(plans[2]).has_value();
  }));
  EXPECT_EQ(routes.WayTo(plans[0]), 0);
  EXPECT_EQ(routes.WayTo(plans[1]), 1);
  EXPECT_EQ(routes.WayTo(plans[2]), 1);
  EXPECT_EQ(routes.SshFrom(plans[0], 0), "");
  EXPECT_EQ(routes.SshFrom(plans[1], 1), "n0");
  EXPECT_EQ(routes.SshFrom(plans[2], 1), "n1");
  auto process = routes.Start(plans[2], 1);
  ASSERT_TRUE(process.ok()) << process.status();
  std::string out;
  std::string err;
  EXPECT_TRUE(Await(routes, console_, [&] {
    (*process)->Move(true, out, err);
    return out == kPreamble;
  })) << err;
  routes.HangUp();
  EXPECT_TRUE(Await(routes, console_, [&] { return routes.AllEnded(); }));
}

TEST_F(HostRelays, HostsBehindOneThatCannotStartThemAreReachedFromTheNextOneThatCan) {
  std::vector<HostPlan> plans = Plans(folder_.path());
  plans[1].command = {"sh", "-c", "exit 255"};
  HostRoutes behind_one(plans, kBound);
  ASSERT_TRUE(Await(behind_one, console_, [&] {
    EXPECT_TRUE(behind_one.Connect().ok());
    return behind_one.WayTo(plans[2]).has_value();
  }));
  EXPECT_EQ(behind_one.WayTo(plans[1]), 0);
  EXPECT_EQ(behind_one.WayTo(plans[2]), 0);
  EXPECT_EQ(behind_one.SshFrom(plans[1], 0), "n0");
  plans[0].command = {"sh", "-c", "exit 255"};
  HostRoutes behind_none(plans, kBound);
  ASSERT_TRUE(Await(behind_none, console_, [&] {
    EXPECT_TRUE(behind_none.Connect().ok());
    return behind_none.WayTo(plans[2]).has_value();
  }));
  EXPECT_EQ(behind_none.WayTo(plans[2]), HostRoutes::kFromHere);
  behind_one.HangUp();
  EXPECT_TRUE(Await(behind_one, console_, [&] { return behind_one.AllEnded(); }));
}

}  // namespace
}  // namespace dtrain::launcher::host_routes_test
