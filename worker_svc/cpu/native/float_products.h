// Products of small float32 matrices. Included by a variant after its simd_*.h.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

// out[r][c] (+)= sum over k in order of left[r][k] * right[k][c], of kRows rows and kVectors
// vectors of columns.
template <int kRows, int kVectors>
inline void multiply_block(const float *left, int left_stride, const float *right,
                           int right_stride, int depth, float *out, int out_stride, bool adds) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = adds ? load(out + r * out_stride + v * kLanes) : splat(0.0f);
  for (int k = 0; k < depth; ++k) {
    const float *values = right + int64_t{k} * right_stride;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = splat(left[r * left_stride + k]);
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = fma(factor, load(values + v * kLanes), sums[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

template <int kRows>
inline void multiply_rows(const float *left, int left_stride, const float *right, int right_stride,
                          int depth, float *out, int out_stride, int columns, bool adds) {
  int c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes)
    multiply_block<kRows, 2>(left, left_stride, right + c, right_stride, depth, out + c,
                             out_stride, adds);
  if (c < columns)
    multiply_block<kRows, 1>(left, left_stride, right + c, right_stride, depth, out + c,
                             out_stride, adds);
}

void multiply_floats(const float *left, int left_stride, const float *right, int right_stride,
                     int depth, float *out, int out_stride, int rows, int columns, bool adds) {
  constexpr int kMost = 6; // rows of two vectors each whose sums registers hold
  for (; rows >= kMost; rows -= kMost) {
    multiply_rows<kMost>(left, left_stride, right, right_stride, depth, out, out_stride, columns,
                         adds);
    left += kMost * left_stride;
    out += kMost * out_stride;
  }
  switch (rows) {
  case 5:
    return multiply_rows<5>(left, left_stride, right, right_stride, depth, out, out_stride,
                            columns, adds);
  case 4:
    return multiply_rows<4>(left, left_stride, right, right_stride, depth, out, out_stride,
                            columns, adds);
  case 3:
    return multiply_rows<3>(left, left_stride, right, right_stride, depth, out, out_stride,
                            columns, adds);
  case 2:
    return multiply_rows<2>(left, left_stride, right, right_stride, depth, out, out_stride,
                            columns, adds);
  case 1:
    return multiply_rows<1>(left, left_stride, right, right_stride, depth, out, out_stride,
                            columns, adds);
  default:
    return;
  }
}

} // namespace
} // namespace pagewire
