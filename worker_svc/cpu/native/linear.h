// Packed weights times quantized activations. Included by a variant after its simd_*.h.
//
// A matrix is packed in groups of kLanes rows. For each group of rows, in this order:
//   codes    [columns / 32][...]: vectors whose lane l has weights of row l, in 32 bits, and
//            pairs of weights in the same bits of both 16-bit words: weights 2p and 2p + 1 of a
//            group are pair p. With 4 bits a vector has pairs 4i to 4i + 3, in the nibbles of the
//            words, lowest first; with 8 bits pairs 2i and 2i + 1, in the bytes of the words.
//   scales   [columns / 32][kLanes] float16
//   offsets  [columns / 32][kLanes] float16, of kQ4 only: weight = code * scale + offset
//
// Products of a group are whole numbers, and exact: activations have 16 bits. Every row of a
// product is computed in the same order whatever tokens are beside it.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

constexpr int kBytes4 = 16 * kLanes; // codes of a group of kLanes rows
constexpr int kBytes8 = 32 * kLanes;
constexpr int kVectorBytes = 4 * kLanes;
constexpr float kLargestCode = 32767.0f;
constexpr float kLeastScale = 1e-37f; // below it a group counts as zero: its inverse is no number

enum GgmlType : int32_t { kGgmlQ4_0 = 2, kGgmlQ4_1 = 3, kGgmlQ8_0 = 8 };

int64_t group_bytes(int32_t kind, int32_t columns) {
  const int64_t codes = kind == kQ4 ? kBytes4 : kBytes8;
  const int64_t halves = (kind == kQ4 ? 2 : 1) * kLanes;
  return columns / kGroup * (codes + 2 * halves);
}

inline float half_to_float(uint16_t half) {
  uint16_t halves[kLanes] = {half};
  float floats[kLanes];
  store(floats, load_half(halves));
  return floats[0];
}

inline uint16_t float_to_half(float value) {
  uint16_t halves[kLanes];
  store_half(halves, splat(value));
  return halves[0];
}

// Where weight k of a group in lane l lies among its codes: a byte, with 4 bits half of one.
inline int byte_of_4(int k, int lane) {
  const int pair = k / 2, word = k % 2;
  return pair / 4 * kVectorBytes + 4 * lane + 2 * word + pair % 4 / 2;
}
inline int shift_of_4(int k) { return k / 2 % 2 * 4; }
inline int byte_of_8(int k, int lane) {
  const int pair = k / 2, word = k % 2;
  return pair / 2 * kVectorBytes + 4 * lane + 2 * word + pair % 2;
}

inline void pack_codes_4(const uint8_t *nibbles, int lane, uint8_t *out) {
  for (int k = 0; k < kGroup; ++k) {
    const int code = k < 16 ? nibbles[k] & 0x0f : nibbles[k - 16] >> 4;
    out[byte_of_4(k, lane)] |= static_cast<uint8_t>(code << shift_of_4(k));
  }
}

void pack(int32_t ggml_type, const uint8_t *blocks, int32_t rows, int32_t columns, int32_t first,
          uint8_t *out) {
  const int groups = columns / kGroup;
  const int kind = ggml_type == kGgmlQ8_0 ? kQ8 : kQ4;
  const int block_bytes = ggml_type == kGgmlQ8_0 ? 34 : ggml_type == kGgmlQ4_1 ? 20 : 18;
  const int code_bytes = kind == kQ4 ? kBytes4 : kBytes8;
  auto *scales = reinterpret_cast<uint16_t *>(out + int64_t{groups} * code_bytes);
  auto *offsets = scales + groups * kLanes;
  std::memset(out, 0, group_bytes(kind, columns));
  for (int lane = 0; lane < kLanes; ++lane) {
    if (first + lane >= rows) continue;
    const uint8_t *row = blocks + int64_t{first + lane} * groups * block_bytes;
    for (int g = 0; g < groups; ++g) {
      const uint8_t *block = row + g * block_bytes;
      uint8_t *codes = out + int64_t{g} * code_bytes;
      uint16_t scale;
      std::memcpy(&scale, block, 2);
      scales[g * kLanes + lane] = scale;
      if (kind == kQ8) {
        for (int k = 0; k < kGroup; ++k) codes[byte_of_8(k, lane)] = block[2 + k];
        continue;
      }
      pack_codes_4(block + (ggml_type == kGgmlQ4_1 ? 4 : 2), lane, codes);
      if (ggml_type == kGgmlQ4_1)
        std::memcpy(&offsets[g * kLanes + lane], block + 2, 2);
      else
        offsets[g * kLanes + lane] = float_to_half(-8.0f * half_to_float(scale));
    }
  }
}

