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

// A type, as a value.
template <typename TheRows> struct Form {
  using Rows = TheRows;
};

// Calls a function with the form of a matrix's rows, which are codes.
template <typename Function> void with_form(const Matrix &matrix, Function function) {
  switch (matrix.kind) {
  case kQ4:
    return function(Form<BlockRows<Codes4, true>>());
  case kQ8:
    return function(Form<BlockRows<Codes8, false>>());
  case kQ4K:
    return function(Form<SuperRows<kQ4K, Codes4>>());
  case kQ5K:
    return function(Form<SuperRows<kQ5K, Codes8>>());
  default:
    return function(Form<SuperRows<kQ6K, Codes8>>());
  }
}

void multiply_matrix(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                     const Output &output) {
  if (matrix.kind == kF16) return multiply_floats_of<Halves>(matrix, input, begin, end, output);
  if (matrix.kind == kBF16) return multiply_floats_of<Bfloats>(matrix, input, begin, end, output);
  with_form(matrix, [&](auto form) {
    multiply<typename decltype(form)::Rows>(matrix, input, begin, end, output);
  });
}

} // namespace
} // namespace pagewire
