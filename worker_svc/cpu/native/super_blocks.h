// Matrices of GGML's K formats times quantized activations. Included by a variant after linear.h.
//
// 256 weights of a row share a float16 scale over whole-number scales of 32 of them (kQ4K, kQ5K) or
// of 16 (kQ6K). A matrix is packed in groups of kLanes rows. For each group, in this order:
//   codes   [columns / 32][...] as in linear.h: with 4 bits (kQ4K), or with 8
//   scales  [columns / 32][2][kLanes] int8: of the weights and of their offset, or of both halves
//   halves  [columns / 256][...][kLanes] float16: of the scales, and of offsets but for kQ6K, whose
//           sign is turned
// A weight is code * (scale * half), plus offset * half. Both products are exact in float32, so the
// numbers are those of the file.
#pragma once

#include "linear.h"

namespace pagewire {
namespace {

enum SuperType : int32_t { kGgmlQ4_K = 12, kGgmlQ5_K = 13, kGgmlQ6_K = 14 };

constexpr int kSuper = 256; // weights of a block
constexpr int kSuperGroups = kSuper / kGroup;

// One block of a file, in whole numbers.
struct SuperBlock {
  int8_t codes[kSuper];
  int8_t scales[kSuperGroups][2];
  uint16_t halves[2];
};

constexpr int code_bytes_of(int32_t kind) { return kind == kQ4K ? kBytes4 : kBytes8; }
constexpr int num_halves_of(int32_t kind) { return kind == kQ6K ? 1 : 2; }
constexpr int super_block_bytes(int32_t kind) {
  return kind == kQ4K ? 144 : kind == kQ5K ? 176 : 210;
}

// Where the parts of a group of rows begin, and how long it is.
struct SuperLayout {
  int64_t scales, halves, bytes;
};

inline SuperLayout super_layout(int32_t kind, int32_t columns) {
  const int64_t num_groups = columns / kGroup;
  SuperLayout layout;
  layout.scales = num_groups * code_bytes_of(kind);
  layout.halves = layout.scales + num_groups * 2 * kLanes;
  layout.bytes = layout.halves + columns / kSuper * num_halves_of(kind) * 2 * kLanes;
  return layout;
}

int64_t super_group_bytes(int32_t kind, int32_t columns) {
  return super_layout(kind, columns).bytes;
}

void read_6(const uint8_t *block, SuperBlock &out) {
  for (int half = 0; half < 2; ++half) {
    const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
    for (int quarter = 0; quarter < 4; ++quarter)
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[i + 32 * (quarter % 2)] >> (quarter / 2 * 4) & 0x0f;
        const int code = nibble | (high[i] >> 2 * quarter & 3) << 4;
        out.codes[128 * half + 32 * quarter + i] = static_cast<int8_t>(code - 32);
      }
  }
  std::memcpy(out.scales, block + 192, sizeof out.scales);
  std::memcpy(out.halves, block + 208, 2);
}

// Scales and offsets have 6 bits each, in twelve bytes: four of each whole, and four whose upper
// two bits are those that the first leave free.
void read_scales(const uint8_t *bytes, SuperBlock &out) {
  for (int g = 0; g < kSuperGroups; ++g) {
    const bool is_whole = g < 4;
    const uint8_t both = is_whole ? 0 : bytes[g + 4];
    out.scales[g][0] = is_whole ? bytes[g] & 0x3f : (both & 0x0f) | bytes[g - 4] >> 6 << 4;
    out.scales[g][1] = is_whole ? bytes[g + 4] & 0x3f : both >> 4 | bytes[g] >> 6 << 4;
  }
}

void read_4_or_5(const uint8_t *block, bool has_fifth_bit, SuperBlock &out) {
  std::memcpy(out.halves, block, 4);
  out.halves[1] ^= 0x8000;
  read_scales(block + 4, out);
  const uint8_t *fifth = block + 16, *nibbles = has_fifth_bit ? fifth + 32 : fifth;
  for (int g = 0; g < kSuperGroups; ++g)
    for (int i = 0; i < kGroup; ++i) {
      int code = nibbles[kGroup * (g / 2) + i] >> (g % 2 * 4) & 0x0f;
      if (has_fifth_bit) code |= (fifth[i] >> g & 1) << 4;
      out.codes[kGroup * g + i] = static_cast<int8_t>(code);
    }
}

// Puts the block of columns [256 * place, ...) of one row where the kernels read it.
void place_super_block(const SuperBlock &block, int32_t kind, const SuperLayout &layout, int place,
                       int lane, uint8_t *codes) {
  auto *scales = reinterpret_cast<int8_t *>(codes + layout.scales);
  auto *halves = reinterpret_cast<uint16_t *>(codes + layout.halves);
  for (int i = 0; i < num_halves_of(kind); ++i)
    halves[(place * num_halves_of(kind) + i) * kLanes + lane] = block.halves[i];
  for (int g = 0; g < kSuperGroups; ++g) {
    const int64_t group = int64_t{place} * kSuperGroups + g;
    for (int i = 0; i < 2; ++i) scales[(2 * group + i) * kLanes + lane] = block.scales[g][i];
    uint8_t *out = codes + group * code_bytes_of(kind);
    for (int k = 0; k < kGroup; ++k) {
      const auto code = static_cast<uint8_t>(block.codes[kGroup * g + k]);
      if (kind == kQ4K)
        out[byte_of_4(k, lane)] |= static_cast<uint8_t>(code << shift_of_4(k));
      else
        out[byte_of_8(k, lane)] = code;
    }
  }
}

void pack_super(int32_t kind, const uint8_t *blocks, int32_t rows, int32_t columns, int32_t first,
                uint8_t *out) {
  const int num_blocks = columns / kSuper, bytes = super_block_bytes(kind);
  const SuperLayout layout = super_layout(kind, columns);
  std::memset(out, 0, layout.bytes);
  for (int lane = 0; lane < kLanes && first + lane < rows; ++lane)
    for (int i = 0; i < num_blocks; ++i) {
      const uint8_t *block = blocks + (int64_t{first + lane} * num_blocks + i) * bytes;
      SuperBlock read;
      if (kind == kQ6K)
        read_6(block, read);
      else
        read_4_or_5(block, kind == kQ5K, read);
      place_super_block(read, kind, layout, i, lane, out);
    }
}

// One row group.
struct SuperRows {
  const uint8_t *codes;
  const int8_t *scales;
  const uint16_t *halves;
};

inline SuperRows super_rows(const Matrix &matrix, int32_t row_group) {
  const SuperLayout layout = super_layout(matrix.kind, matrix.columns);
  const uint8_t *codes = matrix.data + row_group * layout.bytes;
  return SuperRows{codes, reinterpret_cast<const int8_t *>(codes + layout.scales),
                   reinterpret_cast<const uint16_t *>(codes + layout.halves)};
}

void unpack_super_row(const Matrix &matrix, int32_t row, float *out) {
  const int32_t kind = matrix.kind;
  const int num_halves = num_halves_of(kind), lane = row % kLanes;
  const SuperRows rows = super_rows(matrix, row / kLanes);
  for (int g = 0; g < matrix.columns / kGroup; ++g) {
    const uint8_t *codes = rows.codes + int64_t{g} * code_bytes_of(kind);
    const int8_t *scales = rows.scales + 2 * g * kLanes + lane;
    const uint16_t *halves = rows.halves + g / kSuperGroups * num_halves * kLanes + lane;
    const float half = half_to_float(halves[0]);
    const float first = half * static_cast<float>(scales[0]);
    const float second = kind == kQ6K ? half * static_cast<float>(scales[kLanes]) : first;
    const float offset =
        kind == kQ6K ? 0.0f : half_to_float(halves[kLanes]) * static_cast<float>(scales[kLanes]);
    for (int k = 0; k < kGroup; ++k) {
      const int code = kind == kQ4K ? codes[byte_of_4(k, lane)] >> shift_of_4(k) & 0x0f
                                    : static_cast<int8_t>(codes[byte_of_8(k, lane)]);
      out[g * kGroup + k] = (k < 16 ? first : second) * static_cast<float>(code) + offset;
    }
  }
}

// Adds the products of half a group of each row, with its own scale, with that of kCount tokens.
template <int kHalf, int kCount>
inline void add_half_group(const uint8_t *codes, Vector scale, const int16_t *tokens,
                           const float *token_scales, Vector (&sums)[kCount]) {
  Integers dots[kCount];
  for (int t = 0; t < kCount; ++t) dots[t] = zeros();
#pragma GCC unroll 4
  for (int i = 4 * kHalf; i < 4 * kHalf + 4; ++i) {
    const Integers words = codes_at(codes + i * kVectorBytes);
    add_pair(dots, low_bytes(words), tokens + 4 * i);
    add_pair(dots, high_bytes(words), tokens + 4 * i + 2);
  }
  for (int t = 0; t < kCount; ++t)
    sums[t] = fma(mul(scale, splat(token_scales[t])), to_floats(dots[t]), sums[t]);
}

// Adds the products of a group of each row with that of kCount tokens.
template <int32_t kKind, int kCount>
inline void add_super_group(const SuperRows &rows, int g, const Activations &input, int64_t place,
                            Vector (&sums)[kCount]) {
  constexpr int kHalves = num_halves_of(kKind);
  const uint8_t *codes = rows.codes + int64_t{g} * code_bytes_of(kKind);
  const int8_t *scales = rows.scales + 2 * g * kLanes;
  const uint16_t *halves = rows.halves + g / kSuperGroups * kHalves * kLanes;
  const int16_t *tokens = input.codes + place * kGroup;
  const float *token_scales = input.scales + place;
  const Vector half = load_half(halves);
  const Vector scale = mul(half, load_bytes(scales)), other = load_bytes(scales + kLanes);
  if constexpr (kKind == kQ6K) {
    add_half_group<0>(codes, scale, tokens, token_scales, sums);
    add_half_group<1>(codes, mul(half, other), tokens, token_scales, sums);
  } else {
    Integers dots[kCount];
    for (int t = 0; t < kCount; ++t) dots[t] = zeros();
    if constexpr (kKind == kQ4K)
      Group4::add_all(codes, tokens, dots);
    else
      Group8::add_all(codes, tokens, dots);
    const Vector offset = mul(load_half(halves + kLanes), other);
    for (int t = 0; t < kCount; ++t) {
      sums[t] = fma(mul(scale, splat(token_scales[t])), to_floats(dots[t]), sums[t]);
      sums[t] = fma(offset, splat(input.sums[place + t]), sums[t]);
    }
  }
}

// Tokens [token, token + kCount) times one row group; `token` is a multiple of kTokens.
template <int32_t kKind, int kCount>
void multiply_super_tokens(const Matrix &matrix, const SuperRows &rows, const Activations &input,
                           int first, int token, const Output &output) {
  constexpr int kShare = code_bytes_of(kKind) + 2 * kLanes + num_halves_of(kKind) * kLanes / 4;
  const int num_groups = matrix.columns / kGroup;
  Vector sums[kCount];
  for (int t = 0; t < kCount; ++t) sums[t] = splat(0.0f);
  for (int g = 0; g < num_groups; ++g) {
    prefetch<kShare>(rows.codes + int64_t{g} * kShare);
    const int64_t place = int64_t{token} * num_groups + g * kTokens;
    add_super_group<kKind>(rows, g, input, place, sums);
  }
  for (int t = 0; t < kCount; ++t) finish(matrix, output, first, token + t, sums[t]);
}

template <int32_t kKind>
void multiply_super(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                    const Output &output) {
  for (int32_t i = begin; i < end; ++i) {
    const SuperRows rows = super_rows(matrix, i);
    const int first = i * kLanes;
    int token = 0;
    for (; token + kTokens <= input.num_tokens; token += kTokens)
      multiply_super_tokens<kKind, kTokens>(matrix, rows, input, first, token, output);
    const int left = input.num_tokens - token;
    if (left == 3) multiply_super_tokens<kKind, 3>(matrix, rows, input, first, token, output);
    if (left == 2) multiply_super_tokens<kKind, 2>(matrix, rows, input, first, token, output);
    if (left == 1) multiply_super_tokens<kKind, 1>(matrix, rows, input, first, token, output);
  }
}

} // namespace
} // namespace pagewire
