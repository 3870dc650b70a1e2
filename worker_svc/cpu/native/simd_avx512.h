// Vectors of 16 floats and products of 16-bit numbers with AVX-512 (F, BW, DQ, VL) and VNNI.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

using Vector = __m512;
constexpr int kLanes = 16;
constexpr int kParts = 1; // vectors of 16 values

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
inline Vector load_bfloat(const uint16_t *p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline Vector load_bytes(const int8_t *p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
}
inline void store_half(uint16_t *p, Vector v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p),
                      _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
// 16 values in the order of every variant: halves are added until one is left.
inline float sum_of(const Vector (&parts)[kParts]) {
  const __m256 v = _mm256_add_ps(_mm512_castps512_ps256(parts[0]),
                                 _mm512_extractf32x8_ps(parts[0], 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline bool is_zero(Vector v) {
  return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_NEQ_UQ) == 0;
}
inline bool any_equal(Vector a, Vector b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ) != 0; }
// A flag of each lane.
using Flags = __mmask16;
inline Flags no_flags() { return 0; }
inline Flags or_unordered(Flags flags, Vector a, Vector b) {
  return flags | _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
}
inline bool is_any(Flags flags) { return flags != 0; }
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
// Rounds 32 floats times `factor` to 16 bits; returns their sum.
inline int32_t round_to_words(const float *input, float factor, int16_t *output) {
  const Vector f = splat(factor);
  const __m512i a = _mm512_cvtps_epi32(mul(load(input), f));
  const __m512i b = _mm512_cvtps_epi32(mul(load(input + 16), f));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(output), _mm512_cvtsepi32_epi16(a));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(output + 16), _mm512_cvtsepi32_epi16(b));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(a, b));
}

// 16-bit or 32-bit numbers: two codes of a row in each lane, or a sum of products.
using Integers = __m512i;

inline Integers zeros() { return _mm512_setzero_si512(); }
inline Vector to_floats(Integers sums) { return _mm512_cvtepi32_ps(sums); }
inline Integers codes_at(const uint8_t *p) { return _mm512_loadu_si512(p); }
template <int kBits> inline Integers shift_right(Integers words) {
  return _mm512_srli_epi16(words, kBits);
}
inline Integers low_nibbles(Integers words) {
  return _mm512_and_si512(words, _mm512_set1_epi16(0x0f));
}
// Signed bytes, the low and the high ones of words, as words.
inline Integers low_bytes(Integers words) {
  return _mm512_srai_epi16(_mm512_slli_epi16(words, 8), 8);
}
inline Integers high_bytes(Integers words) { return _mm512_srai_epi16(words, 8); }
// The same two activations in each lane.
inline Integers splat_pair(const int16_t *pair) {
  int32_t both;
  std::memcpy(&both, pair, 4);
  return _mm512_set1_epi32(both);
}
inline Integers words_at(const int16_t *p) { return _mm512_loadu_si512(p); }
inline void store_words(int16_t *p, Integers words) { _mm512_storeu_si512(p, words); }
// Codes times activations, both of a lane's two.
inline Integers products(Integers codes, Integers pair) { return _mm512_madd_epi16(codes, pair); }
inline Integers add_products(Integers sums, Integers codes, Integers pair) {
  return _mm512_dpwssd_epi32(sums, codes, pair);
}

} // namespace
