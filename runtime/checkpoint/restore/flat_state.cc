#include "runtime/checkpoint/restore/flat_state.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/status.h"
#include "runtime/checkpoint/restore/shared_ranges.h"
#include "runtime/checkpoint/restore/stored_state.h"
#include "runtime/plan/layout/shard_plan.h"

namespace dtrain {
namespace {

// The ranges that rank `rank` of a checkpoint stored; `local` counts from the start of its tensors.
absl::StatusOr<std::vector<plan::OwnedRange>> RangesOf(const checkpoint::Checkpoint& from, int rank,
                                                       const std::string& name, int64_t total) {
  static const Json kNone = Json::object();
  const Json* const of_engine =
      RecordOf(from.manifest().rank_state.at(static_cast<size_t>(rank)), name);
  const Json& record = of_engine != nullptr ? *of_engine : kNone;
  const auto ranges = record.find("ranges");
  std::vector<plan::OwnedRange> result;
  int64_t local = 0;
  bool valid = ranges != record.end() && ranges->is_array();
  for (size_t i = 0; valid && i < ranges->size(); ++i) {
    const Json& range = (*ranges)[i];
    valid = range.is_array() && range.size() == 2 && range[0].is_number_integer() &&
            range[1].is_number_integer();
    if (valid) {
      const plan::FlatRange flat{range[0].get<int64_t>(), range[1].get<int64_t>()};
      valid = 0 <= flat.begin && flat.begin <= flat.end && flat.end <= total;
      result.push_back({flat, local});
      local += flat.elements();
    }
  }
  if (!valid) {
    return absl::DataLossError(
        absl::StrFormat("%s: the record of rank %d holds no valid \"ranges\" of its moments",
                        from.DisplayName(), rank));
  }
  return result;
}

// A range that is asked for from a rank's file, whose tensors have `elements`.
struct Piece {
  int rank = 0;
  int64_t elements = 0;
  SharedRange range;
};

// Runs `ask` on what the ranks have stored of `wanted`, which together is all of it.
absl::Status AskForRanges(const checkpoint::Checkpoint& from, const std::string& engine,
                          int64_t total, absl::Span<const plan::OwnedRange> wanted,
                          absl::FunctionRef<absl::Status(const Piece& piece)> ask) {
  int64_t found = 0;
  for (int rank = 0; rank < from.manifest().world_size; ++rank) {
    DT_ASSIGN_OR_RETURN(const auto stored, RangesOf(from, rank, engine, total));
    const std::vector<SharedRange> shared = SharedRanges(stored, wanted);
    found += ElementsOf(shared);
    for (const SharedRange& range : shared) {
      DT_RETURN_IF_ERROR(ask({rank, ElementsOf(stored), range}));
    }
  }
  int64_t needed = 0;  // Without padding, which nobody stores.
  for (const plan::OwnedRange& range : wanted) {
    needed += plan::Intersect(range.flat, {0, total}).elements();
  }
  return found >= needed ? absl::OkStatus()
                         : absl::DataLossError(absl::StrFormat(
                               "%s: the records of its ranks hold %d of the %d elements that this "
                               "rank needs of the optimizer's states",
                               from.DisplayName(), found, needed));
}

}  // namespace

std::optional<DType> StoredPrecision(const plan::ParamLayout& layout,
                                     absl::string_view layout_hash) {
  std::vector<plan::ParamSpec> parameters(layout.entries().size());
  for (const plan::LayoutEntry& entry : layout.entries()) {
    parameters[static_cast<size_t>(entry.registration_index)] = {.name = entry.name,
                                                                 .shape = entry.shape};
  }
  for (const DType type : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (plan::ParamSpec& parameter : parameters) {
      parameter.dtype = type;
    }
    const auto saved = plan::ParamLayout::Create(parameters, layout.mesh());
    if (saved.ok() && LayoutHash(*saved) == layout_hash) {
      return type;
    }
  }
  return std::nullopt;
}

absl::Status ReadUpdateState(const EngineState& state, const std::string& engine, DType saved,
                             RestoreReads& reads, Conversions& converted) {
  const checkpoint::Checkpoint& from = reads.from();
  for (const auto& [name, tensor] : UpdateState(state)) {
    if (name == kStoredMaster && saved == DType::kFloat32) {
      continue;
    }
    const std::string stored_name = StoredPrefix(engine) + name;
    const DType type = StoredStateType(tensor);
    converted.Add(StoredTypeOf(from, /*rank=*/0, stored_name, type), type);
    DT_RETURN_IF_ERROR(AskForRanges(
        from, engine, state.flat->layout().total_elements(), state.owned, [&](const Piece& piece) {
          return reads.State(
              piece.rank,
              {stored_name, StoredTypeOf(from, piece.rank, stored_name, type), {piece.elements}},
              piece.range.from, tensor.narrow(0, piece.range.to, piece.range.elements));
        }));
  }
  return absl::OkStatus();
}

absl::Status ReadWeightsFromMasters(const EngineState& state, const std::string& engine,
                                    RestoreReads& reads) {
  const int64_t total = state.flat->layout().total_elements();
  const bool is_shared = state.shard_values.defined();
  const at::Tensor& values = is_shared ? state.shard_values : state.flat->values();
  const std::vector<plan::OwnedRange> all = {{{0, total}, 0}};
  return AskForRanges(
      reads.from(), engine, total, is_shared ? state.owned : all, [&](const Piece& piece) {
        return reads.State(
            piece.rank, {StoredPrefix(engine) + kStoredMaster, DType::kFloat32, {piece.elements}},
            piece.range.from, values.narrow(0, piece.range.to, piece.range.elements));
      });
}

}  // namespace dtrain
