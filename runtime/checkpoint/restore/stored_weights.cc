#include "runtime/checkpoint/restore/stored_weights.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "checkpoint/format/safetensors_header.h"

namespace dtrain {
namespace {

constexpr size_t kTensorsNamedMax = 12;  // Tensors of one kind in a message.

bool IsConverted(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 ||
         dtype == DType::kFloat64;
}

// "BF16 [3, 4]".
template <typename Shape>
std::string FormText(absl::string_view dtype, const Shape& shape) {
  return absl::StrCat(dtype, " [", absl::StrJoin(shape, ", "), "]");
}

std::string FormText(const checkpoint::TensorSpec& spec) {
  return FormText(checkpoint::SafetensorsDType(spec.dtype), spec.shape);
}

// The type in which `stored` can be read as `wanted`; none if it cannot.
std::optional<DType> FittingType(const checkpoint::TensorEntry& stored,
                                 const checkpoint::TensorSpec& wanted) {
  const std::optional<DType> type = checkpoint::DTypeFromSafetensors(stored.dtype);
  const bool same_shape =
      std::equal(stored.shape.begin(), stored.shape.end(), wanted.shape.begin(), wanted.shape.end(),
                 [](uint64_t a, int64_t b) { return b >= 0 && a == static_cast<uint64_t>(b); });
  const bool same_kind = type.has_value() && (*type == wanted.dtype ||
                                              (IsConverted(*type) && IsConverted(wanted.dtype)));
  return same_shape && same_kind ? type : std::nullopt;
}

std::string Misfit(const checkpoint::TensorEntry& stored, const checkpoint::TensorSpec& wanted) {
  return absl::StrCat(wanted.name, " is ", FormText(stored.dtype, stored.shape),
                      "; the program has ", FormText(wanted));
}

// "it lacks 2 tensors: a F32 [3], b F32 [4]".
std::string ListOf(absl::string_view what, std::vector<std::string> items) {
  const size_t all = items.size();
  items.resize(std::min(all, kTensorsNamedMax));
  if (all > items.size()) {
    items.push_back(absl::StrCat("and ", all - items.size(), " more"));
  }
  return absl::StrFormat("%s %d tensor%s: %s", what, all, all == 1 ? "" : "s",
                         absl::StrJoin(items, ", "));
}

}  // namespace

std::string Conversions::Text() const {
  std::string text;
  for (const auto& [types, count] : counts_) {
    if (count > 0) {
      absl::StrAppendFormat(&text, "; %d tensor%s converted from %s to %s", count,
                            count == 1 ? "" : "s", DTypeName(types.first), DTypeName(types.second));
    }
  }
  return text;
}

absl::StatusOr<checkpoint::TensorSpec> StoredForm(const checkpoint::Checkpoint& from,
                                                  const checkpoint::TensorSpec& wanted) {
  const checkpoint::TensorEntry* const stored = from.FindModelEntry(wanted.name);
  if (stored == nullptr) {
    return absl::NotFoundError(absl::StrCat(from.DisplayName(), " holds no tensor ", wanted.name));
  }
  const std::optional<DType> type = FittingType(*stored, wanted);
  if (!type.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        from.DisplayName(), ": tensor ", Misfit(*stored, wanted),
        ": is this the model that was saved? Only fp32, bf16, fp16 and fp64 are converted"));
  }
  return checkpoint::TensorSpec{wanted.name, *type, wanted.shape};
}

DType StoredTypeOf(const checkpoint::Checkpoint& from, int rank, const std::string& name,
                   DType wanted) {
  for (const checkpoint::TensorEntry& entry : from.StateTensors(rank)) {
    const std::optional<DType> type = checkpoint::DTypeFromSafetensors(entry.dtype);
    if (entry.name == name && type.has_value() && IsConverted(*type) && IsConverted(wanted)) {
      return *type;
    }
  }
  return wanted;
}

absl::Status CheckWeightsFit(const checkpoint::Checkpoint& from,
                             absl::Span<const checkpoint::TensorSpec> wanted, std::string& unused) {
  std::vector<std::string> missing;
  std::vector<std::string> misfits;
  std::set<std::string> names;
  for (const checkpoint::TensorSpec& spec : wanted) {
    names.insert(spec.name);
    const checkpoint::TensorEntry* const stored = from.FindModelEntry(spec.name);
    if (stored == nullptr) {
      missing.push_back(absl::StrCat(spec.name, " ", FormText(spec)));
    } else if (!FittingType(*stored, spec).has_value()) {
      misfits.push_back(Misfit(*stored, spec));
    }
  }
  std::vector<std::string> others;
  const Json& record = from.manifest().state.engine;
  const Json engines = record.value("engines", Json::object());
  const auto is_other_engines = [&](const std::string& name) {
    return engines.is_object() && engines.contains(name.substr(0, name.find('/')));
  };
  for (const checkpoint::TensorEntry& entry : from.ModelTensors()) {
    if (!names.contains(entry.name) && !is_other_engines(entry.name)) {
      others.push_back(absl::StrCat(entry.name, " ", FormText(entry.dtype, entry.shape)));
    }
  }
  unused = others.empty() ? "" : ListOf("the program lacks", std::move(others));
  if (missing.empty() && misfits.empty()) {
    return absl::OkStatus();
  }
  std::vector<std::string> problems;
  if (!missing.empty()) {
    problems.push_back(ListOf("it lacks", std::move(missing)));
  }
  if (!misfits.empty()) {
    problems.push_back(absl::StrCat(ListOf("another shape or type of", std::move(misfits)),
                                    " (only fp32, bf16, fp16 and fp64 are converted)"));
  }
  if (!unused.empty()) {
    problems.push_back(unused);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      from.DisplayName(), " does not fit the program's model: ", absl::StrJoin(problems, "; "),
      "; is this the model that was saved?"));
}

}  // namespace dtrain
