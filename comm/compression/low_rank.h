// The arithmetic of low-rank compression: tall thin matrices, column by column.
//
// A matrix M is [rows x columns], row after row; a factor of rank r is r columns, one after the
// other: P is [r][rows], Q is [r][columns]. Pure; the same bits on every CPU: fp32 in one order,
// built for the baseline instruction set and without dispatch, because every rank computes the
// result itself and ranks that differ in a bit drift apart.
#pragma once

#include <cstddef>

namespace dtrain::comm {

struct MatrixView {
  const float* data = nullptr;
  size_t rows = 0;
  size_t columns = 0;
};

// p = M q: [r][rows]. Sums in fp32 in 8 lanes.
void Multiply(const MatrixView& m, const float* q, int rank, float* p);
// q = M^T p: [r][columns].
void MultiplyTransposed(const MatrixView& m, const float* p, int rank, float* q);
// Makes the columns of p ([r][rows]) orthonormal, by Gram-Schmidt done twice. A column that hardly
// leaves the span of those before it becomes zero.
void Orthogonalize(float* p, size_t rows, int rank);
// out = p q^T: [rows x columns].
void Expand(const float* p, const float* q, int rank, size_t rows, size_t columns, float* out);
// m -= p q^T.
void SubtractExpanded(const float* p, const float* q, int rank, size_t rows, size_t columns,
                      float* m);

// to += from.
void AddTo(const float* from, size_t count, float* to);
// The sum of squares in fp64, in 8 lanes.
double SquareSum(const float* values, size_t count);

}  // namespace dtrain::comm
