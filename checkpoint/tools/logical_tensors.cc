#include "checkpoint/tools/logical_tensors.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "checkpoint/tools/tensor_values.h"

namespace dtrain::checkpoint {
namespace {

using Range = std::pair<uint64_t, uint64_t>;

// A part of a tensor that is cut over the ranks.
struct Cut {
  Range range;
  size_t tensor = 0;
  uint64_t first = 0;
};

// The ranges of the layout that the rank's record names; nothing where it names none.
std::optional<std::vector<Range>> RangesOf(const Json& rank, const std::string& engine) {
  const Json* record = &rank;
  if (!engine.empty()) {
    const auto engines = rank.find(kEnginesKey);
    if (engines == rank.end() || !engines->is_object() || !engines->contains(engine)) {
      return std::nullopt;
    }
    record = &(*engines)[engine];
  }
  const auto ranges = record->is_object() ? record->find(kRangesKey) : record->end();
  if (!record->is_object() || ranges == record->end() || !ranges->is_array()) {
    return std::nullopt;
  }
  std::vector<Range> result;
  for (const Json& range : *ranges) {
    if (!range.is_array() || range.size() != 2 || !range[0].is_number_unsigned() ||
        !range[1].is_number_unsigned() || range[1].get<uint64_t>() < range[0].get<uint64_t>()) {
      return std::nullopt;
    }
    result.emplace_back(range[0].get<uint64_t>(), range[1].get<uint64_t>());
  }
  return result;
}

// Whether a tensor of state/ belongs to its rank alone, by its name without its engine's.
bool IsOfRank(absl::string_view name) {
  return absl::StartsWith(name, "rng.") || absl::StartsWith(name, "buffer.");
}

// Whether every rank stores the same, or one rank stores it for all.
bool IsOfAll(absl::string_view name) {
  return name == "missed_updates" || absl::StartsWith(name, "tracked/");
}

// The rank whose file `path` is, "state/rank-R-of-N.safetensors"; nothing for another file.
std::map<std::string, int> RanksOfFiles(const Manifest& manifest) {
  std::map<std::string, int> ranks;
  for (int rank = 0; rank < manifest.world_size; ++rank) {
    ranks[StatePath(rank, manifest.world_size)] = rank;
  }
  return ranks;
}

LogicalTensor Whole(const ManifestTensor& listed, size_t index) {
  LogicalTensor tensor;
  tensor.name = listed.entry.name;
  tensor.dtype = listed.entry.dtype;
  tensor.shape = listed.entry.shape;
  tensor.pieces = {{0, ElementCount(listed.entry.shape), index, 0}};
  return tensor;
}

// Puts the parts of one tensor together in the layout's order.
absl::StatusOr<LogicalTensor> Joined(const Manifest& manifest, std::vector<Cut> cuts) {
  std::sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) { return a.range < b.range; });
  LogicalTensor tensor = Whole(manifest.tensors[cuts.front().tensor], cuts.front().tensor);
  tensor.pieces.clear();
  uint64_t elements = 0;
  for (const Cut& cut : cuts) {
    const uint64_t count = cut.range.second - cut.range.first;
    if (!tensor.covers.empty() && cut.range.first < tensor.covers.back().second) {
      return absl::InvalidArgumentError(absl::StrCat(manifest.id.DirectoryName(),
                                                     ": two ranks say to hold element ",
                                                     cut.range.first, " of ", tensor.name));
    }
    if (manifest.tensors[cut.tensor].entry.dtype != tensor.dtype) {
      return absl::InvalidArgumentError(absl::StrCat(manifest.id.DirectoryName(), ": ranks hold ",
                                                     tensor.name, " in different types"));
    }
    if (!tensor.covers.empty() && cut.range.first == tensor.covers.back().second) {
      tensor.covers.back().second = cut.range.second;
    } else {
      tensor.covers.push_back(cut.range);
    }
    tensor.pieces.push_back({elements, count, cut.tensor, cut.first});
    elements += count;
  }
  tensor.shape = {elements};
  return tensor;
}

