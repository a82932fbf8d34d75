#include "bench/goal_line.h"

#include <cstdio>

#include "absl/strings/str_format.h"

namespace dtrain::bench {
namespace {

Json Say(const std::string& name, double measured, const std::string& op, double target,
         const std::string& verdict) {
  absl::PrintF("goal %s measured %.4g target %s %.4g %s\n", name, measured, op, target, verdict);
  std::fflush(stdout);
  return {{"name", name},     {"measured", measured},  {"op", op},
          {"target", target}, {"ok", verdict == "ok"}, {"verdict", verdict}};
}

}  // namespace

Json JudgeGoal(const std::string& name, double measured, const std::string& op, double target) {
  const bool ok = op == "<=" ? measured <= target : measured >= target;
  return Say(name, measured, op, target, ok ? "ok" : "short");
}

Json JudgeShare(const std::string& name, double share, double target) {
  return share > 1 ? Say(name, share, ">=", target, "no bound")
                   : JudgeGoal(name, share, ">=", target);
}

}  // namespace dtrain::bench
