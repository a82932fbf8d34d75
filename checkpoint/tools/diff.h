// Finds what differs between two checkpoints: their records, and the content of their tensors
// however these are cut over ranks and files. Blocks of a few MiB are read, so the memory does not
// grow with the checkpoints. Thread-safe if the storages are.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "checkpoint/restore/checkpoint_tensors.h"

namespace dtrain::checkpoint {

// A record that differs.
struct RecordDifference {
  std::string name;  // "step", "engine.loss_scale.scale", "rank 1: tracked.loader".
  Json a;            // Null where A has none.
  Json b;
};

enum class TensorVerdict {
  kEqual,        // The same type, shape and bits.
  kWithin,       // Values differ by no more than the tolerance.
  kValues,       // Values differ.
  kType,         // Types differ; values were compared if both are floats.
  kShape,        // Shapes differ, or the parts of the layout that were stored.
  kOnlyA,        // B has no such tensor.
  kOnlyB,        // A has no such tensor.
  kOtherLayout,  // States of different layouts, whose elements belong to different parameters.
};

struct TensorFacts {
  std::string dtype;  // "" where the checkpoint has no such tensor.
  std::vector<uint64_t> shape;
  std::string xxh3_128;  // Hash of the content in order; "" if it was not read.
};

struct TensorDifference {
  bool of_model = false;
  std::string name;
  int rank = -1;  // The rank that it belongs to; -1: all ranks'.
  TensorVerdict verdict = TensorVerdict::kEqual;
  TensorFacts a;
  TensorFacts b;
  uint64_t elements = 0;   // Number of elements that were compared.
  uint64_t differing = 0;  // Number of those that differ by more than the tolerance.
  double largest = 0;      // The largest absolute difference.
};

struct DiffReport {
  std::string path_a;
  std::string path_b;
  std::vector<RecordDifference> records;  // Those that differ.
  std::vector<TensorDifference> tensors;  // All.

  size_t equal_tensors() const;  // Those that are equal, or within the tolerance.
  bool equal() const { return records.empty() && equal_tensors() == tensors.size(); }
};

struct DiffOptions {
  // Floats that differ by no more than this are equal. 0: bits are compared.
  double tolerance = 0;
};

// Errors are those of reading: InvalidArgument for damage, with file and block.
absl::StatusOr<DiffReport> DiffCheckpoints(CheckpointTensors& a, CheckpointTensors& b,
                                           const DiffOptions& options);

// The report for people. `with_equal`: also lists tensors that are equal.
std::string DiffText(const DiffReport& report, bool with_equal);
// The report for programs, with every tensor.
Json DiffJson(const DiffReport& report);

}  // namespace dtrain::checkpoint
