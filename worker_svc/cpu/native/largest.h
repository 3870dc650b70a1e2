// The largest value of a row and its lowest place. Included by a variant after its simd_*.h.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

// The first of `count` values that equals one that is among them.
inline int32_t first_place(const float *values, int32_t count, float wanted) {
  const Vector all = splat(wanted);
  int32_t i = 0;
  while (i + kLanes <= count && !any_equal(load(values + i), all)) i += kLanes;
  while (values[i] != wanted) ++i;
  return i;
}

void take_largest(const float *values, int32_t count, int32_t first, Largest &best) {
  Vector largest = splat(-INFINITY);
  Flags has_nan = no_flags();
  int32_t i = 0;
  // A comparison of two vectors finds the NaN of both.
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const Vector a = load(values + i), b = load(values + i + kLanes);
    largest = vmax(largest, vmax(a, b));
    has_nan = or_unordered(has_nan, a, b);
  }
  float most = lanes_max(largest);
  bool is_nan = is_any(has_nan);
  for (; i < count; ++i) {
    is_nan |= values[i] != values[i];
    if (values[i] > most) most = values[i];
  }
  if (is_nan) best.value = NAN;
  // Of equal ones the lowest place counts; and nothing is larger than a NaN.
  if (!(most > best.value)) return;
  best = Largest{most, first + first_place(values, count, most)};
}

} // namespace
} // namespace pagewire
