// The table of a variant, over the kernels that its file has included.
#pragma once

#include "elementwise.h"
#include "attention.h"
#include "kernels.h"
#include "linear.h"

namespace pagewire {
namespace {

constexpr Kernels make_kernels(const char *name) {
  return Kernels{name,     kLanes,    group_bytes, pack,     unpack_row, multiply,
                 quantize, rms_norm,  rotate,      write_kv, swiglu,     scratch_floats,
                 attend};
}

} // namespace
} // namespace pagewire
