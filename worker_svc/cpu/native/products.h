// Products of packed weights with quantized activations. Included by a variant after linear.h.
//
// Two groups of rows go together, so that an activation that is read serves both, with up to
// kTokens tokens, whose sums stay in registers. For many tokens the weights are unpacked once for
// all of them, a span of columns at a time that stays in the nearest cache. Every row of a product
// is added up in the same order, whatever is beside it and in either form.
#pragma once

#include "kernels.h"
#include "linear.h"

namespace pagewire {
namespace {

constexpr int kPairs = kGroup / 2;
constexpr int kRows = 2;        // groups of rows that go together
constexpr int kManyTokens = 12; // for which unpacking first pays
constexpr int kSpan = 18;       // groups of columns that are unpacked at once
// Bytes: memory answers late, and a page's end stops the processor's own prefetching.
constexpr int kAhead = 4096;

// Adds the products of a pair of weights of each row with that of each token.
template <int kCount>
inline void add_pair(const Integers (&codes)[kRows], const int16_t *pair, bool is_first,
                     Integers (&dots)[kRows][kCount]) {
#pragma GCC unroll 4
  for (int t = 0; t < kCount; ++t) {
    const Integers both = splat_pair(pair + t * kGroup);
#pragma GCC unroll 2
    for (int r = 0; r < kRows; ++r)
      dots[r][t] = is_first ? products(codes[r], both) : add_products(dots[r][t], codes[r], both);
  }
}

template <typename Codes, int kCount, int kPair = 0>
inline void add_vector(const Integers (&words)[kRows], const int16_t *pairs, bool is_first,
                       Integers (&dots)[kRows][kCount]) {
  Integers codes[kRows];
  for (int r = 0; r < kRows; ++r) codes[r] = Codes::template unpack<kPair>(words[r]);
  add_pair(codes, pairs + 2 * kPair, is_first && kPair == 0, dots);
  if constexpr (kPair + 1 < Codes::kPairs)
    add_vector<Codes, kCount, kPair + 1>(words, pairs, is_first, dots);
}

// Row groups as they are packed.
template <typename Rows> struct Packed {
  static constexpr int kScales = Rows::kScales;
  static constexpr bool kHasOffsets = Rows::kHasOffsets;
  static constexpr int kVectors = Rows::Codes::kBytes / kVectorBytes;

  const Rows rows[kRows];
  int ahead = kAhead; // of what is read, the bytes that are asked of memory

  // Without a second row group the first takes its place, and counts once.
  Packed(const Matrix &matrix, int row_group, int count)
      : rows{{matrix, row_group}, {matrix, row_group + count - 1}} {}

  // The next bytes of all, where groups of columns are gone through in order. The last row group
  // is read so much further on, and asked for as early.
  void prefetch(int group) const {
    constexpr int kBytes = kRows * Rows::kShare;
    const uint8_t *next = rows[kRows - 1].codes + int64_t{group} * kBytes + ahead;
#pragma GCC unroll 16
    for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(next + i);
  }
  Integers words(int group, int row, int vector) const {
    return codes_at(rows[row].codes + int64_t{group} * Rows::Codes::kBytes +
                    vector * kVectorBytes);
  }
  Vector scale(int group, int part, int row) const { return rows[row].scale(group, part); }
  Vector offset(int group, int row) const { return rows[row].offset(group); }
  // Products of the columns that share scale `part`.
  template <int kCount>
  void multiply(int group, int part, const int16_t *tokens, Integers (&dots)[kRows][kCount]) const {
#pragma GCC unroll 8
    for (int i = 0; i < kVectors / kScales; ++i) {
      const int vector = part * (kVectors / kScales) + i;
      Integers words_of[kRows];
      for (int r = 0; r < kRows; ++r) words_of[r] = words(group, r, vector);
      add_vector<typename Rows::Codes>(words_of, tokens + 2 * Rows::Codes::kPairs * vector, i == 0,
                                       dots);
    }
  }
};

// Scales and offsets of a span of columns, as floats.
template <typename Rows> struct SpanScales {
  static constexpr int kScales = Rows::kScales;
  static constexpr bool kHasOffsets = Rows::kHasOffsets;

  alignas(64) float scales[kSpan][kScales][kRows][kLanes];
  alignas(64) float offsets[kSpan][kRows][kLanes];

  // Those of one group, and of one row group, to a place of the span.
  void fill_scales(const Packed<Rows> &packed, int group, int row, int place) {
    for (int part = 0; part < kScales; ++part)
      store(scales[place][part][row], packed.scale(group, part, row));
    if constexpr (kHasOffsets) store(offsets[place][row], packed.offset(group, row));
  }
  Vector scale(int group, int part, int row) const { return load(scales[group][part][row]); }
  Vector offset(int group, int row) const { return load(offsets[group][row]); }
};

// A span of columns, unpacked.
template <typename Rows> struct Unpacked : SpanScales<Rows> {
  using Codes = typename Rows::Codes;
  using SpanScales<Rows>::kScales;

  alignas(64) int16_t codes[kSpan][kPairs][kRows][2 * kLanes];

  void fill(const Packed<Rows> &packed, int begin, int end) {
    for (int g = begin; g < end; ++g) {
      packed.prefetch(g);
      for (int r = 0; r < kRows; ++r) {
        this->fill_scales(packed, g, r, g - begin);
        for (int i = 0; i < Packed<Rows>::kVectors; ++i)
          fill_vector(packed.words(g, r, i), g - begin, r, i);
      }
    }
  }
  template <int kPair = 0> void fill_vector(Integers words, int group, int row, int vector) {
    store_words(codes[group][Codes::kPairs * vector + kPair][row],
                Codes::template unpack<kPair>(words));
    if constexpr (kPair + 1 < Codes::kPairs) fill_vector<kPair + 1>(words, group, row, vector);
  }

  void prefetch(int) const {}
  template <int kCount>
  void multiply(int group, int part, const int16_t *tokens, Integers (&dots)[kRows][kCount]) const {
#pragma GCC unroll 16
    for (int i = 0; i < kPairs / kScales; ++i) {
      const int pair = part * (kPairs / kScales) + i;
      Integers codes_of[kRows];
      for (int r = 0; r < kRows; ++r) codes_of[r] = words_at(codes[group][pair][r]);
      add_pair(codes_of, tokens + 2 * pair, i == 0, dots);
    }
  }
};

// Adds the products of `num_groups` groups of columns, the first of which is that at `place` of
// the activations.
template <typename Weights, int kCount>
inline void add_groups(const Weights &weights, const Activations &input, int64_t place,
                       int num_groups, Vector (&sums)[kRows][kCount]) {
  for (int g = 0; g < num_groups; ++g, place += kTokens) {
    weights.prefetch(g);
#pragma GCC unroll 2
    for (int part = 0; part < Weights::kScales; ++part) {
      Integers dots[kRows][kCount];
      weights.multiply(g, part, input.codes + place * kGroup, dots);
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        const Vector scale = weights.scale(g, part, r);
#pragma GCC unroll 4
        for (int t = 0; t < kCount; ++t)
          sums[r][t] =
              fma(mul(scale, splat(input.scales[place + t])), to_floats(dots[r][t]), sums[r][t]);
      }
    }
    if constexpr (Weights::kHasOffsets) {
#pragma GCC unroll 2
      for (int r = 0; r < kRows; ++r) {
        const Vector offset = weights.offset(g, r);
#pragma GCC unroll 4
        for (int t = 0; t < kCount; ++t)
          sums[r][t] = fma(offset, splat(input.sums[place + t]), sums[r][t]);
      }
    }
  }
}

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

template <int kCount> inline void clear(Vector (&sums)[kRows][kCount]) {
  for (int r = 0; r < kRows; ++r)
    for (int t = 0; t < kCount; ++t) sums[r][t] = splat(0.0f);
}

// Products of `count` row groups of a matrix, 1 or kRows.
template <typename Rows> struct Product {
  const Matrix &matrix;
  const Activations &input;
  const Output &output;
  int row_group, count;

  void run() const {
    const int token = input.num_tokens < kManyTokens ? 0 : multiply_unpacked();
    multiply_packed(token);
  }

private:
  // Whole blocks of tokens, with weights that are unpacked first. Returns the first that is left.
  int multiply_unpacked() const {
    const Packed<Rows> packed(matrix, row_group, count);
    Unpacked<Rows> unpacked;
    alignas(64) float partial[kMaxTokens][kRows][kLanes];
    const int num_groups = matrix.columns / kGroup, num_spans = (num_groups + kSpan - 1) / kSpan;
    const int num_tokens = input.num_tokens / kTokens * kTokens;
    for (int span = 0; span < num_spans; ++span) {
      const int begin = num_groups * span / num_spans, end = num_groups * (span + 1) / num_spans;
      unpacked.fill(packed, begin, end);
      for (int token = 0; token < num_tokens; token += kTokens) {
        Vector sums[kRows][kTokens];
        if (span == 0)
          clear(sums);
        else
          for (int r = 0; r < kRows; ++r)
            for (int t = 0; t < kTokens; ++t) sums[r][t] = load(partial[token + t][r]);
        const int64_t place = int64_t{token} * num_groups + int64_t{begin} * kTokens;
        add_groups(unpacked, input, place, end - begin, sums);
        if (end == num_groups)
          write(token, sums);
        else
          for (int r = 0; r < kRows; ++r)
            for (int t = 0; t < kTokens; ++t) store(partial[token + t][r], sums[r][t]);
      }
    }
    return num_tokens;
  }

  // Tokens from `token` on, a multiple of kTokens, with weights as they are packed.
  void multiply_packed(int token) const {
    Packed<Rows> packed(matrix, row_group, count);
    for (; token + kTokens <= input.num_tokens; token += kTokens)
      multiply_block<kTokens>(packed, token);
    switch (input.num_tokens - token) {
    case 3:
      return multiply_block<3>(packed, token);
    case 2:
      return multiply_block<2>(packed, token);
    case 1:
      return multiply_block<1>(packed, token);
    default:
      return;
    }
  }
  template <int kCount> void multiply_block(Packed<Rows> &packed, int token) const {
    Vector sums[kRows][kCount];
    clear(sums);
    packed.ahead = token == 0 ? kAhead : 0; // Later tokens find what the first have asked for.
    const int num_groups = matrix.columns / kGroup;
    add_groups(packed, input, int64_t{token} * num_groups, num_groups, sums);
    write(token, sums);
  }

  template <int kCount> void write(int token, const Vector (&sums)[kRows][kCount]) const {
    for (int r = 0; r < count; ++r)
      for (int t = 0; t < kCount; ++t)
        finish(matrix, output, (row_group + r) * kLanes, token + t, sums[r][t]);
  }
};

// Row groups [begin, end) of a matrix.
template <typename Rows>
void multiply(const Matrix &matrix, const Activations &input, int32_t begin, int32_t end,
              const Output &output) {
  for (int32_t i = begin; i < end; i += kRows)
    Product<Rows>{matrix, input, output, i, end - i < kRows ? end - i : kRows}.run();
}

} // namespace
} // namespace pagewire
