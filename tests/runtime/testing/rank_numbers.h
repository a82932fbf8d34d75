// Numbers that ranks of a cluster compute, for tests that compare trainings.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/json.h"
#include "base/status.h"
#include "tests/testing/cluster.h"

namespace dtrain::testing {

using RankNumbers = std::function<absl::Status(RankContext&, std::vector<double>&)>;

// The numbers of rank 0; empty when a rank failed.
inline std::vector<double> NumbersOf(int size, const RankNumbers& body) {
  auto cluster = Cluster::Start({.size = size}, [&](RankContext& context) -> absl::Status {
    std::vector<double> numbers;
    DT_RETURN_IF_ERROR(body(context, numbers));
    return context.store->Set("numbers/" + std::to_string(context.rank), DumpJson(Json(numbers)),
                              Deadline::After(absl::Seconds(10)));
  });
  const auto text = (*cluster)->Result("numbers/0");
  for (const auto& result : (*cluster)->Join()) {
    EXPECT_TRUE(result.status.ok()) << result.status;
  }
  return ParseJson(text.value_or("[]"), "numbers")->get<std::vector<double>>();
}

}  // namespace dtrain::testing
