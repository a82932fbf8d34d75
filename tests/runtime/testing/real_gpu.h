// Tests of a real GPU. Without one each says SKIPPED, loudly, and ctest counts the program as
// skipped. What they run is in forked ranks: CUDA does not outlive a fork.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "absl/status/status.h"
#include "dtrain/job.h"
#include "runtime/device/cuda_backend.h"
#include "runtime/job/job_device.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

// OK where there is a GPU; asked once, in a process of its own.
inline const absl::Status& GpuHere() {
  static const absl::Status status =
      RunRanks({.size = 1},
               [](RankContext&) -> absl::Status {
                 const GpuFacts facts = FindGpus(0);
                 return facts.gpus > 0 ? absl::OkStatus()
                                       : absl::UnavailableError(facts.driver ? facts.why_none
                                                                             : "no NVIDIA driver");
               })[0]
          .status;
  return status;
}

// Gives `job` the device of its configuration. Several ranks share a GPU.
inline absl::Status OpenRealDevice(RankContext& context, Job& job) {
  comm::GroupOptions options = context.group_options();
  options.node_id = "this node";
  return OpenDevice(job.state(), options);
}

class RealGpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!GpuHere().ok()) {
      std::fprintf(stderr, "*** SKIPPED: NOT TESTED ON A GPU: %s ***\n",
                   std::string(GpuHere().message()).c_str());
      GTEST_SKIP() << GpuHere().message();
    }
  }
};

}  // namespace dtrain::testing
