// Stands before the compiler's header of this name: the AVX-512 instructions that the kernels use,
// in plain C++ over the lanes of a vector, for processors with AVX2, FMA and F16C alone. One that
// is used and not here does not compile without the flags of AVX-512. tiles.h has AMX.
#pragma once

#include_next <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "tiles.h"

namespace emulated {

template <typename T> struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  T at[kCount];
};
template <typename T, typename Vector> Lanes<T> lanes(const Vector &vector) {
  static_assert(sizeof vector == 64);
  Lanes<T> out;
  std::memcpy(&out, &vector, 64);
  return out;
}
template <typename Vector, typename T> Vector vector(const Lanes<T> &lanes) {
  static_assert(sizeof(Vector) == 64);
  Vector out;
  std::memcpy(&out, &lanes, 64);
  return out;
}

// A function of each lane, of one vector or of two.
template <typename T, typename Vector, typename Function>
Vector each(const Vector &a, Function function) {
  Lanes<T> x = lanes<T>(a);
  for (T &lane : x.at) lane = function(lane);
  return vector<Vector>(x);
}
template <typename T, typename Vector, typename Function>
Vector each(const Vector &a, const Vector &b, Function function) {
  Lanes<T> x = lanes<T>(a);
  const Lanes<T> y = lanes<T>(b);
  for (int i = 0; i < Lanes<T>::kCount; ++i) x.at[i] = function(x.at[i], y.at[i]);
  return vector<Vector>(x);
}
template <typename Vector, typename T> Vector all(T value) {
  Lanes<T> out;
  for (T &lane : out.at) lane = value;
  return vector<Vector>(out);
}
template <typename Vector> Vector load(const void *from) {
  Vector out;
  std::memcpy(&out, from, sizeof out);
  return out;
}
// A half or a quarter of a vector, widened to 16 numbers, or such a number of each lane narrowed.
template <typename Vector, typename To, typename From, typename Part>
Vector widened(const Part &part) {
  From from[sizeof part / sizeof(From)];
  std::memcpy(from, &part, sizeof part);
  static_assert(sizeof part / sizeof(From) == Lanes<To>::kCount);
  Lanes<To> out;
  for (int i = 0; i < Lanes<To>::kCount; ++i) out.at[i] = from[i];
  return vector<Vector>(out);
}
template <typename To, typename From, typename Function>
__m256i halved(const __m512i &given, Function function) {
  static_assert(2 * sizeof(To) == sizeof(From));
  const Lanes<From> from = lanes<From>(given);
  To narrow[Lanes<From>::kCount];
  for (int i = 0; i < Lanes<From>::kCount; ++i) narrow[i] = function(from.at[i]);
  __m256i out;
  std::memcpy(&out, narrow, sizeof out);
  return out;
}