void unpack_row(const Matrix &matrix, int32_t row, float *out) {
  const int groups = matrix.columns / kGroup, lane = row % kLanes;
  const uint8_t *data = matrix.data + row / kLanes * group_bytes(matrix.kind, matrix.columns);
  const int code_bytes = matrix.kind == kQ4 ? kBytes4 : kBytes8;
  auto *scales = reinterpret_cast<const uint16_t *>(data + int64_t{groups} * code_bytes);
  auto *offsets = scales + groups * kLanes;
  for (int g = 0; g < groups; ++g) {
    const uint8_t *codes = data + int64_t{g} * code_bytes;
    const float scale = half_to_float(scales[g * kLanes + lane]);
    const float offset = matrix.kind == kQ4 ? half_to_float(offsets[g * kLanes + lane]) : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
      const int code = matrix.kind == kQ8 ? static_cast<int8_t>(codes[byte_of_8(k, lane)])
                                          : codes[byte_of_4(k, lane)] >> shift_of_4(k) & 0x0f;
      out[g * kGroup + k] = scale * static_cast<float>(code) + offset;
    }
  }
}

void quantize(const float *input, int32_t size, int32_t token, const Activations &output) {
  for (int g = 0; g < size / kGroup; ++g) {
    const float *values = input + g * kGroup;
    Vector largest = magnitude(load(values));
    for (int i = kLanes; i < kGroup; i += kLanes)
      largest = vmax(largest, magnitude(load(values + i)));
    const float scale = lanes_max(largest) / kLargestCode;
    const float factor = scale > kLeastScale ? 1.0f / scale : 0.0f;
    const int64_t place =
        (int64_t{token / kTokens} * (size / kGroup) + g) * kTokens + token % kTokens;
    const int32_t sum = round_to_words(values, factor, output.codes + place * kGroup);
    // Conversion to a whole number would hide NaN and infinity; the scale carries them on.
    Vector rest = splat(0.0f);
    for (int i = 0; i < kGroup; i += kLanes)
      rest = add(rest, sub(load(values + i), load(values + i)));
    const float checked = is_zero(rest) ? scale : NAN;
    output.scales[place] = checked;
    output.sums[place] = checked * static_cast<float>(sum);
  }
}

// One row group of a matrix.
struct RowGroup {
  const uint8_t *codes;
  const uint16_t *scales;
  const uint16_t *offsets;
  int num_groups;
};

// Writes the sums of one token; `first` is the row of lane 0.
inline void finish(const Matrix &matrix, const Output &output, int first, int token, Vector sum) {
  float *out = output.data + token * output.stride + first;
  const int left = matrix.rows - first;
  if (left >= kLanes) {
    if (output.bias) sum = add(sum, load(output.bias + first));
    store(out, output.adds ? add(load(out), sum) : sum);
    return;
  }
  float lanes[kLanes];
  store(lanes, sum);
  for (int i = 0; i < left; ++i) {
    const float value = lanes[i] + (output.bias ? output.bias[first + i] : 0.0f);
    out[i] = output.adds ? out[i] + value : value;
  }
}

// Bytes: memory answers late, and a page's end stops the processor's own prefetching.
constexpr int kAhead = 4096;

// Asks for what is read later, where `p` goes through all bytes in steps of kBytes.
template <int kBytes> inline void prefetch(const uint8_t *p) {
#pragma GCC unroll 8
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + kAhead + i);
}

template <int kCount>
inline void add_pair(Integers (&sums)[kCount], Integers codes, const int16_t *pair) {
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t)
    sums[t] = add_products(sums[t], codes, splat_pair(pair + t * kGroup));
}