// The parts of `listed`, a state of rank's ranges; nothing if it is no such state.
absl::StatusOr<std::vector<Cut>> CutsOf(const Manifest& manifest, size_t index, int rank,
                                        const std::string& engine) {
  const TensorEntry& entry = manifest.tensors[index].entry;
  const auto ranges = RangesOf(manifest.rank_state[static_cast<size_t>(rank)], engine);
  std::vector<Cut> cuts;
  if (!ranges.has_value() || entry.shape.size() != 1) {
    return cuts;
  }
  uint64_t first = 0;
  for (const Range& range : *ranges) {
    if (range.second > range.first) {
      cuts.push_back({range, index, first});
      first += range.second - range.first;
    }
  }
  if (first != entry.shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat(manifest.id.DirectoryName(), ": rank ", rank,
                                                   " says to hold ", first, " elements of ",
                                                   entry.name, ", its file has ", entry.shape[0]));
  }
  return cuts;
}

}  // namespace

std::string EngineOf(const Manifest& manifest, absl::string_view tensor) {
  const auto engines = manifest.state.engine.find(kEnginesKey);
  if (engines == manifest.state.engine.end() || !engines->is_object()) {
    return "";
  }
  for (const auto& [name, record] : engines->items()) {
    if (absl::StartsWith(tensor, name + "/")) {
      return name;
    }
  }
  return "";
}

absl::StatusOr<std::vector<LogicalTensor>> LogicalTensors(const Manifest& manifest) {
  const std::map<std::string, int> ranks = RanksOfFiles(manifest);
  std::vector<LogicalTensor> tensors;
  std::map<std::string, std::vector<Cut>> cut_tensors;
  std::map<std::string, LogicalTensor> of_all;
  for (size_t i = 0; i < manifest.tensors.size(); ++i) {
    const ManifestTensor& listed = manifest.tensors[i];
    LogicalTensor tensor = Whole(listed, i);
    const auto found = ranks.find(manifest.files[listed.file].path);
    if (found == ranks.end()) {  // In model/.
      tensor.of_model = true;
      tensors.push_back(std::move(tensor));
      continue;
    }
    const std::string engine = EngineOf(manifest, tensor.name);
    const absl::string_view inner =
        absl::string_view(tensor.name).substr(engine.empty() ? 0 : engine.size() + 1);
    if (IsOfAll(inner)) {
      of_all.emplace(tensor.name, std::move(tensor));  // The first rank's.
      continue;
    }
    if (!IsOfRank(inner)) {
      DT_ASSIGN_OR_RETURN(std::vector<Cut> cuts, CutsOf(manifest, i, found->second, engine));
      const bool is_empty_part = tensor.shape == std::vector<uint64_t>{0};
      if (!cuts.empty() || is_empty_part) {
        auto& all = cut_tensors[tensor.name];
        all.insert(all.end(), cuts.begin(), cuts.end());
        continue;
      }
    }
    tensor.rank = found->second;
    tensors.push_back(std::move(tensor));
  }
  for (auto& [name, tensor] : of_all) {
    tensors.push_back(std::move(tensor));
  }
  for (auto& [name, cuts] : cut_tensors) {
    if (!cuts.empty()) {
      DT_ASSIGN_OR_RETURN(LogicalTensor tensor, Joined(manifest, std::move(cuts)));
      tensors.push_back(std::move(tensor));
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const LogicalTensor& a, const LogicalTensor& b) {
    return std::tuple(!a.of_model, a.name, a.rank) < std::tuple(!b.of_model, b.name, b.rank);
  });
  return tensors;
}

absl::Status ReadElements(CheckpointTensors& from, const LogicalTensor& tensor, uint64_t first,
                          size_t element_bytes, absl::Span<std::byte> into) {
  auto piece = std::upper_bound(
      tensor.pieces.begin(), tensor.pieces.end(), first,
      [](uint64_t at, const LogicalTensor::Piece& next) { return at < next.begin; });
  --piece;  // The first one begins at 0.
  for (; !into.empty(); ++piece) {
    const uint64_t within = first - piece->begin;
    const uint64_t count =
        std::min<uint64_t>(piece->elements - within, into.size() / element_bytes);
    DT_RETURN_IF_ERROR(from.Read(piece->tensor, (piece->first + within) * element_bytes,
                                 into.subspan(0, count * element_bytes)));
    into.remove_prefix(count * element_bytes);
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace dtrain::checkpoint
