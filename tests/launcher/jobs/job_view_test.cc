// Jobs whose agents are sockets of this process.
#include "launcher/jobs/job_view.h"

#include <poll.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/deadline.h"
#include "gtest/gtest.h"
#include "launcher/jobs/control_socket.h"
#include "launcher/jobs/job_status.h"
#include "launcher/ranks/agent_socket.h"
#include "launcher/temp_dir.h"

namespace dtrain::launcher::job_view_test {
namespace {

constexpr absl::Duration kAtMost = absl::Seconds(30);
constexpr char kOwn[] = R"({"attempt": 2, "phase": "running", "ranks": [], "others": []})";

class AskJobsTest : public ::testing::Test {
 protected:
  // A job of several nodes. `serve` answers for all of them.
  JobFacts Add(const std::string& name, std::function<void(const ControlCall&)> serve) {
    JobFacts job{.socket = absl::StrCat(folder_.path(), "/", name, "-agent"),
                 .nodes_socket = absl::StrCat(folder_.path(), "/", name)};
    auto server = ControlServer::Start(job.nodes_socket, std::move(serve));
    EXPECT_TRUE(server.ok()) << server.status();
    servers_.push_back(*std::move(server));
    return job;
  }

 private:
  const TempDir folder_ = *TempDir::Create(::testing::TempDir());
  std::vector<std::unique_ptr<ControlServer>> servers_;
};

void Hang(const ControlCall& call) {
  while (!call.is_stopping()) {
    Clock::Real().Sleep(absl::Milliseconds(1));
  }
}

// Each of these answers only once all have been asked.
TEST_F(AskJobsTest, AskAllAtTheSameTime) {
  constexpr int kJobs = 3;
  std::atomic<int> asked{0};
  std::vector<JobFacts> jobs;
  for (int i = 0; i < kJobs; ++i) {
    jobs.push_back(Add(absl::StrCat("job", i), [&asked, i](const ControlCall& call) {
      ++asked;
      while (asked < kJobs && !call.is_stopping()) {
        Clock::Real().Sleep(absl::Milliseconds(1));
      }
      call.reply(JobNodes{.attempt = i}.Encode());
    }));
  }
  const auto answers = AskJobs(jobs, {.nodes = kAtMost, .own = kAtMost});
  ASSERT_EQ(answers.size(), jobs.size());
  for (int i = 0; i < kJobs; ++i) {
    const auto& answer = answers[static_cast<size_t>(i)];
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ((*answer)["attempt"], i) << "in the order of the jobs";
  }
}

TEST_F(AskJobsTest, WhereTheNodesCannotBeAskedInTimeTheAgentItselfIs) {
  const JobFacts silent = Add("silent", Hang);
  const JobFacts job = Add("job", Hang);
  auto agent = AgentSocket::Listen(job.socket);
  ASSERT_TRUE(agent.ok()) << agent.status();
  std::atomic<bool> stop{false};
  std::thread answering([&] {
    while (!stop) {
      pollfd entry{agent->poll_fd(), POLLIN, 0};
      poll(&entry, 1, 10);
      agent->Receive();
      for (const int asker : agent->TakeQuestions()) {
        AgentSocket::Answer(asker, kOwn);
      }
    }
  });
  const auto answers = AskJobs({silent, job}, {.nodes = absl::Milliseconds(50), .own = kAtMost});
  stop = true;
  answering.join();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_FALSE(answers[0].ok());
  ASSERT_TRUE(answers[1].ok()) << answers[1].status();
  EXPECT_EQ((*answers[1])["attempt"], 2);
  EXPECT_EQ(Summarize(*answers[1], /*has_nodes=*/true).nodes, -1) << "it speaks for itself alone";
}

TEST_F(AskJobsTest, NoJobsHaveNoAnswers) { EXPECT_TRUE(AskJobs({}).empty()); }

}  // namespace
}  // namespace dtrain::launcher::job_view_test
