#include "checkpoint/tools/diff.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/tools/logical_tensors.h"
#include "checkpoint/tools/tensor_values.h"

namespace dtrain::checkpoint {
namespace {

// Elements that are compared at a time: 4 MiB of the widest type.
constexpr uint64_t kElementsAtATime = kBlockBytes / 8;

// Appends the members in which `a` and `b` differ; members of objects are named "outer.inner".
void AddRecords(const std::string& name, const Json& a, const Json& b,
                std::vector<RecordDifference>& out) {
  if (a == b) {
    return;
  }
  if (!a.is_object() || !b.is_object()) {
    out.push_back({name, a, b});
    return;
  }
  std::vector<std::string> keys;
  for (const auto& [key, value] : a.items()) {
    keys.push_back(key);
  }
  for (const auto& [key, value] : b.items()) {
    if (!a.contains(key)) {
      keys.push_back(key);
    }
  }
  for (const std::string& key : keys) {
    AddRecords(name.empty() ? key : absl::StrCat(name, ".", key), a.value(key, Json()),
               b.value(key, Json()), out);
  }
}

Json SkipJson(const std::vector<SkipRange>& ranges) {
  Json json = Json::array();
  for (const SkipRange& range : ranges) {
    json.push_back({range.begin, range.end});
  }
  return json;
}

// The small files of model/ by their hashes: config.json and the like, not weights, whose tensors
// are compared.
Json ModelFilesJson(const Manifest& manifest) {
  Json files = Json::object();
  for (const ManifestFile& file : manifest.files) {
    if (absl::StartsWith(file.path, "model/") && !absl::EndsWith(file.path, ".safetensors") &&
        !absl::EndsWith(file.path, ".safetensors.index.json")) {
      files[file.path] = file.checksum.xxh3_128;
    }
  }
  return files;
}

// The facts of a checkpoint that say what it holds. When, by which attempt and for which run it was
// written does not count.
Json RecordsOf(const Manifest& manifest) {
  const JobState& state = manifest.state;
  return {{"step", manifest.id.step},
          {"world_size", manifest.world_size},
          {"zero_stage", state.zero_stage},
          {"layout_hash", state.layout_hash},
          {"engine", state.engine},
          {"data", state.data},
          {"skip_ranges", SkipJson(state.skip)},
          {"user", state.user},
          {"files", ModelFilesJson(manifest)}};
}

// The record of a rank without the ranges that it holds, which say how states are cut.
Json RankRecord(const Manifest& manifest, int rank) {
  Json record = manifest.rank_state[static_cast<size_t>(rank)];
  record.erase(kRangesKey);
  if (const auto engines = record.find(kEnginesKey);
      engines != record.end() && engines->is_object()) {
    for (auto& [name, engine] : engines->items()) {
      if (engine.is_object()) {
        engine.erase(kRangesKey);
      }
    }
  }
  return record;
}

// Ranks of which both checkpoints have what belongs to one rank. With different numbers of ranks a
// run takes rank 0's.
int ComparedRanks(const Manifest& a, const Manifest& b) {
  return a.world_size == b.world_size ? a.world_size : 1;
}

class Comparison {
 public:
  Comparison(CheckpointTensors& a, CheckpointTensors& b, const DiffOptions& options)
      : a_(a), b_(b), options_(options) {}

  absl::StatusOr<TensorDifference> Compare(const LogicalTensor* a, const LogicalTensor* b) {
    const LogicalTensor& some = a != nullptr ? *a : *b;
    TensorDifference difference;
    difference.of_model = some.of_model;
    difference.name = some.name;
    difference.rank = some.rank;
    if (a != nullptr) {
      difference.a = {a->dtype, a->shape, ""};
    }
    if (b != nullptr) {
      difference.b = {b->dtype, b->shape, ""};
    }
    const bool same_layout = a_.manifest().state.layout_hash == b_.manifest().state.layout_hash;
    const auto verdict = [&](TensorVerdict found) {
      difference.verdict = found;
      return difference;
    };
    if (a == nullptr || b == nullptr) {
      return verdict(a == nullptr ? TensorVerdict::kOnlyB : TensorVerdict::kOnlyA);
    }
    if (!same_layout && !(a->covers.empty() && b->covers.empty())) {
      return verdict(TensorVerdict::kOtherLayout);
    }
    if (a->shape != b->shape || a->covers != b->covers) {
      return verdict(TensorVerdict::kShape);
    }
    const bool same_type = a->dtype == b->dtype;
    if (!same_type && !(IsFloat(a->dtype) && IsFloat(b->dtype))) {
      return verdict(TensorVerdict::kType);
    }
    DT_RETURN_IF_ERROR(CompareValues(*a, *b, difference));
    return verdict(!same_type                                       ? TensorVerdict::kType
                   : difference.a.xxh3_128 == difference.b.xxh3_128 ? TensorVerdict::kEqual
                   : difference.differing == 0                      ? TensorVerdict::kWithin
                                                                    : TensorVerdict::kValues);
  }

