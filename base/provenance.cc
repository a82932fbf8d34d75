#include "base/provenance.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/version.h"

namespace dtrain {
namespace {

// The first processor's facts.
std::map<std::string, std::string> CpuFacts() {
  std::map<std::string, std::string> facts;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    facts.emplace(std::string(absl::StripAsciiWhitespace(parts.first)),
                  std::string(absl::StripAsciiWhitespace(parts.second)));
  }
  return facts;
}

double LoadAverage() {
  double load = -1;
  return getloadavg(&load, 1) == 1 ? load : -1;
}

}  // namespace

std::string CpuName() {
  const auto facts = CpuFacts();
  const auto name = facts.find("model name");
  if (name == facts.end()) {
    return "unknown";
  }
  const auto fact = [&](const char* key) {
    const auto found = facts.find(key);
    return found == facts.end() ? std::string("unknown") : found->second;
  };
  return absl::StrFormat("%s (family %s, model %s)", name->second, fact("cpu family"),
                         fact("model"));
}

Json Provenance() {
  return {{"date", absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone())},
          {"version", kVersion},
          {"commit", kCommit},
          {"cpu", CpuName()},
          {"cores", std::thread::hardware_concurrency()},
          {"load_average", LoadAverage()}};
}

}  // namespace dtrain
