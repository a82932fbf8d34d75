// The math of rotary positions that CPU and CUDA share: the rotation of a pair, and which piece of
// which head a CUDA thread takes.
#pragma once

#include <cstdint>

#include "kernels/float_math.h"
#include "kernels/host_device.h"
#include "kernels/layers/rope.h"

namespace dtrain::kernels {

// a cos - b sin is its first with `sin` negated; b cos + a sin its second, with a and b exchanged.
template <class F>
DT_HOST_DEVICE inline F RopeTurn(F self, F other, F cos, F sin) {
  return Fma(self, cos, other * sin);
}

template <class T>
DT_HOST_DEVICE inline int64_t RopePosition(const RopeArgs<T>& args, int64_t token) {
  return args.positions != nullptr ? args.positions[token] : token % args.sequence;
}

// A thread takes a piece of a head of `lanes` pairs (half-split) or of `lanes` elements (the other
// form, and what is copied). First come the rotated pieces of a head, then the copied ones.
struct RopePieces {
  int64_t rotated;  // Pieces of a head that are rotated.
  int64_t all;      // Pieces of a head.
};
DT_HOST_DEVICE inline int64_t RopePiecesIn(int64_t elements, int lanes) {
  return (elements + lanes - 1) / lanes;
}
DT_HOST_DEVICE inline RopePieces RopePiecesOf(RopeForm form, bool rotate, int64_t head_dim,
                                              int64_t rotary_dim, int lanes) {
  if (!rotate) {
    return {0, RopePiecesIn(head_dim, lanes)};
  }
  const int64_t span = form == RopeForm::kHalfSplit ? rotary_dim / 2 : rotary_dim;
  const int64_t rotated = RopePiecesIn(span, lanes);
  return {rotated, rotated + RopePiecesIn(head_dim - rotary_dim, lanes)};
}

// Item `item` of the pieces of a token's parts, heads in order.
struct RopePlace {
  int part;
  int64_t head;  // Counted within the part.
  int64_t
      element;  // The piece's first, counted within the head (half-split: within its first half).
  bool rotated;
};
template <class T>
DT_HOST_DEVICE inline RopePlace RopePlaceOf(const RopeArgs<T>& args, int64_t item, int lanes) {
  int part = 0;
  RopePieces pieces = {0, 1};
  for (; part < kRopePartsMax; ++part) {
    const RopeHeads<T>& heads = args.parts[part];
    pieces = RopePiecesOf(args.form, heads.rotate, args.head_dim, args.rotary_dim, lanes);
    const int64_t count = heads.heads * pieces.all;
    if (item < count) {
      break;
    }
    item -= count;
  }
  const int64_t piece = item % pieces.all;
  const bool rotated = piece < pieces.rotated;
  const int64_t copied_from = part < kRopePartsMax && args.parts[part].rotate ? args.rotary_dim : 0;
  return {part, item / pieces.all,
          rotated ? piece * lanes : copied_from + (piece - pieces.rotated) * lanes, rotated};
}
template <class T>
DT_HOST_DEVICE inline int64_t RopeItemsOfAToken(const RopeArgs<T>& args, int lanes) {
  int64_t items = 0;
  for (int part = 0; part < kRopePartsMax; ++part) {
    const RopeHeads<T>& heads = args.parts[part];
    items += heads.heads *
             RopePiecesOf(args.form, heads.rotate, args.head_dim, args.rotary_dim, lanes).all;
  }
  return items;
}

// Where the part that a piece lies in ends: the first half, the head's rotary part, or the head.
template <class T>
DT_HOST_DEVICE inline int64_t RopePieceLimit(const RopeArgs<T>& args, const RopePlace& place) {
  if (!place.rotated) {
    return args.head_dim;
  }
  return args.form == RopeForm::kHalfSplit ? args.rotary_dim / 2 : args.rotary_dim;
}

}  // namespace dtrain::kernels
