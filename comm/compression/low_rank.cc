#include "comm/compression/low_rank.h"

#include <algorithm>
#include <cmath>

namespace dtrain::comm {
namespace {

constexpr size_t kLanes = 8;
// A column whose length shrinks to less than this fraction lies in the span of the others, up to
// rounding.
constexpr double kHardlyAny = 1e-5;

// A dot product in lanes, so that the compiler can vectorise it without changing the order of the
// sum.
template <typename T>
T Dot(const float* a, const float* b, size_t count) {
  T lanes[kLanes] = {};
  const size_t whole = count / kLanes * kLanes;
  for (size_t i = 0; i < whole; i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<T>(a[i + lane]) * static_cast<T>(b[i + lane]);
    }
  }
  for (size_t i = whole; i < count; ++i) {
    lanes[i - whole] += static_cast<T>(a[i]) * static_cast<T>(b[i]);
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) +
         ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

void AddScaled(float scale, const float* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) {
    to[i] += scale * from[i];
  }
}

void Project(float* column, size_t index, const float* p, size_t rows) {
  for (size_t before = 0; before < index; ++before) {
    const float* const other = p + before * rows;
    AddScaled(static_cast<float>(-Dot<double>(column, other, rows)), other, rows, column);
  }
}

}  // namespace

void Multiply(const MatrixView& m, const float* q, int rank, float* p) {
  for (size_t row = 0; row < m.rows; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
      p[k * m.rows + row] = Dot<float>(m.data + row * m.columns, q + k * m.columns, m.columns);
    }
  }
}

void MultiplyTransposed(const MatrixView& m, const float* p, int rank, float* q) {
  std::fill(q, q + static_cast<size_t>(rank) * m.columns, 0.0F);
  for (size_t row = 0; row < m.rows; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
      AddScaled(p[k * m.rows + row], m.data + row * m.columns, m.columns, q + k * m.columns);
    }
  }
}

void Orthogonalize(float* p, size_t rows, int rank) {
  for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
    float* const column = p + k * rows;
    const double before = std::sqrt(Dot<double>(column, column, rows));
    Project(column, k, p, rows);
    Project(column, k, p, rows);
    const double after = std::sqrt(Dot<double>(column, column, rows));
    // A value that is not finite stays so, and the step is then skipped.
    const bool vanished = after <= kHardlyAny * before;
    const auto scale = static_cast<float>(vanished ? 0.0 : 1.0 / after);
    for (size_t i = 0; i < rows; ++i) {
      column[i] *= scale;
    }
  }
}

void Expand(const float* p, const float* q, int rank, size_t rows, size_t columns, float* out) {
  std::fill(out, out + rows * columns, 0.0F);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
      AddScaled(p[k * rows + row], q + k * columns, columns, out + row * columns);
    }
  }
}

void SubtractExpanded(const float* p, const float* q, int rank, size_t rows, size_t columns,
                      float* m) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t k = 0; k < static_cast<size_t>(rank); ++k) {
      AddScaled(-p[k * rows + row], q + k * columns, columns, m + row * columns);
    }
  }
}

void AddTo(const float* from, size_t count, float* to) { AddScaled(1.0F, from, count, to); }

double SquareSum(const float* values, size_t count) { return Dot<double>(values, values, count); }

}  // namespace dtrain::comm
