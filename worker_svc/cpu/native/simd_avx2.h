// Vectors of 8 floats and products of 16-bit numbers with AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace {

using Vector = __m256;
constexpr int kLanes = 8;
constexpr int kParts = 2; // vectors of 16 values

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
inline Vector load_bfloat(const uint16_t *p) {
  const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
inline Vector load_bytes(const int8_t *p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}
inline void store_half(uint16_t *p, Vector v) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
// 16 values in the order of every variant: halves are added until one is left.
inline float sum_of(const Vector (&parts)[kParts]) {
  const Vector v = _mm256_add_ps(parts[0], parts[1]);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline bool is_zero(Vector v) {
  return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_setzero_ps(), _CMP_NEQ_UQ)) == 0;
}
inline bool any_equal(Vector a, Vector b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)) != 0;
}
// A flag of each lane.
using Flags = __m256;
inline Flags no_flags() { return _mm256_setzero_ps(); }
inline Flags or_unordered(Flags flags, Vector a, Vector b) {
  return _mm256_or_ps(flags, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
inline bool is_any(Flags flags) { return _mm256_movemask_ps(flags) != 0; }
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
// Rounds 32 floats times `factor` to 16 bits; returns their sum.
inline int32_t round_to_words(const float *input, float factor, int16_t *output) {
  const Vector f = splat(factor);
  __m256i total = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 16) {
    const __m256i a = _mm256_cvtps_epi32(mul(load(input + i), f));
    const __m256i b = _mm256_cvtps_epi32(mul(load(input + i + 8), f));
    total = _mm256_add_epi32(total, _mm256_add_epi32(a, b));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(output + i), words);
  }
  __m128i x = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0x4e));
  x = _mm_add_epi32(x, _mm_shuffle_epi32(x, 0xb1));
  return _mm_cvtsi128_si32(x);
}

// 16-bit or 32-bit numbers: two codes of a row in each lane, or a sum of products.
using Integers = __m256i;

inline Integers zeros() { return _mm256_setzero_si256(); }
inline Vector to_floats(Integers sums) { return _mm256_cvtepi32_ps(sums); }
inline Integers codes_at(const uint8_t *p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
}
template <int kBits> inline Integers shift_right(Integers words) {
  return _mm256_srli_epi16(words, kBits);
}
inline Integers low_nibbles(Integers words) {
  return _mm256_and_si256(words, _mm256_set1_epi16(0x0f));
}
// Signed bytes, the low and the high ones of words, as words.
inline Integers low_bytes(Integers words) {
  return _mm256_srai_epi16(_mm256_slli_epi16(words, 8), 8);
}
inline Integers high_bytes(Integers words) { return _mm256_srai_epi16(words, 8); }
// The same two activations in each lane.
inline Integers splat_pair(const int16_t *pair) {
  int32_t both;
  std::memcpy(&both, pair, 4);
  return _mm256_set1_epi32(both);
}
inline Integers words_at(const int16_t *p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i *>(p));
}
inline void store_words(int16_t *p, Integers words) {
  _mm256_store_si256(reinterpret_cast<__m256i *>(p), words);
}
// Codes times activations, both of a lane's two.
inline Integers products(Integers codes, Integers pair) { return _mm256_madd_epi16(codes, pair); }
inline Integers add_products(Integers sums, Integers codes, Integers pair) {
  sums = _mm256_add_epi32(sums, products(codes, pair));
  // GCC would make all products first and add them in another order, in memory.
  asm("" : "+x"(sums));
  return sums;
}

} // namespace
