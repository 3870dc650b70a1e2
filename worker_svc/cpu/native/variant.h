// The table of a variant, over the kernels that its file has included.
#pragma once

#include "elementwise.h"
#include "attention.h"
#include "kernels.h"
#include "largest.h"
#include "matrix.h"

namespace pagewire {
namespace {

constexpr Kernels make_kernels(const char *name) {
  return Kernels{name,
                 kLanes,
                 false,
                 matrix_group_bytes,
                 pack_matrix,
                 unpack_matrix_row,
                 multiply_matrix,
                 quantize,
                 rms_norm,
                 rotate,
                 write_kv,
                 swiglu,
                 scratch_floats,
                 attend,
                 take_largest};
}

} // namespace
} // namespace pagewire
