// scripted_rank MODE: a rank that talks to its agent as the runtime does, and misbehaves as MODE
// says after 30 steps. Its collectives are words alone: nobody waits in them but by the script.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <string>
#include <thread>

#include "base/agent_channel.h"
#include "base/clock.h"
#include "base/job_env.h"
#include "base/system/crash_stack.h"

namespace dtrain {
namespace {

constexpr absl::Duration kStep = absl::Milliseconds(20);
constexpr int kSteps = 30;
constexpr char kCall[] = "all_reduce \"bucket 0\" sum fp32 1024 bytes";

void IgnoreRequest(int) {}

class Rank {
 public:
  // `data_s`: the limit of its data source; 0: that of a step.
  Rank(AgentChannel channel, const JobEnv& env, double data_s)
      : channel_(std::move(channel)), rank_(env.rank) {
    state_.kind = AgentMessage::Kind::kBeat;
    state_.rank = rank_;
    state_.pid = getpid();
    state_.limits = {.fixed_s = -1, .patience_s = 4, .slow_s = 600, .data_s = data_s};
    state_.groups.push_back({.group = "world", .call = kCall});
    regular_ = std::thread([this] {
      while (!stop_) {
        Send({});
        Clock::Real().Sleep(absl::Milliseconds(100));
      }
    });
  }
  ~Rank() {
    stop_ = true;
    regular_.join();
  }

  void Phase(const char* phase) {
    {
      const std::lock_guard lock(mutex_);
      state_.phase = phase;
      ++state_.marks;
    }
    Send({});
  }
  void Enter(const std::string& call = kCall) {
    const std::lock_guard lock(mutex_);
    ++state_.groups[0].entered;
    state_.groups[0].call = call;
  }
  void Leave() {
    const std::lock_guard lock(mutex_);
    state_.groups[0].left = state_.groups[0].entered;
  }
  // `slower`: by how much this rank's own work takes longer.
  void Step(double slower) {
    for (const char* const phase : {"data", "forward", "backward"}) {
      Phase(phase);
    }
    Enter();
    Clock::Real().Sleep(kStep);
    Leave();
    Phase("update");
    StepTimes times;
    {
      const std::lock_guard lock(mutex_);
      times.step = state_.step++;
    }
    const double work = 0.01 * (1 + slower);
    times.whole_s = 0.02;
    times.forward_s = work / 2;
    times.backward_s = work / 2;
    Phase("program");
    Send(times);
  }
  void Hang(const char* phase) {
    if (phase != nullptr) {
      Phase(phase);
    }
    for (;;) {
      pause();
    }
  }
  int rank() const { return rank_; }

 private:
  void Send(const StepTimes& times) {
    const std::lock_guard lock(mutex_);
    AgentMessage message = state_;
    message.times = times;
    channel_.Send(message);
  }

  AgentChannel channel_;
  const int rank_;
  std::mutex mutex_;
  AgentMessage state_;
  std::atomic<bool> stop_{false};
  std::thread regular_;
};

// Pauses that are no hang: each is longer than the limit within a step.
void PauseForGoodReasons(Rank& rank) {
  for (const char* const phase : {"save", "eval", "program"}) {
    rank.Phase(phase);
    Clock::Real().Sleep(absl::Milliseconds(1500));
  }
}

int Play(Rank& rank, const std::string& mode) {
  const bool is_bad = rank.rank() == 1;
  for (int step = 0; step < kSteps; ++step) {
    rank.Step(0);
  }
  if (mode == "healthy") {
    PauseForGoodReasons(rank);
    rank.Step(0);
    return 0;
  }
  if (mode == "slow") {
    for (int step = 0; step < 5 * kSteps; ++step) {
      rank.Step(is_bad ? 0.5 : 0);
    }
    return 0;
  }
  if (is_bad && mode == "slow-data") {  // The first pause is longer than the limit of a step.
    rank.Phase("data");
    Clock::Real().Sleep(absl::Milliseconds(1500));
    rank.Phase("forward");
  }
  if (is_bad && (mode == "data" || mode == "slow-data")) {
    rank.Hang("data");
  }
  if (is_bad && mode == "stop") {
    raise(SIGSTOP);
  }
  if (is_bad && mode == "crash") {
    raise(SIGSEGV);
  }
  rank.Phase("update");
  rank.Enter(is_bad && mode == "mismatch" ? "broadcast int32 8 bytes from rank 0" : kCall);
  rank.Hang(nullptr);
  return 1;
}

int Main(const std::string& mode) {
  const auto env = ResolveJobEnv(ReadEnvironment());
  auto channel = env.ok() ? AgentChannel::Connect(env->agent_socket)
                          : absl::StatusOr<AgentChannel>(env.status());
  if (!channel.ok()) {
    std::fprintf(stderr, "%s\n", std::string(channel.status().message()).c_str());
    return 64;
  }
  WriteStackAtCrash();
  WriteStackAtSignal(SIGUSR2, IgnoreRequest);
  Rank rank(*std::move(channel), *env, mode == "slow-data" ? 2 : 0);
  return Play(rank, env->attempt > 0 ? "healthy" : mode);
}

}  // namespace
}  // namespace dtrain

int main(int argc, char** argv) { return dtrain::Main(argc > 1 ? argv[1] : ""); }
