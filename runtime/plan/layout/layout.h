// ParamLayout: where each parameter lives in the flat buffers of a rank.
//
// A pure function of names, shapes, dtypes and mesh, so every rank computes the same one;
// bucketing, ZeRO, checkpoint and reshard all read it. Immutable after Create; thread-safe.
//
// Order and alignment. Entries stand in reverse registration order, which is close to the order in
// which backward finishes gradients. Offsets count elements, not bytes, so one layout describes the
// fp32 and the 2-byte flat buffers alike; each entry starts at a multiple of kAlignElements = 32,
// which is 64 bytes in a 2-byte buffer and 128 bytes in an fp32 one (a cache line, and a whole
// vector of every instruction set). The gaps hold zeros and take part in reductions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace dtrain::plan {

// The axes of parallelism. Today tp, cp and pp must be 1; groups, norm and RNG take their axis
// from here all the same.
struct Mesh {
  int dp_replicate = 1;
  int dp_shard = 1;
  int tp = 1;
  int cp = 1;
  int pp = 1;

  int64_t world_size() const { return int64_t{dp_replicate} * dp_shard * tp * cp * pp; }
  bool operator==(const Mesh&) const = default;
};

// One parameter as the model registers it; `shape` is global.
struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  DType dtype = DType::kFloat32;
};

// The part [start, start + length) of dimension `dim` that this rank holds.
struct Slice {
  int dim = 0;
  int64_t start = 0;
  int64_t length = 0;
  bool operator==(const Slice&) const = default;
};

struct LayoutEntry {
  std::string name;
  std::vector<int64_t> shape;  // Global.
  DType dtype = DType::kFloat32;
  std::vector<Slice> slices;   // Empty: the whole tensor.
  int64_t offset = 0;          // Elements from the start of the flat buffer.
  int64_t elements = 0;        // Held here; without the gap that follows.
  int registration_index = 0;  // Position in the model's own order.
};

class ParamLayout {
 public:
  static constexpr int64_t kAlignElements = 32;

  // `parameters` in registration order. InvalidArgument: an empty or repeated name, a negative
  // dimension, more than 2^62 elements. Unimplemented: a mesh with tp, cp or pp above 1.
  static absl::StatusOr<ParamLayout> Create(absl::Span<const ParamSpec> parameters,
                                            const Mesh& mesh = {});

  const std::vector<LayoutEntry>& entries() const { return entries_; }
  const Mesh& mesh() const { return mesh_; }
  // Length of a flat buffer in elements, gaps included; a multiple of kAlignElements.
  int64_t total_elements() const { return total_elements_; }
  // Elements of the parameters themselves.
  int64_t parameter_elements() const { return parameter_elements_; }
  // Null when there is none of this name.
  const LayoutEntry* Find(absl::string_view name) const;
  // Equal on all ranks exactly when names, shapes, dtypes, order and mesh are.
  uint64_t hash() const;
  // One line an entry; what ranks exchange to name a difference.
  std::string ToText() const;

  // The first difference between two layouts in registration order, as one sentence that names the
  // tensor; none when they are equal. `a_name` and `b_name` say whose they are ("rank 0").
  static std::optional<std::string> FirstDifference(const ParamLayout& a, absl::string_view a_name,
                                                    const ParamLayout& b, absl::string_view b_name);
  // The same on ToText() of another rank.
  static std::optional<std::string> FirstDifference(absl::string_view a_text,
                                                    absl::string_view a_name,
                                                    absl::string_view b_text,
                                                    absl::string_view b_name);

 private:
  ParamLayout() = default;
  std::vector<LayoutEntry> entries_;
  Mesh mesh_;
  int64_t total_elements_ = 0;
  int64_t parameter_elements_ = 0;
};

}  // namespace dtrain::plan
