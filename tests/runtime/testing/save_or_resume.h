// Trains a model to a checkpoint and from one: for tests that checkpoints go from any place of
// weights or states to any other.
#pragma once

#include <gtest/gtest.h>

#include "ATen/ATen.h"
#include "absl/status/status.h"
#include "dtrain/checkpointer.h"
#include "dtrain/engine.h"
#include "dtrain/job.h"

namespace dtrain::testing {

// Five steps of a `Net` of seed 5 on one rank's `Source`, of which the third is saved; with
// `resume` those after the checkpoint alone. Returns what look(engine, net) gives at the end,
// before the engine is destroyed. REQUIRES: the job's checkpoint.interval is 3.
template <typename Net, typename Source, typename Look>
auto SaveOrResume(Job& job, bool resume, Look look) {
  at::manual_seed(5);
  Net net;
  auto engine = Engine::Create(job, net);
  EXPECT_TRUE(engine.ok()) << engine.status();
  auto checkpoints = Checkpointer::Open(job);
  EXPECT_TRUE(checkpoints.ok()) << checkpoints.status();
  (*checkpoints)->Track("engine", **engine);
  if (resume) {
    const absl::Status restored = (*checkpoints)->RestoreLatest();
    EXPECT_TRUE(restored.ok()) << restored;
    EXPECT_EQ((*engine)->step(), 3);
  }
  Source source{0, 1, 1, (*engine)->step()};
  while ((*engine)->step() < 5) {
    const auto report =
        (*engine)->Step(source, [&](const at::Tensor& x) { return Loss(net.Loss(x), x.size(0)); });
    EXPECT_TRUE(report.ok()) << report.status();
    if (!report.ok()) {
      break;
    }
    if (!resume) {
      const absl::Status saved = (*checkpoints)->MaybeSave((*engine)->step());
      EXPECT_TRUE(saved.ok()) << saved;
    }
  }
  return look(**engine, net);
}

}  // namespace dtrain::testing