// Adds the products of a group of each row with that of kCount tokens.
struct Group4 {
  static constexpr int kBytes = kBytes4;
  template <int kCount>
  static void add_all(const uint8_t *codes, const int16_t *tokens, Integers (&sums)[kCount]) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Integers words = codes_at(codes + i * kVectorBytes);
      const int16_t *pairs = tokens + 8 * i;
      add_pair(sums, low_nibbles(words), pairs);
      add_pair(sums, low_nibbles(shift_right<4>(words)), pairs + 2);
      add_pair(sums, low_nibbles(shift_right<8>(words)), pairs + 4);
      add_pair(sums, shift_right<12>(words), pairs + 6);
    }
  }
};

struct Group8 {
  static constexpr int kBytes = kBytes8;
  template <int kCount>
  static void add_all(const uint8_t *codes, const int16_t *tokens, Integers (&sums)[kCount]) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Integers words = codes_at(codes + i * kVectorBytes);
      add_pair(sums, low_bytes(words), tokens + 4 * i);
      add_pair(sums, high_bytes(words), tokens + 4 * i + 2);
    }
  }
};

// Tokens [token, token + kCount) times one row group, whose lane 0 is row `first`. Their sums stay
// in registers. `token` is a multiple of kTokens.
template <typename Group, bool kHasOffsets, int kCount>
void multiply_tokens(const Matrix &matrix, const RowGroup &rows, const Activations &input,
                     int first, int token, const Output &output) {
  // Of a group of columns, its scales and offsets included, which lie elsewhere.
  constexpr int kShare = Group::kBytes + (kHasOffsets ? 4 : 2) * kLanes;
  Vector sums[kCount];
  for (int t = 0; t < kCount; ++t) sums[t] = splat(0.0f);
  for (int g = 0; g < rows.num_groups; ++g) {
    const uint8_t *codes = rows.codes + int64_t{g} * Group::kBytes;
    const int64_t place = int64_t{token} * rows.num_groups + g * kTokens;
    prefetch<kShare>(rows.codes + int64_t{g} * kShare);
    Integers dots[kCount];
    for (int t = 0; t < kCount; ++t) dots[t] = zeros();
    Group::add_all(codes, input.codes + place * kGroup, dots);
    const Vector scale = load_half(rows.scales + g * kLanes);
    for (int t = 0; t < kCount; ++t)
      sums[t] = fma(mul(scale, splat(input.scales[place + t])), to_floats(dots[t]), sums[t]);
    if (!kHasOffsets) continue;
    const Vector offset = load_half(rows.offsets + g * kLanes);
    for (int t = 0; t < kCount; ++t) sums[t] = fma(offset, splat(input.sums[place + t]), sums[t]);
  }
  for (int t = 0; t < kCount; ++t) finish(matrix, output, first, token + t, sums[t]);
}

template <typename Group, bool kHasOffsets>
void multiply_as(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                 const Output &output) {
  const int num_groups = matrix.columns / kGroup;
  const int64_t bytes = group_bytes(matrix.kind, matrix.columns);
  for (int32_t i = begin; i < end; ++i) {
    RowGroup rows;
    rows.codes = matrix.data + i * bytes;
    rows.scales =
        reinterpret_cast<const uint16_t *>(rows.codes + int64_t{num_groups} * Group::kBytes);
    rows.offsets = rows.scales + num_groups * kLanes;
    rows.num_groups = num_groups;
    const int first = i * kLanes;
    int token = 0;
    for (; token + kTokens <= input.num_tokens; token += kTokens)
      multiply_tokens<Group, kHasOffsets, kTokens>(matrix, rows, input, first, token, output);
    switch (input.num_tokens - token) {
    case 3:
      multiply_tokens<Group, kHasOffsets, 3>(matrix, rows, input, first, token, output);
      break;
    case 2:
      multiply_tokens<Group, kHasOffsets, 2>(matrix, rows, input, first, token, output);
      break;
    case 1:
      multiply_tokens<Group, kHasOffsets, 1>(matrix, rows, input, first, token, output);
      break;
    default:
      break;
    }
  }
}

void multiply(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
              const Output &output) {
  if (matrix.kind == kQ4)
    multiply_as<Group4, true>(matrix, input, begin, end, output);
  else
    multiply_as<Group8, false>(matrix, input, begin, end, output);
}

} // namespace
} // namespace pagewire
