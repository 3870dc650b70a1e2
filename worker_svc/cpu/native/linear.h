// Packed weights times quantized activations. Included by a variant after its simd_*.h.
//
// A matrix is packed in groups of kLanes rows. For each group of rows, in this order:
//   codes    [columns / 32][...]: 8 vectors of bytes, lane l of vector j has weights 4j to 4j + 3
//            of row l; with 4 bits, vector i also holds vector i + 4 in its high halves
//   scales   [columns / 32][kLanes] float16
//   offsets  [columns / 32][kLanes] float16, of kQ4 only: weight = code * scale + offset
//
// Every row of a product is computed in the same order whatever tokens are beside it.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

constexpr int kBytes4 = 16 * kLanes; // codes of a group of kLanes rows
constexpr int kBytes8 = 32 * kLanes;
constexpr int kHeldTokens = 4; // their sums stay in registers

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

// Weight k of a group in lane l is in this byte of its vectors of codes.
inline int code_place(int k, int lane) { return k / 4 * 4 * kLanes + 4 * lane + k % 4; }

inline void pack_codes_4(const uint8_t *nibbles, int lane, uint8_t *out) {
  for (int k = 0; k < kGroup; ++k) {
    const uint8_t code = k < 16 ? nibbles[k] & 0x0f : nibbles[k - 16] >> 4;
    // Places of the second half are those of the first, in the high bits.
    if (k < 16)
      out[code_place(k, lane)] |= code;
    else
      out[code_place(k - 16, lane)] |= static_cast<uint8_t>(code << 4);
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
        for (int k = 0; k < kGroup; ++k)
          codes[code_place(k, lane)] = block[2 + k] ^ (kHasUnsignedWeights ? 0x80 : 0);
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
      int code;
      if (matrix.kind == kQ8)
        code = static_cast<int8_t>(codes[code_place(k, lane)] ^ (kHasUnsignedWeights ? 0x80 : 0));
      else
        code = k < 16 ? codes[code_place(k, lane)] & 0x0f : codes[code_place(k - 16, lane)] >> 4;
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
    const float scale = lanes_max(largest) / 127.0f;
    const float factor = scale > 0.0f ? 1.0f / scale : 0.0f;
    const int64_t place = int64_t{g} * output.num_tokens + token;
    const int32_t sum = round_to_bytes(values, factor, output.codes + place * kGroup);
    // Conversion to a whole number would hide NaN and infinity; the scale carries them on.
    Vector rest = splat(0.0f);
    for (int i = 0; i < kGroup; i += kLanes)
      rest = add(rest, sub(load(values + i), load(values + i)));
    const float checked = scale + lanes_sum(rest);
    output.scales[place] = checked;
    output.sums[place] = checked * static_cast<float>(sum);
    output.shifts[place] = 128 * sum;
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

// Offsets times the sums of the tokens' groups: the part of a product that has no codes.
inline Vector offset_part(const RowGroup &rows, const Activations &input, int token) {
  Vector sum = splat(0.0f);
  for (int g = 0; g < rows.num_groups; ++g)
    sum = fma(load_half(rows.offsets + g * kLanes),
              splat(input.sums[int64_t{g} * input.num_tokens + token]), sum);
  return sum;
}

template <typename Group, int kCodeBytes, bool kHasOffsets, int kTokens>
void multiply_few(const Matrix &matrix, const RowGroup &rows, const Activations &input, int first,
                  int token, const Output &output) {
  Vector sums[kTokens], parts[kTokens];
  for (int t = 0; t < kTokens; ++t) sums[t] = parts[t] = splat(0.0f);
  for (int g = 0; g < rows.num_groups; ++g) {
    const Group group(rows.codes + int64_t{g} * kCodeBytes);
    const Vector scale = load_half(rows.scales + g * kLanes);
    const Vector offset = kHasOffsets ? load_half(rows.offsets + g * kLanes) : splat(0.0f);
    const int64_t place = int64_t{g} * input.num_tokens + token;
    for (int t = 0; t < kTokens; ++t) {
      const Vector dot = group.dot(input.codes + (place + t) * kGroup, input.shifts[place + t]);
      sums[t] = fma(mul(scale, splat(input.scales[place + t])), dot, sums[t]);
      if (kHasOffsets) parts[t] = fma(offset, splat(input.sums[place + t]), parts[t]);
    }
  }
  for (int t = 0; t < kTokens; ++t)
    finish(matrix, output, first, token + t, kHasOffsets ? add(sums[t], parts[t]) : sums[t]);
}

// Codes are unpacked once for all tokens, whose sums lie in the first-level cache.
template <typename Group, int kCodeBytes, bool kHasOffsets>
void multiply_many(const Matrix &matrix, const RowGroup &rows, const Activations &input, int first,
                   const Output &output) {
  alignas(64) float sums[kMaxTokens * kLanes];
  const int num_tokens = input.num_tokens;
  std::memset(sums, 0, sizeof(float) * num_tokens * kLanes);
  for (int g = 0; g < rows.num_groups; ++g) {
    const Group group(rows.codes + int64_t{g} * kCodeBytes);
    const Vector scale = load_half(rows.scales + g * kLanes);
    const int64_t place = int64_t{g} * num_tokens;
    for (int t = 0; t < num_tokens; ++t) {
      const Vector dot = group.dot(input.codes + (place + t) * kGroup, input.shifts[place + t]);
      float *sum = sums + t * kLanes;
      store(sum, fma(mul(scale, splat(input.scales[place + t])), dot, load(sum)));
    }
  }
  for (int t = 0; t < num_tokens; ++t) {
    Vector sum = load(sums + t * kLanes);
    if (kHasOffsets) sum = add(sum, offset_part(rows, input, t));
    finish(matrix, output, first, t, sum);
  }
}

template <typename Group, int kCodeBytes, bool kHasOffsets>
void multiply_as(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
                 const Output &output) {
  const int num_groups = matrix.columns / kGroup;
  const int64_t bytes = group_bytes(matrix.kind, matrix.columns);
  for (int32_t i = begin; i < end; ++i) {
    RowGroup rows;
    rows.codes = matrix.data + i * bytes;
    rows.scales = reinterpret_cast<const uint16_t *>(rows.codes + int64_t{num_groups} * kCodeBytes);
    rows.offsets = rows.scales + num_groups * kLanes;
    rows.num_groups = num_groups;
    const int first = i * kLanes;
    switch (input.num_tokens) {
    case 1:
      multiply_few<Group, kCodeBytes, kHasOffsets, 1>(matrix, rows, input, first, 0, output);
      break;
    case 2:
      multiply_few<Group, kCodeBytes, kHasOffsets, 2>(matrix, rows, input, first, 0, output);
      break;
    case 3:
      multiply_few<Group, kCodeBytes, kHasOffsets, 3>(matrix, rows, input, first, 0, output);
      break;
    case kHeldTokens:
      multiply_few<Group, kCodeBytes, kHasOffsets, 4>(matrix, rows, input, first, 0, output);
      break;
    default:
      multiply_many<Group, kCodeBytes, kHasOffsets>(matrix, rows, input, first, output);
    }
  }
}

void multiply(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
              const Output &output) {
  if (matrix.kind == kQ4)
    multiply_as<Group4, kBytes4, true>(matrix, input, begin, end, output);
  else
    multiply_as<Group8, kBytes8, false>(matrix, input, begin, end, output);
}

} // namespace
} // namespace pagewire