// Floats. The lanes of two halves are what the processor's own conversions take.
EMULATED __m256 half_of(const __m512 &v, int which) {
  __m256 out;
  std::memcpy(&out, reinterpret_cast<const char *>(&v) + 32 * which, sizeof out);
  return out;
}
EMULATED __m512 loadu_ps(const void *p) { return load<__m512>(p); }
EMULATED void storeu_ps(void *p, const __m512 &v) { std::memcpy(p, &v, sizeof v); }
EMULATED __m512 set1_ps(float x) { return all<__m512>(x); }
EMULATED __m512 setzero_ps() { return set1_ps(0.0f); }
EMULATED __m512 add_ps(const __m512 &a, const __m512 &b) {
  return each<float>(a, b, [](float x, float y) { return x + y; });
}
EMULATED __m512 sub_ps(const __m512 &a, const __m512 &b) {
  return each<float>(a, b, [](float x, float y) { return x - y; });
}
EMULATED __m512 mul_ps(const __m512 &a, const __m512 &b) {
  return each<float>(a, b, [](float x, float y) { return x * y; });
}
EMULATED __m512 div_ps(const __m512 &a, const __m512 &b) {
  return each<float>(a, b, [](float x, float y) { return x / y; });
}
EMULATED __m512 fmadd_ps(const __m512 &a, const __m512 &b, const __m512 &c) {
  Lanes<float> x = lanes<float>(a);
  const Lanes<float> y = lanes<float>(b), z = lanes<float>(c);
  for (int i = 0; i < 16; ++i) x.at[i] = std::fma(x.at[i], y.at[i], z.at[i]);
  return vector<__m512>(x);
}
// With a NaN, or two zeros, the second.
inline float max_of(float x, float y) { return x > y ? x : y; }
inline float min_of(float x, float y) { return x < y ? x : y; }
EMULATED __m512 max_ps(const __m512 &a, const __m512 &b) { return each<float>(a, b, max_of); }
EMULATED __m512 min_ps(const __m512 &a, const __m512 &b) { return each<float>(a, b, min_of); }
EMULATED __m512 abs_ps(const __m512 &a) {
  return each<uint32_t>(a, [](uint32_t bits) { return bits & 0x7fffffff; });
}
// Halves against each other until one lane is left, the upper one first, as GCC has it.
EMULATED float reduce_max_ps(const __m512 &a) {
  Lanes<float> x = lanes<float>(a);
  for (int count = 8; count > 0; count /= 2)
    for (int i = 0; i < count; ++i) x.at[i] = max_of(x.at[i + count], x.at[i]);
  return x.at[0];
}
EMULATED __mmask16 cmp_ps_mask(const __m512 &a, const __m512 &b, int predicate) {
  const Lanes<float> x = lanes<float>(a), y = lanes<float>(b);
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool is_unordered = std::isnan(x.at[i]) || std::isnan(y.at[i]);
    bool is_set;
    switch (predicate) {
    case _CMP_EQ_OQ:
      is_set = !is_unordered && x.at[i] == y.at[i];
      break;
    case _CMP_NEQ_UQ:
      is_set = is_unordered || x.at[i] != y.at[i];
      break;
    case _CMP_NLT_UQ:
      is_set = is_unordered || x.at[i] >= y.at[i];
      break;
    case _CMP_UNORD_Q:
      is_set = is_unordered;
      break;
    default:
      throw std::logic_error("a comparison that is not emulated");
    }
    mask |= static_cast<__mmask16>(is_set << i);
  }
  return mask;
}
EMULATED __m512 mask_mov_ps(const __m512 &otherwise, __mmask16 mask, const __m512 &a) {
  Lanes<float> out = lanes<float>(otherwise);
  const Lanes<float> x = lanes<float>(a);
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) out.at[i] = x.at[i];
  return vector<__m512>(out);
}
EMULATED __m512 maskz_mov_ps(__mmask16 mask, const __m512 &a) {
  return mask_mov_ps(setzero_ps(), mask, a);
}
EMULATED __m512 roundscale_ps(const __m512 &a, int how) {
  if (how != (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC))
    throw std::logic_error("a way of rounding that is not emulated");
  // Ties go to even, as the environment has it.
  return each<float>(a, [](float x) { return std::nearbyint(x); });
}
EMULATED __m512 cvtph_ps(const __m256i &halves) {
  __m128i parts[2];
  std::memcpy(parts, &halves, sizeof parts);
  const __m256 floats[2] = {_mm256_cvtph_ps(parts[0]), _mm256_cvtph_ps(parts[1])};
  return load<__m512>(floats);
}
EMULATED __m256i cvtps_ph(const __m512 &a, int how) {
  if (how != _MM_FROUND_TO_NEAREST_INT)
    throw std::logic_error("a way of rounding that is not emulated");
  const __m128i parts[2] = {_mm256_cvtps_ph(half_of(a, 0), _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(half_of(a, 1), _MM_FROUND_TO_NEAREST_INT)};
  return load<__m256i>(parts);
}

// Whole numbers. They wrap, unless it says something else.
template <typename To, typename From> inline To cast(const From &from) { return load<To>(&from); }
EMULATED __m512i set1_epi32(int32_t x) { return all<__m512i>(x); }
EMULATED __m512i set1_epi16(int16_t x) { return all<__m512i>(x); }
EMULATED __m512i set4_epi32(int32_t d, int32_t c, int32_t b, int32_t a) {
  const int32_t given[4] = {a, b, c, d};
  Lanes<int32_t> out;
  for (int i = 0; i < 16; ++i) out.at[i] = given[i % 4];
  return vector<__m512i>(out);
}
EMULATED __m512i setzero_si512() { return set1_epi32(0); }
EMULATED __m512i loadu_si512(const void *p) { return load<__m512i>(p); }
EMULATED void storeu_si512(void *p, const __m512i &v) { std::memcpy(p, &v, sizeof v); }
EMULATED __m512i and_si512(const __m512i &a, const __m512i &b) {
  return each<uint64_t>(a, b, [](uint64_t x, uint64_t y) { return x & y; });
}
EMULATED __m512i add_epi32(const __m512i &a, const __m512i &b) {
  return each<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x + y; });
}
EMULATED int32_t reduce_add_epi32(const __m512i &a) {
  uint32_t sum = 0;
  for (uint32_t lane : lanes<uint32_t>(a).at) sum += lane;
  return static_cast<int32_t>(sum);
}
EMULATED __m512i slli_epi32(const __m512i &a, unsigned count) {
  return each<uint32_t>(a, [=](uint32_t x) { return count < 32 ? x << count : 0; });
}
EMULATED __m512i slli_epi16(const __m512i &a, unsigned count) {
  return each<uint16_t>(a, [=](uint16_t x) { return count < 16 ? x << count : 0; });
}
EMULATED __m512i srli_epi16(const __m512i &a, unsigned count) {
  return each<uint16_t>(a, [=](uint16_t x) { return count < 16 ? x >> count : 0; });
}
EMULATED __m512i srai_epi16(const __m512i &a, unsigned count) {
  return each<int16_t>(a, [=](int16_t x) { return x >> (count < 16 ? count : 15); });
}
EMULATED __m512i srlv_epi16(const __m512i &a, const __m512i &counts) {
  return each<uint16_t>(a, counts, [](uint16_t x, uint16_t n) { return n < 16 ? x >> n : 0; });
}
// Of 16 bytes at a time; a place with its highest bit set gives 0.
EMULATED __m512i shuffle_epi8(const __m512i &a, const __m512i &places) {
  const Lanes<uint8_t> x = lanes<uint8_t>(a), place = lanes<uint8_t>(places);
  Lanes<uint8_t> out;
  for (int i = 0; i < 64; ++i)
    out.at[i] = place.at[i] & 0x80 ? 0 : x.at[i / 16 * 16 + place.at[i] % 16];
  return vector<__m512i>(out);
}
EMULATED __m512i add_pairs(const __m512i &sums, const __m512i &a, const __m512i &b) {
  Lanes<uint32_t> out = lanes<uint32_t>(sums);
  const Lanes<int16_t> x = lanes<int16_t>(a), y = lanes<int16_t>(b);
  for (int i = 0; i < 32; ++i)
    out.at[i / 2] += static_cast<uint32_t>(int32_t{x.at[i]} * int32_t{y.at[i]});
  return vector<__m512i>(out);
}
EMULATED __m512i madd_epi16(const __m512i &a, const __m512i &b) {
  return add_pairs(setzero_si512(), a, b);
}
EMULATED __m512 cvtepi32_ps(const __m512i &a) {
  const Lanes<int32_t> x = lanes<int32_t>(a);
  Lanes<float> out;
  for (int i = 0; i < 16; ++i) out.at[i] = static_cast<float>(x.at[i]);
  return vector<__m512>(out);
}
// Ties go to even; what no whole number can hold becomes the lowest.
EMULATED __m512i cvtps_epi32(const __m512 &a) {
  const Lanes<float> x = lanes<float>(a);
  Lanes<int32_t> out;
  for (int i = 0; i < 16; ++i) {
    const float whole = std::nearbyint(x.at[i]);
    const bool fits = whole >= -0x1p31f && whole < 0x1p31f;
    out.at[i] = fits ? static_cast<int32_t>(whole) : std::numeric_limits<int32_t>::min();
  }
  return vector<__m512i>(out);
}
EMULATED __m512i cvtepu16_epi32(const __m256i &a) {
  return widened<__m512i, uint32_t, uint16_t>(a);
}
EMULATED __m512i cvtepi8_epi32(const __m128i &a) { return widened<__m512i, int32_t, int8_t>(a); }
EMULATED __m256i cvtsepi32_epi16(const __m512i &a) {
  return halved<int16_t, int32_t>(a, [](int32_t x) {
    return static_cast<int16_t>(x > 32767 ? 32767 : x < -32768 ? -32768 : x);
  });
}
// The lower halves of 16 bits.
EMULATED __m256i cvtepi16_epi8(const __m512i &a) {
  return halved<uint8_t, uint16_t>(a, [](uint16_t x) { return static_cast<uint8_t>(x); });
}

} // namespace emulated

