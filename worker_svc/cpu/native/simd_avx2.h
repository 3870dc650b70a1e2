// Vectors of 8 floats and products of bytes with AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

using Vector = __m256;
constexpr int kLanes = 8;
constexpr bool kHasUnsignedWeights = false; // 8-bit weights are stored as they are

inline Vector load(const float *p) { return _mm256_loadu_ps(p); }
inline void store(float *p, Vector v) { _mm256_storeu_ps(p, v); }
inline Vector splat(float x) { return _mm256_set1_ps(x); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector mul(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm256_div_ps(a, b); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
inline Vector vmax(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline Vector vmin(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Vector magnitude(Vector a) { return _mm256_andnot_ps(splat(-0.0f), a); }
inline Vector load_half(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
inline void store_half(uint16_t *p, Vector v) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline float lanes_sum(Vector v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float lanes_max(Vector v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
inline Vector round_nearest(Vector v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2 to the power of whole numbers in [-126, 127].
inline Vector power_of_2(Vector v) {
  __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(v), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
// `value`, but 0 where x is below `limit` and NaN where x is NaN.
inline Vector zero_below(Vector x, Vector limit, Vector value) {
  value = _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), value);
  return _mm256_blendv_ps(value, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
// Rounds 32 floats times `factor` to bytes; returns their sum.
inline int32_t round_to_bytes(const float *input, float factor, int8_t *output) {
  Vector f = splat(factor);
  __m256i a = _mm256_cvtps_epi32(mul(load(input), f));
  __m256i b = _mm256_cvtps_epi32(mul(load(input + 8), f));
  __m256i c = _mm256_cvtps_epi32(mul(load(input + 16), f));
  __m256i d = _mm256_cvtps_epi32(mul(load(input + 24), f));
  __m256i total = _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d));
  __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(output), bytes);
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
  return _mm_cvtsi128_si32(x);
}

// One group of a row in each lane, ready for products with tokens.
inline __m256i bytes_at(const uint8_t *p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
inline __m256i splat_4(const int8_t *codes, int j) {
  int32_t four;
  std::memcpy(&four, codes + 4 * j, 4);
  return _mm256_set1_epi32(four);
}

constexpr int kAhead = 1024; // bytes; a page's end stops the processor's own prefetching

// Asks for the codes that are read some groups later.
template <int kBytes> inline void prefetch(const uint8_t *p) {
  for (int i = 0; i < kBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char *>(p) + kAhead + i, _MM_HINT_T0);
}

struct Group4 {
  __m256i codes[8];
  explicit Group4(const uint8_t *p) {
    prefetch<128>(p);
    const __m256i low = _mm256_set1_epi8(0x0f);
    for (int i = 0; i < 4; ++i) {
      __m256i both = bytes_at(p + 32 * i);
      codes[i] = _mm256_and_si256(both, low);
      codes[i + 4] = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
  }
  // Sums of 8 products stay below 2^15, since codes are below 16.
  Vector dot(const int8_t *token, int32_t) const {
    __m256i sum = _mm256_maddubs_epi16(codes[0], splat_4(token, 0));
    for (int j = 1; j < 8; ++j)
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[j], splat_4(token, j)));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
  }
};

struct Group8 {
  const uint8_t *signs;
  __m256i magnitudes[8];
  explicit Group8(const uint8_t *p) : signs(p) {
    prefetch<256>(p);
    for (int j = 0; j < 8; ++j) magnitudes[j] = _mm256_abs_epi8(bytes_at(p + 32 * j));
  }
  Vector dot(const int8_t *token, int32_t) const {
    __m256i sum = _mm256_setzero_si256();
    for (int j = 0; j < 8; ++j) {
      __m256i moved = _mm256_sign_epi8(splat_4(token, j), bytes_at(signs + 32 * j));
      __m256i pairs = _mm256_maddubs_epi16(magnitudes[j], moved);
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return _mm256_cvtepi32_ps(sum);
  }
};

} // namespace
