// The reference library (Python `safetensors`) opens dtrain's files, and writes the same bytes for
// the same tensors.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/json.h"
#include "checkpoint/storage/posix_storage.h"
#include "tests/checkpoint/testing.h"

namespace dtrain::checkpoint::reference_test {
namespace {

// Copies a checkpoint's model/ to `folder`, together with the expected values.
void AddCase(const std::string& model, const std::string& folder,
             const std::vector<NamedTensor>& tensors) {
  std::filesystem::copy(model, folder);
  Json expected = Json::array();
  for (const NamedTensor& tensor : tensors) {
    expected.push_back(
        {{"name", tensor.spec.name},
         {"dtype", std::string(SafetensorsDType(tensor.spec.dtype))},
         {"shape", tensor.spec.shape},
         {"hex", absl::BytesToHexString(absl::string_view(
                     reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()))}});
  }
  std::ofstream(folder + "/expected.json") << DumpJson(expected);
}

TEST(ReferenceTest, ModelsAreByteEqualToTheReferencesAndOpenInIt) {
  const TemporaryFolder folder;
  const std::string cases = folder.path() + "/cases";
  std::filesystem::create_directory(cases);
  auto storage = OpenPosixStorage(folder.path() + "/checkpoints");
  ASSERT_TRUE(storage.ok());
  auto epoch = BeginEpoch(**storage, "job", 1, std::nullopt);
  ASSERT_TRUE(epoch.ok());
  AloneExchange alone;
  SplitMix64 random(42);
  for (int64_t step = 1; step <= 12; ++step) {
    // Random names (also ones that JSON must escape), types and shapes.
    SpanSource source;
    std::vector<std::unique_ptr<std::vector<std::byte>>> buffers;
    const uint64_t count = step == 1 ? 0 : 1 + random.Below(12);
    for (uint64_t i = 0; i < count; ++i) {
      constexpr const char* kStems[] = {"model.w", "a\"b\\",   "caf\u00e9", "\u4e2d\u6587",
                                        "t\tn\n",  "\x01\x1f", "Z",         "emoji \U0001f600"};
      const auto dtype = static_cast<DType>(random.Below(8));
      std::vector<int64_t> shape;
      size_t bytes = DTypeBytes(dtype);
      for (uint64_t d = random.Below(4); d > 0; --d) {
        shape.push_back(static_cast<int64_t>(random.Below(6)));
        bytes *= static_cast<size_t>(shape.back());
      }
      buffers.push_back(std::make_unique<std::vector<std::byte>>(bytes));
      for (std::byte& byte : *buffers.back()) {
        byte = static_cast<std::byte>(dtype == DType::kBool ? random.Below(2) : random.Next());
      }
      source.model.push_back(
          {{absl::StrCat(kStems[random.Below(std::size(kStems))], ".", i), dtype, shape},
           *buffers.back()});
    }
    WriterOptions options = OptionsFor(*epoch);
    options.keep.newest = 0;
    options.shard_bytes_max = step % 4 == 0 ? 64 : options.shard_bytes_max;
    const SaveReport report = Writer(**storage, options).Save(step, source, alone);
    ASSERT_EQ(report.outcome, SaveOutcome::kCommitted) << report.status;
    if (count > 0) {
      AddCase(absl::StrCat(folder.path(), "/checkpoints/", report.id.DirectoryName(), "/model"),
              absl::StrCat(cases, "/", step), source.model);
    }
  }
  const std::string command = absl::StrCat("\"", CHECK_PYTHON, "\" \"", CHECK_SCRIPT, "\" ", cases);
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace dtrain::checkpoint::reference_test
