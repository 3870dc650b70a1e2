// A packed matrix of any kind: which of the forms it is in. Included by a variant.
#pragma once

#include "float_linear.h"
#include "linear.h"
#include "products.h"
#include "super_blocks.h"

namespace pagewire {
namespace {

constexpr bool is_super(int32_t kind) { return kind >= kQ4K && kind <= kQ6K; }

int64_t matrix_group_bytes(int32_t kind, int32_t columns) {
  if (is_float(kind)) return float_group_bytes(columns);
  return is_super(kind) ? super_group_bytes(kind, columns) : group_bytes(kind, columns);
}

void pack_matrix(int32_t ggml_type, const uint8_t *blocks, int32_t rows, int32_t columns,
                 int32_t first, uint8_t *out) {
  switch (ggml_type) {
  case kGgmlF16:
  case kGgmlBF16:
    return pack_floats(blocks, rows, columns, first, out);
  case kGgmlQ4_K:
    return pack_super(kQ4K, blocks, rows, columns, first, out);
  case kGgmlQ5_K:
    return pack_super(kQ5K, blocks, rows, columns, first, out);
  case kGgmlQ6_K:
    return pack_super(kQ6K, blocks, rows, columns, first, out);
  default:
    return pack(ggml_type, blocks, rows, columns, first, out);
  }
}

void unpack_matrix_row(const Matrix &matrix, int32_t row, float *out) {
  if (is_float(matrix.kind))
    unpack_float_row(matrix, row, out);
  else if (is_super(matrix.kind))
    unpack_super_row(matrix, row, out);
  else
    unpack_row(matrix, row, out);
}

void multiply_matrix(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                     const Output &output) {
  switch (matrix.kind) {
  case kQ4:
    return multiply<BlockRows<Codes4, true>>(matrix, input, begin, end, output);
  case kQ8:
    return multiply<BlockRows<Codes8, false>>(matrix, input, begin, end, output);
  case kQ4K:
    return multiply<SuperRows<kQ4K, Codes4>>(matrix, input, begin, end, output);
  case kQ5K:
    return multiply<SuperRows<kQ5K, Codes8>>(matrix, input, begin, end, output);
  case kQ6K:
    return multiply<SuperRows<kQ6K, Codes8>>(matrix, input, begin, end, output);
  case kF16:
    return multiply_floats_of<Halves>(matrix, input, begin, end, output);
  default:
    return multiply_floats_of<Bfloats>(matrix, input, begin, end, output);
  }
}

} // namespace
} // namespace pagewire
