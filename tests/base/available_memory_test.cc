#include "base/system/available_memory.h"

#include <algorithm>
#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace dtrain::available_memory_test {
namespace {

// Reads MemAvailable from /proc/meminfo, whose numbers are in units of 1,024 bytes.
double AvailableKilobytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) {
      return std::stod(line.substr(line.find(':') + 1));
    }
  }
  return 0;
}

TEST(AvailableMemory, IsWhatTheKernelSaysAndKnowsItsMachine) {
  const AvailableMemory memory = ReadAvailableMemory();
  const double expected = 1024 * AvailableKilobytes();
  ASSERT_GT(expected, 0);
  const double told = static_cast<double>(memory.machine_bytes);
  EXPECT_GT(told, expected / 1.4);  // Other processes allocate and free memory meanwhile.
  EXPECT_LT(told, expected * 1.4);
  EXPECT_GT(memory.cgroup_bytes, 0);
  EXPECT_EQ(memory.bytes(), std::min(memory.machine_bytes, memory.cgroup_bytes));
  const AvailableMemory again = ReadAvailableMemory();
  EXPECT_EQ(again.machine, memory.machine);
  EXPECT_EQ(again.cgroup, memory.cgroup);
}

}  // namespace
}  // namespace dtrain::available_memory_test
