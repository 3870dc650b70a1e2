// Matrices of 16-bit floats, and their products with float32. Included by a variant after linear.h.
//
// A matrix is packed in groups of kLanes rows, each of which is [columns][kLanes] numbers as the
// file has them. A result is added up over columns in order, in one register, whatever tokens and
// rows are beside it: its bits are the same in every batch.
#pragma once

#include "linear.h"
#include "products.h"

namespace pagewire {
namespace {

enum FloatType : int32_t { kGgmlF16 = 1, kGgmlBF16 = 30 };

constexpr int kMostTokens = 6; // with kRows vectors each, whose sums registers hold

struct Halves {
  static Vector read(const uint16_t *p) { return load_half(p); }
};
struct Bfloats {
  static Vector read(const uint16_t *p) { return load_bfloat(p); }
};

int64_t float_group_bytes(int32_t columns) { return int64_t{columns} * kLanes * 2; }

inline const uint16_t *float_group(const Matrix &matrix, int32_t row_group) {
  return reinterpret_cast<const uint16_t *>(matrix.data +
                                            row_group * float_group_bytes(matrix.columns));
}

void pack_floats(const uint8_t *rows_of_file, int32_t rows, int32_t columns, int32_t first,
                 uint8_t *out) {
  for (int lane = 0; lane < kLanes; ++lane) {
    const uint8_t *row = rows_of_file + int64_t{first + lane} * columns * 2;
    for (int c = 0; c < columns; ++c) {
      uint16_t value = 0;
      if (first + lane < rows) std::memcpy(&value, row + int64_t{c} * 2, 2);
      std::memcpy(out + (int64_t{c} * kLanes + lane) * 2, &value, 2);
    }
  }
}

void unpack_float_row(const Matrix &matrix, int32_t row, float *out) {
  const uint16_t *group = float_group(matrix, row / kLanes) + row % kLanes;
  for (int c = 0; c < matrix.columns; ++c) {
    const uint16_t value = group[int64_t{c} * kLanes];
    if (matrix.kind == kF16) {
      out[c] = half_to_float(value);
    } else {
      const uint32_t bits = uint32_t{value} << 16;
      std::memcpy(out + c, &bits, sizeof bits);
    }
  }
}

inline void prefetch_rows(const uint16_t *const (&rows)[kRows], int column) {
  for (int r = 0; r < kRows; ++r) {
    const uint16_t *next = rows[r] + int64_t{column} * kLanes + kAhead / 2;
#pragma GCC unroll 16
    for (int i = 0; i < kGroup * kLanes; i += 32) __builtin_prefetch(next + i);
  }
}

// Products of kRows groups of rows, of which `count` are to be written, with kCount tokens.
template <typename Weights, int kCount>
void multiply_float_block(const Matrix &matrix, const Activations &input, const Output &output,
                          int row_group, int count, int token) {
  const uint16_t *rows[kRows] = {float_group(matrix, row_group),
                                 float_group(matrix, row_group + count - 1)};
  const float *values = input.values + token * input.stride;
  Vector sums[kRows][kCount];
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 6
    for (int t = 0; t < kCount; ++t) sums[r][t] = splat(0.0f);
  for (int begin = 0; begin < matrix.columns; begin += kGroup) {
    // Later tokens find what the first have asked for.
    if (token == 0) prefetch_rows(rows, begin);
    for (int c = begin; c < begin + kGroup; ++c) {
      Vector weights[kRows];
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) weights[r] = Weights::read(rows[r] + int64_t{c} * kLanes);
#pragma GCC unroll 6
      for (int t = 0; t < kCount; ++t) {
        const Vector value = splat(values[t * input.stride + c]);
#pragma GCC unroll 2
        for (int r = 0; r < kRows; ++r) sums[r][t] = fma(value, weights[r], sums[r][t]);
      }
    }
  }
  // Of bounds that are known: sums that could be any would lie in memory.
  const int first = row_group * kLanes;
  if (count == kRows && first + kRows * kLanes <= matrix.rows && !output.bias && !output.adds) {
    float *out = output.data + token * output.stride + first;
#pragma GCC unroll 6
    for (int t = 0; t < kCount; ++t, out += output.stride)
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) store(out + r * kLanes, sums[r][t]);
    return;
  }
#pragma GCC unroll 2
  for (int r = 0; r < kRows; ++r) {
    if (r >= count) return;
#pragma GCC unroll 6
    for (int t = 0; t < kCount; ++t)
      finish(matrix, output, first + r * kLanes, token + t, sums[r][t]);
  }
}

// The tokens that are left of blocks of kMostTokens.
template <typename Weights, int kCount = kMostTokens - 1>
void multiply_float_rest(const Matrix &matrix, const Activations &input, const Output &output,
                         int row_group, int count, int token) {
  if (input.num_tokens - token == kCount)
    return multiply_float_block<Weights, kCount>(matrix, input, output, row_group, count, token);
  if constexpr (kCount > 1)
    multiply_float_rest<Weights, kCount - 1>(matrix, input, output, row_group, count, token);
}

// Row groups [begin, end) of a matrix with all tokens.
template <typename Weights>
void multiply_floats_of(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                        const Output &output) {
  for (int32_t i = begin; i < end; i += kRows) {
    const int count = end - i < kRows ? end - i : kRows;
    int token = 0;
    for (; token + kMostTokens <= input.num_tokens; token += kMostTokens)
      multiply_float_block<Weights, kMostTokens>(matrix, input, output, i, count, token);
    multiply_float_rest<Weights>(matrix, input, output, i, count, token);
  }
}

} // namespace
} // namespace pagewire
