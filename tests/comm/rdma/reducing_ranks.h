// Common parts of tests of groups over RDMA: ranks of one host that reduce over a fake of verbs.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "comm/group.h"
#include "comm/transport/rdma/fake/fake_verbs.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm::rdma_ranks {

inline GroupOptions Options(const dtrain::testing::RankContext& context, VerbsApi& verbs,
                            Network network = Network::kRdma) {
  GroupOptions options = context.group_options();
  options.allow_shared_memory = false;
  options.network = network;
  options.rdma.verbs = &verbs;
  return options;
}

inline absl::Status ReduceOnes(Group& group, size_t floats) {
  std::vector<float> values(floats, 1.0F);
  DT_ASSIGN_OR_RETURN(const Work work, group.AllReduce({values.data(), floats * 4}, ReduceOp::kSum,
                                                       {.name = "bucket 7"}));
  DT_RETURN_IF_ERROR(work.Wait());
  for (const float value : values) {
    if (value != static_cast<float>(group.size())) {
      return absl::InternalError("wrong sum");
    }
  }
  return absl::OkStatus();
}

inline std::string Text(const dtrain::testing::RankResult& result) {
  return std::string(result.status.message());
}

}  // namespace dtrain::comm::rdma_ranks
