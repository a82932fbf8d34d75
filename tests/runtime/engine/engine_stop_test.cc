// A stop signal before the first step, when there is nothing to save, and after it.
#include <gtest/gtest.h>

#include <csignal>

#include "ATen/ATen.h"
#include "ATen/Parallel.h"
#include "base/status.h"
#include "dtrain/engine.h"
#include "runtime/job/stop_signal.h"
#include "tests/runtime/testing/chain_for_tests.h"
#include "tests/runtime/testing/job_for_tests.h"

namespace dtrain::engine_stop_test {
namespace {

using testing::Chain;
using testing::RankContext;

struct Tokens {
  absl::StatusOr<at::Tensor> Next() { return at::full({2}, 1, at::kLong); }
};

// Making an engine may take minutes, as reading a checkpoint may. There is nothing to save yet.
TEST(StopSignalBeforeTraining, EndsARankAtOnceAndIsNotedFromTheFirstStepOn) {
  for (const bool trains : {false, true}) {
    const auto results = testing::RunRanks({.size = 1}, [&](RankContext& context) -> absl::Status {
      at::set_num_threads(1);
      InstallStopSignals();
      const testing::TempFolder folder;
      DT_ASSIGN_OR_RETURN(auto job, testing::MakeChainJob(&context, folder.path(), {}));
      Chain model;
      DT_ASSIGN_OR_RETURN(auto engine, Engine::Create(*job, model));
      if (trains) {
        Tokens source;
        const auto loss = [&](const at::Tensor& tokens) {
          return Loss(model.Loss(tokens), tokens.numel());
        };
        DT_RETURN_IF_ERROR(engine->Step(source, loss).status());
      }
      raise(SIGTERM);
      return absl::OkStatus();
    });
    EXPECT_EQ(results[0].status.ok(), trains) << results[0].status;
    EXPECT_EQ(results[0].exit_code, trains ? kExitOk : kExitTemporary);
  }
}

}  // namespace
}  // namespace dtrain::engine_stop_test
