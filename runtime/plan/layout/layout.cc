#include "runtime/plan/layout/layout.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "runtime/plan/stable_hash.h"

namespace dtrain::plan {
namespace {

constexpr int64_t kElementsMax = int64_t{1} << 62;

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::Status CheckMesh(const Mesh& mesh) {
  const struct {
    const char* name;
    int size;
    bool supported;
  } axes[] = {{"dp_replicate", mesh.dp_replicate, true},
              {"dp_shard", mesh.dp_shard, true},
              {"tp", mesh.tp, false},
              {"cp", mesh.cp, false},
              {"pp", mesh.pp, false}};
  for (const auto& axis : axes) {
    if (axis.size < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("mesh axis %s is %d; it must be at least 1", axis.name, axis.size));
    }
    if (axis.size > 1 && !axis.supported) {
      return absl::UnimplementedError(
          absl::StrFormat("mesh axis %s is %d; only data parallelism is supported, set it to 1",
                          axis.name, axis.size));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ElementCount(const ParamSpec& parameter) {
  int64_t elements = 1;
  for (const int64_t size : parameter.shape) {
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "parameter %s has the shape %s", parameter.name, ShapeText(parameter.shape)));
    }
    if (__builtin_mul_overflow(elements, size, &elements) || elements > kElementsMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("parameter %s of shape %s has more than 2^62 elements", parameter.name,
                          ShapeText(parameter.shape)));
    }
  }
  return elements;
}

}  // namespace

absl::StatusOr<ParamLayout> ParamLayout::Create(absl::Span<const ParamSpec> parameters,
                                                const Mesh& mesh) {
  DT_RETURN_IF_ERROR(CheckMesh(mesh));
  ParamLayout layout;
  layout.mesh_ = mesh;
  std::set<absl::string_view> names;
  for (size_t i = parameters.size(); i-- > 0;) {
    const ParamSpec& parameter = parameters[i];
    if (parameter.name.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat("parameter %d has an empty name", i));
    }
    if (!names.insert(parameter.name).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "two parameters are named %s; list a shared parameter once", parameter.name));
    }
    LayoutEntry entry;
    DT_ASSIGN_OR_RETURN(entry.elements, ElementCount(parameter));
    entry.name = parameter.name;
    entry.shape = parameter.shape;
    entry.dtype = parameter.dtype;
    entry.offset = layout.total_elements_;
    entry.registration_index = static_cast<int>(i);
    const int64_t padded = (entry.elements + kAlignElements - 1) / kAlignElements * kAlignElements;
    if (padded > kElementsMax - layout.total_elements_) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the model has more than 2^62 elements (at parameter %s)", parameter.name));
    }
    layout.total_elements_ += padded;
    layout.parameter_elements_ += entry.elements;
    layout.entries_.push_back(std::move(entry));
  }
  return layout;
}

const LayoutEntry* ParamLayout::Find(absl::string_view name) const {
  for (const LayoutEntry& entry : entries_) {
    if (entry.name == name) {
      return &entry;
    }
  }
  return nullptr;
}

uint64_t ParamLayout::hash() const { return StableHash().Add(ToText()).value(); }

std::string ParamLayout::ToText() const {
  // Tensors stand in registration order, so that a difference names the one the reader meets first
  // in the model's source. The name comes last: it may hold spaces.
  std::string text =
      absl::StrFormat("mesh dp_replicate=%d dp_shard=%d tp=%d cp=%d pp=%d\n", mesh_.dp_replicate,
                      mesh_.dp_shard, mesh_.tp, mesh_.cp, mesh_.pp);
  for (size_t i = entries_.size(); i-- > 0;) {
    const LayoutEntry& entry = entries_[i];
    absl::StrAppendFormat(&text, "%s %s", DTypeName(entry.dtype), ShapeText(entry.shape));
    for (const Slice& slice : entry.slices) {
      absl::StrAppendFormat(&text, " slice(%d, %d, %d)", slice.dim, slice.start, slice.length);
    }
    absl::StrAppend(&text, " ", entry.name, "\n");
  }
  return text;
}

std::optional<std::string> ParamLayout::FirstDifference(const ParamLayout& a,
                                                        absl::string_view a_name,
                                                        const ParamLayout& b,
                                                        absl::string_view b_name) {
  return FirstDifference(a.ToText(), a_name, b.ToText(), b_name);
}

std::optional<std::string> ParamLayout::FirstDifference(absl::string_view a_text,
                                                        absl::string_view a_name,
                                                        absl::string_view b_text,
                                                        absl::string_view b_name) {
  const std::vector<absl::string_view> a = absl::StrSplit(a_text, '\n', absl::SkipEmpty());
  const std::vector<absl::string_view> b = absl::StrSplit(b_text, '\n', absl::SkipEmpty());
  for (size_t i = 0; i < a.size() || i < b.size(); ++i) {
    const absl::string_view left = i < a.size() ? a[i] : "nothing";
    const absl::string_view right = i < b.size() ? b[i] : "nothing";
    if (left == right) {
      continue;
    }
    if (i == 0) {
      return absl::StrFormat("%s has %s, %s has %s", a_name, left, b_name, right);
    }
    return absl::StrFormat("parameter %d differs: %s has %s, %s has %s", i - 1, a_name, left,
                           b_name, right);
  }
  return std::nullopt;
}

}  // namespace dtrain::plan