#define _mm512_abs_ps emulated::abs_ps
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_add_ps emulated::add_ps
#define _mm512_and_si512 emulated::and_si512
#define _mm512_castps512_ps256(a) emulated::half_of(a, 0)
#define _mm512_castsi512_ps emulated::cast<__m512>
#define _mm512_cmp_ps_mask emulated::cmp_ps_mask
#define _mm512_cvtepi16_epi8 emulated::cvtepi16_epi8
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepi8_epi32 emulated::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_cvtps_ph emulated::cvtps_ph
#define _mm512_cvtsepi32_epi16 emulated::cvtsepi32_epi16
#define _mm512_div_ps emulated::div_ps
#define _mm512_dpwssd_epi32 emulated::add_pairs
#define _mm512_extractf32x8_ps emulated::half_of
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_loadu_ps emulated::loadu_ps
#define _mm512_loadu_si512 emulated::loadu_si512
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_mask_mov_ps emulated::mask_mov_ps
#define _mm512_maskz_mov_ps emulated::maskz_mov_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_reduce_add_epi32 emulated::reduce_add_epi32
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#define _mm512_roundscale_ps emulated::roundscale_ps
#define _mm512_set1_epi16 emulated::set1_epi16
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_set4_epi32 emulated::set4_epi32
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_shuffle_epi8 emulated::shuffle_epi8
#define _mm512_slli_epi16 emulated::slli_epi16
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_srai_epi16 emulated::srai_epi16
#define _mm512_srli_epi16 emulated::srli_epi16
#define _mm512_srlv_epi16 emulated::srlv_epi16
#define _mm512_storeu_ps emulated::storeu_ps
#define _mm512_storeu_si512 emulated::storeu_si512
#define _mm512_sub_ps emulated::sub_ps
