// The common part of simulations of an elastic job: time, chance, an agent's patience, and seeds.
#pragma once

#include <errno.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/numeric/prng.h"
#include "gtest/gtest.h"
#include "launcher/nodes/elastic_job.h"

namespace dtrain::launcher::simulation {

constexpr int64_t kMillisecond = 1'000'000;
constexpr int64_t kSecond = 1000 * kMillisecond;
constexpr int64_t kTick = 100 * kMillisecond;

// Chance that follows from a seed alone.
class Chance {
 public:
  explicit Chance(uint64_t seed) : random_(seed) {}

  // 0 to bound - 1.
  int Below(int bound) { return static_cast<int>(random_.Below(static_cast<uint64_t>(bound))); }
  bool Rarely(int one_in) { return Below(one_in) == 0; }

 private:
  SplitMix64 random_;
};

// Draws how many nodes the job may have, up to `nodes_max`; it never ends for lack of restarts.
inline ElasticOptions JobOf(Chance& chance, int nodes_max) {
  ElasticOptions options;
  options.nodes_max = nodes_max;
  options.nodes_min = 1 + chance.Below(nodes_max - 1);
  options.restarts_max = 1'000'000;
  options.join_timeout = absl::Hours(1);
  options.last_call = absl::Seconds(1 + chance.Below(5));
  options.stop_grace = absl::Seconds(5);
  options.exit_barrier = absl::Seconds(5);
  options.reports = absl::Seconds(3);
  return options;
}

// Prints what happens in a simulation, if somebody reads it: otherwise no words are put together.
template <typename... Words>
void TellIf(bool is_told, int64_t now, const Words&... words) {
  if (is_told) {
    std::printf("%8.1f s  %s\n", static_cast<double>(now) * 1e-9, absl::StrCat(words...).c_str());
  }
}

// Takes those of `letters` out for which has_come is true, in the order of their times.
template <typename Letter, typename HasCome>
std::vector<Letter> TakeLetters(std::vector<Letter>& letters, const HasCome& has_come) {
  std::stable_sort(letters.begin(), letters.end(),
                   [](const Letter& a, const Letter& b) { return a.at < b.at; });
  std::vector<Letter> come;
  std::vector<Letter> rest;
  for (Letter& letter : letters) {
    (has_come(letter) ? come : rest).push_back(std::move(letter));
  }
  letters = std::move(rest);
  return come;
}

// The message as its reader has it; is_written: by its text (lobby_messages.h).
template <typename Message>
Message AsRead(bool is_written, Message message) {
  if (!is_written) {
    return message;
  }
  absl::StatusOr<Message> read = Message::Parse(message.Encode());
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? *std::move(read) : message;
}

// How many seeds a test plays.
struct Seeds {
  int64_t of_suite = 0;
  int64_t of_long_test = 0;  // With DTRAIN_TEST_LONG.
};

// Calls play(seed, is_told) with one seed after the other until a test has failed. The messages of
// a failure have the command that plays its seed again. DTRAIN_SIMULATION_SEED=S plays that seed
// alone; is_told: it prints what happens in it.
template <typename Play>
void PlaySeeds(const Seeds& seeds, const Play& play) {
  const char* const text = std::getenv("DTRAIN_SIMULATION_SEED");
  int64_t only = 0;
  ASSERT_TRUE(text == nullptr || absl::SimpleAtoi(text, &only))
      << "DTRAIN_SIMULATION_SEED=" << text << " is no number";
  const int64_t all =
      std::getenv("DTRAIN_TEST_LONG") != nullptr ? seeds.of_long_test : seeds.of_suite;
  const int64_t first = text != nullptr ? only : 1;
  const int64_t last = text != nullptr ? only : all;
  const ::testing::TestInfo& test = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::clock_t began = std::clock();
  for (int64_t seed = first; seed <= last && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message()
                 << "replay: DTRAIN_SIMULATION_SEED=" << seed << " " << program_invocation_name
                 << " --gtest_filter=" << test.test_suite_name() << "." << test.name());
    play(static_cast<uint64_t>(seed), text != nullptr);
  }
  std::printf("seeds %lld to %lld: %.1f s of CPU time\n", static_cast<long long>(first),
              static_cast<long long>(last),
              static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC);
}

}  // namespace dtrain::launcher::simulation
