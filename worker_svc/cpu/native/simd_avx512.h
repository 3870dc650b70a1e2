// Vectors of 16 floats and products of bytes with AVX-512 (F, BW, DQ, VL) and VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

using Vector = __m512;
constexpr int kLanes = 16;
constexpr bool kHasUnsignedWeights = true; // 8-bit weights are stored plus 128

inline Vector load(const float *p) { return _mm512_loadu_ps(p); }
inline void store(float *p, Vector v) { _mm512_storeu_ps(p, v); }
inline Vector splat(float x) { return _mm512_set1_ps(x); }
inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector sub(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector mul(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
inline Vector div(Vector a, Vector b) { return _mm512_div_ps(a, b); }
inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
inline Vector vmax(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector vmin(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector magnitude(Vector a) { return _mm512_abs_ps(a); }
inline Vector load_half(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
inline void store_half(uint16_t *p, Vector v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
inline float lanes_sum(Vector v) { return _mm512_reduce_add_ps(v); }
inline float lanes_max(Vector v) { return _mm512_reduce_max_ps(v); }
inline Vector round_nearest(Vector v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2 to the power of whole numbers in [-126, 127].
inline Vector power_of_2(Vector v) {
  __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(v), _mm512_set1_epi32(127));
  return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23));
}
// `value`, but 0 where x is below `limit` and NaN where x is NaN.
inline Vector zero_below(Vector x, Vector limit, Vector value) {
  value = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), value);
  return _mm512_mask_mov_ps(value, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x);
}
// Rounds 32 floats times `factor` to bytes; returns their sum.
inline int32_t round_to_bytes(const float *input, float factor, int8_t *output) {
  Vector f = splat(factor);
  __m512i a = _mm512_cvtps_epi32(mul(load(input), f));
  __m512i b = _mm512_cvtps_epi32(mul(load(input + 16), f));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(output), _mm512_cvtsepi32_epi8(a));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(output + 16), _mm512_cvtsepi32_epi8(b));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

// One group of a row in each lane, ready for products with tokens.
inline __m512i bytes_at(const uint8_t *p) { return _mm512_loadu_si512(p); }
inline __m512i splat_4(const int8_t *codes, int j) {
  int32_t four;
  std::memcpy(&four, codes + 4 * j, 4);
  return _mm512_set1_epi32(four);
}
inline __m512i dot_8(const __m512i *codes, const int8_t *token) {
  __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
  for (int j = 0; j < 8; j += 2) {
    even = _mm512_dpbusd_epi32(even, codes[j], splat_4(token, j));
    odd = _mm512_dpbusd_epi32(odd, codes[j + 1], splat_4(token, j + 1));
  }
  return _mm512_add_epi32(even, odd);
}

constexpr int kAhead = 1024; // bytes; a page's end stops the processor's own prefetching

// Asks for the codes that are read some groups later.
template <int kBytes> inline void prefetch(const uint8_t *p) {
  for (int i = 0; i < kBytes; i += 64)
    _mm_prefetch(reinterpret_cast<const char *>(p) + kAhead + i, _MM_HINT_T0);
}

struct Group4 {
  __m512i codes[8];
  explicit Group4(const uint8_t *p) {
    prefetch<256>(p);
    const __m512i low = _mm512_set1_epi8(0x0f);
    for (int i = 0; i < 4; ++i) {
      __m512i both = bytes_at(p + 64 * i);
      codes[i] = _mm512_and_si512(both, low);
      codes[i + 4] = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
  }
  Vector dot(const int8_t *token, int32_t) const {
    return _mm512_cvtepi32_ps(dot_8(codes, token));
  }
};

struct Group8 {
  __m512i codes[8];
  explicit Group8(const uint8_t *p) {
    prefetch<512>(p);
    for (int j = 0; j < 8; ++j) codes[j] = bytes_at(p + 64 * j);
  }
  // Codes are 128 too large, so the sum is by 128 times that of the token's.
  Vector dot(const int8_t *token, int32_t shift) const {
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(dot_8(codes, token), _mm512_set1_epi32(shift)));
  }
};

} // namespace
