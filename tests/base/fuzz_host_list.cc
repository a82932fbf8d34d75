// Fuzz target: Slurm host lists, whose output must be bounded for every input.
#include "base/check.h"
#include "base/job_env.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const std::string text(reinterpret_cast<const char*>(data), bytes);
  if (const auto hosts = dtrain::ExpandHostList(text); hosts.ok()) {
    DT_CHECK_LE(hosts->size(), 65536U);
    for (const std::string& host : *hosts) {
      DT_CHECK(host.find_first_of("[],") == std::string::npos) << host;
    }
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {"gpu-[007-009,011],a,b[1-2]c[3-4]", "n1,n2", "x[1-3]"};
}
