// Fuzz target for JSON: every value that parses can be written, and the text parses to the same
// value.
#include "base/check.h"
#include "base/json.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(data), bytes);
  if (const auto json = dtrain::ParseJson(text, "fuzz"); json.ok()) {
    const std::string written = dtrain::DumpJson(*json);
    const auto again = dtrain::ParseJson(written, "again");
    DT_CHECK(again.ok()) << again.status().ToString() << " in " << written;
    DT_CHECK_EQ(dtrain::DumpJson(*again), written);
  }
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  return {R"({"a": [1, 2.5e3, -7], /* why */ "b": {"c": "\u00e9\n", "d": null, "e": true}})",
          "// comment\n[[[[{}]]]]", R"({"x": 1e308, "y": 12345678901234567890})"};
}
