// Ranks that disagree or stay away, and write their flight records: flight_dump_ranks DIR CASE
// writes DIR/flight/rank-R.json of 3 ranks, whose third collective fails as CASE says. Used by
// tests of readers of these files (tests/interop/flight_record_test.py).
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/status.h"
#include "comm/flight_dumper.h"
#include "tests/testing/cluster.h"

namespace dtrain::comm {
namespace {

using ::dtrain::testing::RankContext;

absl::StatusOr<Work> ThirdCall(Group& group, const std::string& fault, std::vector<float>& values) {
  const int rank = group.rank();
  Buffer buffer{values.data(), 400};
  if (fault == "size" && rank == 1) {
    buffer.bytes = 404;
  }
  if (fault == "dtype" && rank == 1) {
    buffer.dtype = DType::kInt32;
  }
  if (fault == "order" && rank == 1) {
    return group.Broadcast(buffer, 0, {.name = "weights"});
  }
  return group.AllReduce(buffer, ReduceOp::kSum, {.name = "bucket 2 (layers.1.mlp.gate.weight)"});
}

absl::Status RunRank(RankContext& context, const std::string& folder, const std::string& fault) {
  DT_ASSIGN_OR_RETURN(
      auto dumper,
      FlightDumper::Start({.path = absl::StrCat(folder, "/flight/rank-", context.rank, ".json"),
                           .about = {{"rank", context.rank}}}));
  GroupOptions options = context.group_options();
  options.timeout = absl::Seconds(2);
  DT_ASSIGN_OR_RETURN(auto group, CreateHostGroup(context.store, options));
  std::vector<float> values(200, 1.0F);
  for (int i = 0; i < 2; ++i) {
    group->SetStep(i + 1);
    DT_ASSIGN_OR_RETURN(const Work work, group->AllReduce({values.data(), 400}, ReduceOp::kSum,
                                                          {.name = absl::StrCat("bucket ", i)}));
    DT_RETURN_IF_ERROR(work.Wait());
  }
  group->SetStep(3);
  absl::Status status;
  if (fault == "missing" && context.rank == 2) {
    // This rank writes its record when the others have given up.
    status = context.store->Get("gave up", Deadline::After(absl::Seconds(30))).status();
    DT_RETURN_IF_ERROR(dumper->Dump("asked"));
  } else {
    DT_ASSIGN_OR_RETURN(const Work work, ThirdCall(*group, fault, values));
    status = work.Wait();
    DT_RETURN_IF_ERROR(dumper->Dump("the third call is over"));
    if (fault == "missing") {
      DT_RETURN_IF_ERROR(context.store->Set("gave up", "", Deadline::Infinite()));
    }
  }
  const bool healthy = fault == "none" || (fault == "missing" && context.rank == 2);
  return status.ok() == healthy ? absl::OkStatus() : absl::InternalError(status.ToString());
}

int Main(const std::string& folder, const std::string& fault) {
  const auto results = testing::RunRanks(
      {.size = 3}, [&](RankContext& context) { return RunRank(context, folder, fault); });
  for (const auto& result : results) {
    if (!result.status.ok()) {
      std::fprintf(stderr, "%s\n", result.status.ToString().c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace
}  // namespace dtrain::comm

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s DIR none|size|dtype|order|missing\n", argv[0]);
    return 64;
  }
  return dtrain::comm::Main(argv[1], argv[2]);
}
