// Packed weights and quantized activations. Included by a variant after its simd_*.h; products.h
// multiplies them.
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

// Codes of 8 weights of 4 bits, a byte each, to their places in 32 bits of a lane; see byte_of_4.
inline uint32_t part_of_4(uint64_t codes) {
  const uint64_t pairs = codes | codes >> 12; // weights k and k + 2 in byte k
  // Bytes 0, 4, 1 and 5: the even weights in the low word, the odd ones in the high word.
  return static_cast<uint32_t>((pairs & 0xff) | (pairs >> 24 & 0xff00) | (pairs << 8 & 0xff0000) |
                               (pairs >> 16 & 0xff000000));
}

// The codes of 32 weights, 4 bits each, as a block of a file has them: 16 and 16 share bytes.
inline void pack_nibbles(const uint8_t *nibbles, int lane, uint8_t *out) {
  uint64_t halves[2];
  std::memcpy(halves, nibbles, sizeof halves);
  for (int i = 0; i < 4; ++i) {
    const uint32_t part = part_of_4(halves[i % 2] >> (i / 2 * 4) & 0x0f0f0f0f0f0f0f0f);
    std::memcpy(out + i * kVectorBytes + 4 * lane, &part, sizeof part);
  }
}

// The codes of 32 weights, 4 bits each, of which each has a byte.
inline void pack_codes_4(const uint8_t *bytes, int lane, uint8_t *out) {
  uint64_t codes[4];
  std::memcpy(codes, bytes, sizeof codes);
  for (int i = 0; i < 4; ++i) {
    const uint32_t part = part_of_4(codes[i]);
    std::memcpy(out + i * kVectorBytes + 4 * lane, &part, sizeof part);
  }
}

// The codes of 32 weights, 8 bits each; see byte_of_8.
inline void pack_codes_8(const uint8_t *bytes, int lane, uint8_t *out) {
  for (int i = 0; i < 8; ++i) {
    uint32_t codes; // weights 4i to 4i + 3
    std::memcpy(&codes, bytes + 4 * i, sizeof codes);
    const uint32_t part = (codes & 0xff0000ff) | (codes >> 8 & 0xff00) | (codes << 8 & 0xff0000);
    std::memcpy(out + i * kVectorBytes + 4 * lane, &part, sizeof part);
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
  if (first + kLanes > rows) std::memset(out, 0, group_bytes(kind, columns));
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
        pack_codes_8(block + 2, lane, codes);
        continue;
      }
      pack_nibbles(block + (ggml_type == kGgmlQ4_1 ? 4 : 2), lane, codes);
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

// Where the first group of a token lies among activations; each other is kTokens further on.
inline int64_t place_of(int32_t token, int32_t num_groups) {
  return int64_t{token / kTokens} * num_groups * kTokens + token % kTokens;
}

void quantize(const float *input, int32_t size, int32_t token, const Activations &output) {
  for (int g = 0; g < size / kGroup; ++g) {
    const float *values = input + g * kGroup;
    Vector largest = magnitude(load(values));
    for (int i = kLanes; i < kGroup; i += kLanes)
      largest = vmax(largest, magnitude(load(values + i)));
    const float scale = lanes_max(largest) / kLargestCode;
    const float factor = scale > kLeastScale ? 1.0f / scale : 0.0f;
    const int64_t place = place_of(token, size / kGroup) + int64_t{g} * kTokens;
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

// How codes lie in a vector: in pairs of weights, of which unpack gives one as 16-bit numbers.
struct Codes4 {
  static constexpr int kBytes = kBytes4, kPairs = 4;
  template <int kPair> static Integers unpack(Integers words) {
    if constexpr (kPair == 0) return low_nibbles(words);
    if constexpr (kPair == 3) return shift_right<12>(words);
    return low_nibbles(shift_right<4 * kPair>(words));
  }
};

struct Codes8 {
  static constexpr int kBytes = kBytes8, kPairs = 2;
  template <int kPair> static Integers unpack(Integers words) {
    return kPair == 0 ? low_bytes(words) : high_bytes(words);
  }
};

// A group of rows, as products.h reads it.
template <typename TheCodes, bool kOffsets> struct BlockRows {
  using Codes = TheCodes;
  static constexpr int kScales = 1; // of a group of columns
  static constexpr bool kHasOffsets = kOffsets;
  // Bytes of a group of columns, with its scales and offsets, which lie elsewhere.
  static constexpr int kShare = Codes::kBytes + (kOffsets ? 4 : 2) * kLanes;

  const uint8_t *codes;
  const uint16_t *scales, *offsets;

  BlockRows(const Matrix &matrix, int32_t row_group) {
    const int64_t num_groups = matrix.columns / kGroup;
    codes = matrix.data + row_group * num_groups * kShare;
    scales = reinterpret_cast<const uint16_t *>(codes + num_groups * Codes::kBytes);
    offsets = scales + num_groups * kLanes;
  }
  Vector scale(int group, int) const { return load_half(scales + group * kLanes); }
  Vector offset(int group) const { return load_half(offsets + group * kLanes); }
};

} // namespace
} // namespace pagewire
