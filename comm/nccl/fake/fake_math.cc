#include "comm/nccl/fake/fake_math.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "base/numeric/float16.h"

namespace dtrain::comm {
namespace {

// T is the type in memory, and A the type in which sums are held.
template <typename T, typename A>
struct Element {
  static A Load(const char* data, size_t index) {
    T value;
    std::memcpy(&value, data + index * sizeof(T), sizeof(T));
    return static_cast<A>(value);
  }
  static void Store(A value, char* data, size_t index) {
    const T stored = static_cast<T>(value);
    std::memcpy(data + index * sizeof(T), &stored, sizeof(T));
  }
};

// The two 16-bit formats.
template <typename T, T (*kRound)(float)>
struct Half {
  static float Load(const char* data, size_t index) {
    T value;
    std::memcpy(&value, data + index * sizeof(value), sizeof(value));
    return ToFloat(value);
  }
  static void Store(float value, char* data, size_t index) {
    const T stored = kRound(value);
    std::memcpy(data + index * sizeof(stored), &stored, sizeof(stored));
  }
};
template <>
struct Element<BFloat16, float> : Half<BFloat16, ToBFloat16> {};
template <>
struct Element<Float16, float> : Half<Float16, ToFloat16> {};

// Calls `visit(Element<T, A>, A{})` for `dtype`.
template <typename Visit>
void Dispatch(NcclDType dtype, Visit visit) {
  switch (dtype) {
    case NcclDType::kUint8:
      return visit(Element<uint8_t, int>(), int{});
    case NcclDType::kInt32:
      return visit(Element<int32_t, int64_t>(), int64_t{});
    case NcclDType::kInt64:
      return visit(Element<int64_t, int64_t>(), int64_t{});
    case NcclDType::kFloat16:
      return visit(Element<Float16, float>(), float{});
    case NcclDType::kBFloat16:
      return visit(Element<BFloat16, float>(), float{});
    case NcclDType::kFloat32:
      return visit(Element<float, float>(), float{});
    case NcclDType::kFloat64:
      return visit(Element<double, double>(), double{});
  }
  DT_CHECK(false) << "NCCL type " << static_cast<int>(dtype);
}

template <typename A>
A Combine(NcclReduceOp op, A left, A right) {
  switch (op) {
    case NcclReduceOp::kMax:
      return std::max(left, right);
    case NcclReduceOp::kMin:
      return std::min(left, right);
    default:
      return static_cast<A>(left + right);
  }
}

}  // namespace

size_t NcclDTypeBytes(NcclDType dtype) {
  switch (dtype) {
    case NcclDType::kUint8:
      return 1;
    case NcclDType::kFloat16:
    case NcclDType::kBFloat16:
      return 2;
    case NcclDType::kInt32:
    case NcclDType::kFloat32:
      return 4;
    case NcclDType::kInt64:
    case NcclDType::kFloat64:
      return 8;
  }
  return 0;
}

void ReduceParts(NcclDType dtype, NcclReduceOp op, absl::Span<const char* const> parts,
                 size_t count, char* output) {
  Dispatch(dtype, [&](auto element, auto zero) {
    using E = decltype(element);
    for (size_t i = 0; i < count; ++i) {
      decltype(zero) value = E::Load(parts[0], i);
      for (size_t part = 1; part < parts.size(); ++part) {
        value = Combine(op, value, E::Load(parts[part], i));
      }
      E::Store(value, output, i);
    }
  });
}

void ScaleElements(NcclDType dtype, double factor, char* data, size_t count) {
  Dispatch(dtype, [&](auto element, auto zero) {
    using E = decltype(element);
    using A = decltype(zero);
    for (size_t i = 0; i < count; ++i) {
      E::Store(static_cast<A>(E::Load(data, i) * static_cast<A>(factor)), data, i);
    }
  });
}

double ReadScalar(NcclDType dtype, const void* data) {
  double value = 0;
  Dispatch(dtype, [&](auto element, auto) {
    value = static_cast<double>(decltype(element)::Load(static_cast<const char*>(data), 0));
  });
  return value;
}

}  // namespace dtrain::comm