 private:
  absl::Status CompareValues(const LogicalTensor& a, const LogicalTensor& b,
                             TensorDifference& difference) {
    const auto width_a = ElementBytes(a.dtype);
    const auto width_b = ElementBytes(b.dtype);
    if (!width_a || !width_b) {
      return absl::UnimplementedError(
          absl::StrCat(a.name, " is of type ", a.dtype, ", whose elements are no whole bytes"));
    }
    FileChecksummer hash_a;
    FileChecksummer hash_b;
    ValueDifference values;
    difference.elements = a.elements();
    for (uint64_t at = 0; at < difference.elements; at += kElementsAtATime) {
      const uint64_t count = std::min(kElementsAtATime, difference.elements - at);
      block_a_.resize(count * *width_a);
      block_b_.resize(count * *width_b);
      DT_RETURN_IF_ERROR(ReadElements(a_, a, at, *width_a, absl::MakeSpan(block_a_)));
      DT_RETURN_IF_ERROR(ReadElements(b_, b, at, *width_b, absl::MakeSpan(block_b_)));
      hash_a.Add(block_a_);
      hash_b.Add(block_b_);
      AddDifference(a.dtype, block_a_, b.dtype, block_b_, options_.tolerance, values);
    }
    difference.a.xxh3_128 = hash_a.Finish().xxh3_128;
    difference.b.xxh3_128 = hash_b.Finish().xxh3_128;
    difference.differing = values.elements;
    difference.largest = values.largest;
    return absl::OkStatus();
  }

  CheckpointTensors& a_;
  CheckpointTensors& b_;
  const DiffOptions options_;
  std::vector<std::byte> block_a_;
  std::vector<std::byte> block_b_;
};

}  // namespace

size_t DiffReport::equal_tensors() const {
  return static_cast<size_t>(
      std::count_if(tensors.begin(), tensors.end(), [](const TensorDifference& tensor) {
        return tensor.verdict == TensorVerdict::kEqual || tensor.verdict == TensorVerdict::kWithin;
      }));
}

absl::StatusOr<DiffReport> DiffCheckpoints(CheckpointTensors& a, CheckpointTensors& b,
                                           const DiffOptions& options) {
  DiffReport report;
  report.path_a = a.DisplayName();
  report.path_b = b.DisplayName();
  AddRecords("", RecordsOf(a.manifest()), RecordsOf(b.manifest()), report.records);
  const int ranks = ComparedRanks(a.manifest(), b.manifest());
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<RecordDifference> of_rank;
    AddRecords("", RankRecord(a.manifest(), rank), RankRecord(b.manifest(), rank), of_rank);
    for (RecordDifference& record : of_rank) {
      record.name = absl::StrCat("rank ", rank, ": ", record.name);
      report.records.push_back(std::move(record));
    }
  }
  DT_ASSIGN_OR_RETURN(const std::vector<LogicalTensor> tensors_a, LogicalTensors(a.manifest()));
  DT_ASSIGN_OR_RETURN(const std::vector<LogicalTensor> tensors_b, LogicalTensors(b.manifest()));
  using Key = std::tuple<bool, std::string, int>;  // Model first.
  std::map<Key, std::pair<const LogicalTensor*, const LogicalTensor*>> pairs;
  for (const LogicalTensor& tensor : tensors_a) {
    pairs[{!tensor.of_model, tensor.name, tensor.rank}].first = &tensor;
  }
  for (const LogicalTensor& tensor : tensors_b) {
    pairs[{!tensor.of_model, tensor.name, tensor.rank}].second = &tensor;
  }
  Comparison comparison(a, b, options);
  for (const auto& [key, pair] : pairs) {
    if (std::get<int>(key) >= ranks) {
      continue;  // Another number of ranks has no such rank, and would read rank 0's.
    }
    DT_ASSIGN_OR_RETURN(TensorDifference difference, comparison.Compare(pair.first, pair.second));
    report.tensors.push_back(std::move(difference));
  }
  return report;
}

}  // namespace dtrain::checkpoint
