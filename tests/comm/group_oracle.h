// The expected results of collectives, computed serially in the simplest way.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "base/numeric/float16.h"
#include "base/numeric/prng.h"
#include "comm/buffer.h"

namespace dtrain::comm::oracle {

inline constexpr DType kReducible[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16,
                                       DType::kFloat64, DType::kInt32,    DType::kInt64};

inline std::vector<ReduceOp> OpsFor(DType dtype) {
  if (dtype == DType::kInt32 || dtype == DType::kInt64) {
    return {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin};
  }
  return {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax, ReduceOp::kMin};
}

// Element i of rank `rank`: reproducible, of both signs and many magnitudes.
inline double ValueAt(size_t i, int rank, uint64_t seed) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15U ^
               (static_cast<uint64_t>(rank) + 3) * seed * 0xBF58476D1CE4E5B9U;
  x ^= x >> 29;
  x *= 0x94D049BB133111EBU;
  x ^= x >> 32;
  const double mantissa = static_cast<double>(static_cast<int64_t>(x % 200001)) / 1000.0 - 100.0;
  constexpr double kScales[] = {0x1p-4, 0x1p-3, 0x1p-2, 0x1p-1, 1, 0x1p1, 0x1p2, 0x1p3};
  return mantissa * kScales[(x >> 40) % 8];
}

template <typename T>
void Put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

inline void PutAs(std::string& bytes, DType dtype, double value) {
  switch (dtype) {
    case DType::kFloat32:
      return Put(bytes, static_cast<float>(value));
    case DType::kBFloat16:
      return Put(bytes, ToBFloat16(static_cast<float>(value)));
    case DType::kFloat16:
      return Put(bytes, ToFloat16(static_cast<float>(value)));
    case DType::kFloat64:
      return Put(bytes, value);
    case DType::kInt32:
      return Put(bytes, static_cast<int32_t>(value));
    default:
      return Put(bytes, static_cast<int64_t>(value));
  }
}

inline double At(const std::string& bytes, DType dtype, size_t i) {
  const char* const p = bytes.data() + i * DTypeBytes(dtype);
  const auto read = [p](auto value) {
    std::memcpy(&value, p, sizeof(value));
    return value;
  };
  switch (dtype) {
    case DType::kFloat32:
      return read(float{});
    case DType::kBFloat16:
      return ToFloat(read(BFloat16{}));
    case DType::kFloat16:
      return ToFloat(read(Float16{}));
    case DType::kFloat64:
      return read(double{});
    case DType::kInt32:
      return read(int32_t{});
    default:
      return static_cast<double>(read(int64_t{}));
  }
}

inline std::string Input(DType dtype, size_t count, int rank, uint64_t seed) {
  std::string bytes;
  bytes.reserve(count * DTypeBytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    PutAs(bytes, dtype, ValueAt(i, rank, seed));
  }
  return bytes;
}

// The rank whose value comes first in the sum of element i.
using FirstRank = std::function<size_t(size_t i)>;
inline size_t RankOrder(size_t /*i*/) { return 0; }

// Sums in T, starting at the first rank, with one division and one rounding.
template <typename T>
std::string ReducedIn(DType dtype, size_t count, int size, uint64_t seed, ReduceOp op,
                      const FirstRank& first_rank) {
  std::vector<std::string> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(Input(dtype, count, rank, seed));
  }
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    const size_t first = first_rank(i);
    T value = static_cast<T>(At(inputs[first], dtype, i));
    for (size_t step = 1; step < inputs.size(); ++step) {
      const T other = static_cast<T>(At(inputs[(first + step) % inputs.size()], dtype, i));
      value = op == ReduceOp::kMax   ? std::max(value, other)
              : op == ReduceOp::kMin ? std::min(value, other)
                                     : static_cast<T>(value + other);
    }
    if (op == ReduceOp::kAverage) {
      value = static_cast<T>(value / static_cast<T>(size));
    }
    PutAs(bytes, dtype, static_cast<double>(value));
  }
  return bytes;
}

inline std::string Reduced(DType dtype, size_t count, int size, uint64_t seed, ReduceOp op,
                           const FirstRank& first_rank = RankOrder) {
  const bool single = dtype == DType::kFloat32 || DTypeBytes(dtype) == 2;
  return single ? ReducedIn<float>(dtype, count, size, seed, op, first_rank)
                : ReducedIn<double>(dtype, count, size, seed, op, first_rank);
}

