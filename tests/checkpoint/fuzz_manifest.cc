// Fuzz target for the manifest and the epoch record: whatever parses can be encoded and parsed
// again.
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "checkpoint/commit/epoch.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/format/manifest_seal.h"
#include "tests/fuzz/fuzz_target.h"

using namespace dtrain::checkpoint;  // NOLINT(google-build-using-namespace): one small program.

// The input is a body without its seal: with the seal, every mutation would end at the hash.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view body(reinterpret_cast<const char*>(data), size);
  const std::string text = SealManifest(body);
  if (const auto manifest = ParseManifest(text, "M"); manifest.ok()) {
    const std::string encoded = EncodeManifest(*manifest);
    const auto again = ParseManifest(encoded, "M");
    DT_CHECK(again.ok()) << again.status().ToString();
    DT_CHECK_EQ(EncodeManifest(*again), encoded);
    for (const ManifestFile& file : manifest->files) {
      DT_CHECK(file.path.find("..") != 0 && file.path[0] != '/') << file.path;
    }
  }
  if (const auto record = ParseEpoch(text, "E"); record.ok()) {
    const auto again = ParseEpoch(EncodeEpoch(*record), "E");
    DT_CHECK(again.ok()) << again.status().ToString();
  }
  ParseManifest(body, "M").status().IgnoreError();
  return 0;
}

std::vector<std::string> dtrain::FuzzSeeds() {
  Manifest manifest;
  manifest.job = "job";
  manifest.id = {2, 7};
  manifest.parent = StepId{1, 5};
  manifest.nonce = "00";
  manifest.state.skip = {{1, 2}};
  manifest.rank_state = {dtrain::Json{{"rng", 1}}};
  FileChecksum checksum;
  checksum.bytes = 100;
  checksum.xxh3_128 = std::string(32, '0');
  checksum.crc32c = {7};
  manifest.files = {{"model/model.safetensors", checksum}, {StatePath(0, 1), checksum}};
  manifest.tensors = {{0, {"w", "F32", {2, 3}, 0, 24}}};
  EpochRecord record;
  record.job = "job";
  record.epoch = 2;
  record.resumed_from = StepId{1, 5};
  std::vector<std::string> seeds;
  for (const std::string& text : {EncodeManifest(manifest), EncodeEpoch(record)}) {
    seeds.push_back(text.substr(0, text.rfind(" \"self_hash\"")));
  }
  return seeds;
}
