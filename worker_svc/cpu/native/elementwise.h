// Norm, rotation, activation and the exponential. Included by a variant after its simd_*.h.
// Sizes are multiples of 16, but those of heads in rotate, which may be any. Every variant adds up
// in the same order: machines that differ in it would give different tokens.
#pragma once

#include <cmath>

#include "kernels.h"

namespace pagewire {
namespace {

// exp(x), relative error below 2e-7; 0 below -87.
inline Vector exponential(Vector x) {
  const Vector lowest = splat(-87.0f);
  Vector bounded = vmin(vmax(x, lowest), splat(88.0f));
  Vector whole = round_nearest(mul(bounded, splat(1.44269504f)));
  Vector rest = fma(whole, splat(-0.693359375f), bounded);
  rest = fma(whole, splat(2.12194440e-4f), rest);
  Vector sum = splat(1.9875691500e-4f);
  sum = fma(sum, rest, splat(1.3981999507e-3f));
  sum = fma(sum, rest, splat(8.3334519073e-3f));
  sum = fma(sum, rest, splat(4.1665795894e-2f));
  sum = fma(sum, rest, splat(1.6666665459e-1f));
  sum = fma(sum, rest, splat(5.0000001201e-1f));
  sum = fma(mul(sum, rest), rest, add(rest, splat(1.0f)));
  return zero_below(x, lowest, mul(sum, power_of_2(whole)));
}

void rms_norm(const float *input, const float *weight, float eps, int32_t size, float *output) {
  Vector squares[kParts];
  for (int part = 0; part < kParts; ++part) squares[part] = splat(0.0f);
  for (int i = 0; i < size; i += kParts * kLanes)
    for (int part = 0; part < kParts; ++part) {
      const Vector value = load(input + i + part * kLanes);
      squares[part] = fma(value, value, squares[part]);
    }
  const Vector factor = splat(1.0f / std::sqrt(sum_of(squares) / static_cast<float>(size) + eps));
  for (int i = 0; i < size; i += kLanes)
    store(output + i, mul(load(weight + i), mul(load(input + i), factor)));
}

void rotate(float *heads, int32_t num_heads, int32_t head_dim, const float *cosines,
            const float *sines) {
  const int half = head_dim / 2, whole = half - half % kLanes;
  for (int h = 0; h < num_heads; ++h) {
    float *first = heads + int64_t{h} * head_dim, *second = first + half;
    for (int i = 0; i < whole; i += kLanes) {
      const Vector a = load(first + i), b = load(second + i);
      const Vector c = load(cosines + i), s = load(sines + i);
      store(first + i, sub(mul(a, c), mul(b, s)));
      store(second + i, add(mul(b, c), mul(a, s)));
    }
    for (int i = whole; i < half; ++i) {
      const float a = first[i], b = second[i];
      first[i] = a * cosines[i] - b * sines[i];
      second[i] = b * cosines[i] + a * sines[i];
    }
  }
}

void swiglu(float *gate, const float *up, int32_t size) {
  const Vector zero = splat(0.0f), one = splat(1.0f);
  for (int i = 0; i < size; i += kLanes) {
    const Vector x = load(gate + i);
    const Vector sigmoid = div(one, add(one, exponential(sub(zero, x))));
    store(gate + i, mul(mul(x, sigmoid), load(up + i)));
  }
}

} // namespace
} // namespace pagewire