// Sums in T of neighbours, then of neighbouring pairs, and so on, like doubling and halving.
// REQUIRES: a power of two of ranks; a sum or an average.
template <typename T>
std::string ReducedInPairs(DType dtype, size_t count, int size, uint64_t seed, ReduceOp op) {
  std::vector<std::string> inputs;
  for (int rank = 0; rank < size; ++rank) {
    inputs.push_back(Input(dtype, count, rank, seed));
  }
  std::string bytes;
  std::vector<T> sums(inputs.size());
  for (size_t i = 0; i < count; ++i) {
    for (size_t rank = 0; rank < inputs.size(); ++rank) {
      sums[rank] = static_cast<T>(At(inputs[rank], dtype, i));
    }
    for (size_t left = inputs.size(); left > 1; left /= 2) {
      for (size_t pair = 0; pair < left / 2; ++pair) {
        sums[pair] = sums[2 * pair] + sums[2 * pair + 1];
      }
    }
    const T value = op == ReduceOp::kAverage ? sums[0] / static_cast<T>(size) : sums[0];
    PutAs(bytes, dtype, static_cast<double>(value));
  }
  return bytes;
}

inline float Rounded(Wire wire, float value) {
  return wire == Wire::kBFloat16  ? ToFloat(ToBFloat16(value))
         : wire == Wire::kFloat16 ? ToFloat(ToFloat16(value))
                                  : value;
}

// fp32 sums of the values as they arrive over `wire`, rounded to its type once more. `nodes` are
// the numbers of ranks on each node: a node's consecutive ranks are summed before rounding; empty:
// one rank on each node.
inline std::string ReducedOver(Wire wire, size_t count, int size, uint64_t seed,
                               std::vector<int> nodes = {}) {
  if (nodes.empty()) {
    nodes.assign(static_cast<size_t>(size), 1);
  }
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    int first = 0;
    for (const int ranks : nodes) {
      auto node = static_cast<float>(ValueAt(i, first, seed));
      for (int rank = first + 1; rank < first + ranks; ++rank) {
        node += static_cast<float>(ValueAt(i, rank, seed));
      }
      const float x = Rounded(wire, node);
      sum = first == 0 ? x : sum + x;
      first += ranks;
    }
    Put(bytes, Rounded(wire, sum));
  }
  return bytes;
}

inline double SquareSum(const std::string& bytes, DType dtype) {
  double sum = 0;
  for (size_t i = 0; i < bytes.size() / DTypeBytes(dtype); ++i) {
    const double value = At(bytes, dtype, i);
    sum += value * value;
  }
  return sum;
}

// OK when the bits are equal; otherwise an error that names the first element that differs.
inline absl::Status Equal(const std::string& got, const std::string& want, DType dtype,
                          absl::string_view what) {
  if (got == want) {
    return absl::OkStatus();
  }
  const size_t element = DTypeBytes(dtype);
  for (size_t i = 0; i < want.size() / element; ++i) {
    if (got.compare(i * element, element, want, i * element, element) != 0) {
      return absl::InternalError(absl::StrFormat("%s of %d %s: element %d is %.9g, want %.9g", what,
                                                 want.size() / element, DTypeName(dtype), i,
                                                 At(got, dtype, i), At(want, dtype, i)));
    }
  }
  return absl::InternalError(
      absl::StrFormat("%s: %d bytes, want %d", what, got.size(), want.size()));
}

// Sums in T in the order of HierarchicalCollectives: the ranks of each node, then the nodes.
// `round`: a node's sum is rounded to the type. `node_of_rank`: one letter for each rank.
template <typename T>
std::string SumByNodes(const std::string& node_of_rank, DType dtype, size_t count, uint64_t seed,
                       ReduceOp op, bool round = false) {
  const size_t size = node_of_rank.size();
  std::string order;  // Nodes by first rank.
  for (const char node : node_of_rank) {
    order += absl::StrContains(order, node) ? "" : std::string(1, node);
  }
  std::vector<std::string> inputs;
  for (size_t rank = 0; rank < size; ++rank) {
    inputs.push_back(Input(dtype, count, static_cast<int>(rank), seed));
  }
  std::string bytes;
  for (size_t i = 0; i < count; ++i) {
    T sum = 0;
    for (const char node : order) {
      T inside = 0;
      bool first = true;
      for (size_t rank = 0; rank < size; ++rank) {
        if (node_of_rank[rank] == node) {
          const T value = static_cast<T>(At(inputs[rank], dtype, i));
          inside = first ? value : inside + value;
          first = false;
        }
      }
      if (round) {
        std::string rounded;
        PutAs(rounded, dtype, static_cast<double>(inside));
        inside = static_cast<T>(At(rounded, dtype, 0));
      }
      sum = node == order[0] ? inside : sum + inside;
    }
    if (op == ReduceOp::kAverage) {
      sum = sum / static_cast<T>(size);
    }
    PutAs(bytes, dtype, static_cast<double>(sum));
  }
  return bytes;
}

}  // namespace dtrain::comm::oracle
