#include "runtime/plan/nccl_variables.h"

#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace dtrain::plan {
namespace {

constexpr char kTimeout[] = "NCCL_IB_TIMEOUT";
constexpr char kRetries[] = "NCCL_IB_RETRY_CNT";

struct Row {
  const char* key;
  const char* variable;
  // Without "=" NCCL takes the name for the beginning of names.
  const char* before = "";
};
constexpr Row kRows[] = {
    {"comm.interface", "NCCL_SOCKET_IFNAME", "="},
    {"comm.rdma.device", "NCCL_IB_HCA", "="},
    {"comm.rdma.gid_index", "NCCL_IB_GID_INDEX"},
    {"comm.rdma.queue_pairs", "NCCL_IB_QPS_PER_CONNECTION"},
    {"comm.rdma.traffic_class", "NCCL_IB_TC"},
    {"comm.rdma.service_level", "NCCL_IB_SL"},
    {"comm.rdma.timeout", kTimeout},
    {"comm.rdma.retries", kRetries},
};

// "" and -1 are the values of keys that leave the choice open.
std::string ValueOf(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  const auto number = value.get<int64_t>();
  return number < 0 ? "" : absl::StrCat(number);
}

int NumberIn(const Environment& environment, const char* name, int absent) {
  const auto found = environment.find(name);
  int value = 0;
  return found != environment.end() && absl::SimpleAtoi(found->second, &value) && value >= 0
             ? value
             : absent;
}

}  // namespace

std::vector<LibraryVariable> NcclVariables(const Config& config, const Environment& environment) {
  std::vector<LibraryVariable> variables;
  for (const Row& row : kRows) {
    const std::optional<ConfigOrigin> origin = config.OriginOf(row.key);
    const bool given = origin == ConfigOrigin::kFile || origin == ConfigOrigin::kSet;
    const std::string value = given ? ValueOf(*config.Find(row.key)) : "";
    if (!value.empty() && environment.count(row.variable) == 0) {
      variables.push_back({row.variable, absl::StrCat(row.before, value),
                           absl::StrCat("because ", row.key, " is ", value)});
    }
  }
  return variables;
}

NcclRetries NcclRetriesIn(const Environment& environment) {
  const NcclRetries absent;
  return {NumberIn(environment, kTimeout, absent.timeout),
          NumberIn(environment, kRetries, absent.retries)};
}

}  // namespace dtrain::plan
