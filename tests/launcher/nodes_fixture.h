// Command lines of agents that meet on one endpoint with one token.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/net/job_key.h"
#include "gtest/gtest.h"
#include "tests/launcher/launched_job.h"
#include "tests/testing/ports.h"

namespace dtrain::launcher {

class NodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    token_ = folder_.path() + "/token";
    ASSERT_TRUE(comm::JobKey::Generate()->WriteFile(token_).ok());
  }
  std::vector<std::string> Node(int node, const std::string& endpoint, int ranks,
                                const std::string& script) const {
    return {"launch",
            "--nnodes",
            "2",
            "--node-rank",
            absl::StrCat(node),
            "--nproc-per-node",
            absl::StrCat(ranks),
            "--rdzv-endpoint",
            endpoint,
            "--token-file",
            token_,
            "--run-dir",
            "run",
            "--",
            "sh",
            "-c",
            script};
  }
  static std::string FreeEndpoint() { return absl::StrCat("127.0.0.1:", test_ports::UnusedPort()); }

  TempDir folder_ = *TempDir::Create("/tmp");
  std::string token_;
};

}  // namespace dtrain::launcher
