// Any bytes are a header of a token mask, of Megatron's index or a journal, or a one-line error.
#include <string>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "runtime/plan/data/megatron_index.h"
#include "runtime/plan/data/text/prepare_journal.h"
#include "runtime/plan/data/token_mask.h"
#include "tests/fuzz/fuzz_target.h"

namespace dtrain {

std::vector<std::string> FuzzSeeds() {
  std::string index = plan::MakeMegatronHeader({2, 3, 4});
  index.resize(static_cast<size_t>(plan::MegatronIndex{2, 3, 4}.bytes()), '\0');
  std::string mask = plan::MakeMaskHeader({5, 4, 2});
  mask.resize(static_cast<size_t>(plan::kMaskHeaderBytes) + 5, '\1');
  return {index, mask, DumpJson(plan::PrepareProgress().ToJson())};
}

}  // namespace dtrain

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  using namespace dtrain;  // NOLINT(google-build-using-namespace)
  const absl::string_view file(reinterpret_cast<const char*>(data), bytes);
  const auto size = static_cast<int64_t>(bytes);
  const auto index = plan::ParseMegatronHeader(file.substr(0, 34), size, "f");
  if (index.ok()) {
    DT_CHECK_EQ(index->bytes(), size);
    DT_CHECK(index->sequences > 0 && index->document_entries >= 0);
  } else {
    DT_CHECK(index.status().code() == absl::StatusCode::kInvalidArgument) << index.status();
  }
  const auto mask = plan::ParseMaskHeader(file.substr(0, 64), size, "f");
  if (mask.ok()) {
    DT_CHECK_EQ(mask->tokens, size - plan::kMaskHeaderBytes);
    DT_CHECK(mask->trained >= 0 && mask->trained <= mask->tokens && mask->row_length >= 0);
  }
  if (const auto json = ParseJson(file, "f"); json.ok()) {
    const auto progress = plan::PrepareProgress::FromJson(*json);
    DT_CHECK(!progress.ok() || progress->train.tokens >= 0);
  }
  return 0;
}
