// Matrices of GGML's K formats. Included by a variant after linear.h; products.h multiplies them.
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
    const auto *read = reinterpret_cast<const uint8_t *>(block.codes + kGroup * g);
    if (kind == kQ4K)
      pack_codes_4(read, lane, out);
    else
      pack_codes_8(read, lane, out);
  }
}

void pack_super(int32_t kind, const uint8_t *blocks, int32_t rows, int32_t columns, int32_t first,
                uint8_t *out) {
  const int num_blocks = columns / kSuper, bytes = super_block_bytes(kind);
  const SuperLayout layout = super_layout(kind, columns);
  if (first + kLanes > rows) std::memset(out, 0, layout.bytes);
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

void unpack_super_row(const Matrix &matrix, int32_t row, float *out) {
  const int32_t kind = matrix.kind;
  const int num_halves = num_halves_of(kind), lane = row % kLanes;
  const SuperLayout layout = super_layout(kind, matrix.columns);
  const uint8_t *all_codes = matrix.data + row / kLanes * layout.bytes;
  auto *all_scales = reinterpret_cast<const int8_t *>(all_codes + layout.scales);
  auto *all_halves = reinterpret_cast<const uint16_t *>(all_codes + layout.halves);
  for (int g = 0; g < matrix.columns / kGroup; ++g) {
    const uint8_t *codes = all_codes + int64_t{g} * code_bytes_of(kind);
    const int8_t *scales = all_scales + 2 * g * kLanes + lane;
    const uint16_t *halves = all_halves + g / kSuperGroups * num_halves * kLanes + lane;
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

// A group of rows, as products.h reads it.
template <int32_t kKind, typename TheCodes> struct SuperRows {
  using Codes = TheCodes;
  static constexpr int kScales = kKind == kQ6K ? 2 : 1; // of a group of columns
  static constexpr bool kHasOffsets = kKind != kQ6K;
  static constexpr int kHalves = num_halves_of(kKind);
  // Bytes of a group of columns, with all that lies elsewhere.
  static constexpr int kShare = Codes::kBytes + 2 * kLanes + kHalves * kLanes / 4;

  const uint8_t *codes;
  const int8_t *scales;
  const uint16_t *halves;

  SuperRows(const Matrix &matrix, int32_t row_group) {
    const SuperLayout layout = super_layout(kKind, matrix.columns);
    codes = matrix.data + row_group * layout.bytes;
    scales = reinterpret_cast<const int8_t *>(codes + layout.scales);
    halves = reinterpret_cast<const uint16_t *>(codes + layout.halves);
  }
  Vector half(int group, int which) const {
    return load_half(halves + (group / kSuperGroups * kHalves + which) * kLanes);
  }
  Vector scale(int group, int part) const {
    return mul(half(group, 0), load_bytes(scales + (2 * group + part) * kLanes));
  }
  Vector offset(int group) const {
    return mul(half(group, kHalves - 1), load_bytes(scales + (2 * group + 1) * kLanes));
  }
};

} // namespace
} // namespace pagewire
