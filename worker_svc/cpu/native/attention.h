// Attention of queries over the paged cache. Included by a variant after elementwise.h.
//
// A query reduces its keys in tiles of kKeyTile positions from position 0 on, joined by an online
// softmax: in the same order in whatever chunk, batch or thread it is computed. Sizes of heads and
// blocks are multiples of kLanes.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

constexpr float kLowest = -1e30f; // starts the running maximum

// out[r][c] (+)= sum over k in order of left[r][k] * right[k][c], of kRows rows and kVectors
// vectors of columns.
template <int kRows, int kVectors>
inline void multiply_block(const float *left, int left_stride, const float *right,
                           int right_stride, int depth, float *out, int out_stride, bool adds) {
  Vector sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v)
      sums[r][v] = adds ? load(out + r * out_stride + v * kLanes) : splat(0.0f);
  for (int k = 0; k < depth; ++k) {
    const float *values = right + int64_t{k} * right_stride;
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = splat(left[r * left_stride + k]);
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = fma(factor, load(values + v * kLanes), sums[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors; ++v) store(out + r * out_stride + v * kLanes, sums[r][v]);
}

template <int kRows>
inline void multiply_rows(const float *left, int left_stride, const float *right, int right_stride,
                          int depth, float *out, int out_stride, int columns, bool adds) {
  int c = 0;
  for (; c + 2 * kLanes <= columns; c += 2 * kLanes)
    multiply_block<kRows, 2>(left, left_stride, right + c, right_stride, depth, out + c,
                             out_stride, adds);
  if (c < columns)
    multiply_block<kRows, 1>(left, left_stride, right + c, right_stride, depth, out + c,
                             out_stride, adds);
}

void multiply_floats(const float *left, int left_stride, const float *right, int right_stride,
                     int depth, float *out, int out_stride, int rows, int columns, bool adds) {
  int r = 0;
  for (; r + 4 <= rows; r += 4)
    multiply_rows<4>(left + r * left_stride, left_stride, right, right_stride, depth,
                     out + r * out_stride, out_stride, columns, adds);
  left += r * left_stride;
  out += r * out_stride;
  switch (rows - r) {
  case 3:
    multiply_rows<3>(left, left_stride, right, right_stride, depth, out, out_stride, columns, adds);
    break;
  case 2:
    multiply_rows<2>(left, left_stride, right, right_stride, depth, out, out_stride, columns, adds);
    break;
  case 1:
    multiply_rows<1>(left, left_stride, right, right_stride, depth, out, out_stride, columns, adds);
    break;
  default:
    break;
  }
}

void write_kv(const Pages &pages, int64_t slot, const float *key, const float *value) {
  const int size = pages.block_size, dim = pages.head_dim;
  const int64_t block = slot / size, offset = slot % size;
  for (int h = 0; h < pages.num_kv_heads; ++h) {
    const int64_t head = (block * pages.num_kv_heads + h) * size * dim;
    uint16_t *keys = pages.keys + head + offset;
    uint16_t *values = pages.values + head + offset * dim;
    for (int d = 0; d < dim; d += kLanes) {
      uint16_t halves[kLanes];
      store_half(halves, load(key + h * dim + d));
      for (int i = 0; i < kLanes; ++i) keys[int64_t{d + i} * size] = halves[i];
      store_half(values + d, load(value + h * dim + d));
    }
  }
}

// What attend works in, cut from one piece of scratch memory.
struct Workspace {
  float *keys;    // [head_dim][kKeyTile]
  float *values;  // [kKeyTile][head_dim]
  float *queries; // [num_queries][head_dim], scaled
  float *sums;    // the same: weighted values so far
  float *scores;  // [num_queries][kKeyTile]
  float *maxima;  // [num_queries]
  float *weights; // [num_queries]

  Workspace(float *memory, int num_queries, int dim) {
    keys = memory;
    values = keys + int64_t{kKeyTile} * dim;
    queries = values + int64_t{kKeyTile} * dim;
    sums = queries + int64_t{num_queries} * dim;
    scores = sums + int64_t{num_queries} * dim;
    maxima = scores + int64_t{num_queries} * kKeyTile;
    weights = maxima + num_queries;
  }
};

int64_t scratch_floats(int32_t num_queries, int32_t head_dim) {
  return 2LL * kKeyTile * head_dim + num_queries * (2LL * head_dim + kKeyTile + 2);
}

// Copies `count` positions from `start` on; the rest of the last block comes along, and is not
// used. Returns whether all values that count are finite.
bool gather(const Pages &pages, const Queries &queries, int start, int count,
            const Workspace &work) {
  const int size = pages.block_size, dim = pages.head_dim;
  Vector rest = splat(0.0f);
  for (int done = 0; done < count;) {
    const int position = start + done, offset = position % size;
    const int64_t block = queries.block_table[position / size];
    const int64_t head = (block * pages.num_kv_heads + queries.kv_head) * size * dim;
    int width = size - offset;
    if (width > kKeyTile - done) width = kKeyTile - done;
    for (int d = 0; d < dim; ++d)
      for (int i = 0; i < width; i += kLanes)
        store(work.keys + d * kKeyTile + done + i,
              load_half(pages.keys + head + int64_t{d} * size + offset + i));
    for (int i = 0; i < width && done + i < count; ++i) {
      const uint16_t *from = pages.values + head + int64_t{offset + i} * dim;
      float *to = work.values + (done + i) * dim;
      for (int d = 0; d < dim; d += kLanes) {
        const Vector value = load_half(from + d);
        rest = add(rest, sub(value, value));
        store(to + d, value);
      }
    }
    done += width;
  }
  return is_zero(rest);
}

// The keys of a tile, from `start` on, that a query sees: [first, end) within the tile.
struct Seen {
  int first, end;
  Seen(const Queries &queries, int query, int start) {
    const int position = queries.first_position + query / queries.group_size;
    first = queries.window ? position + 1 - queries.window - start : 0;
    if (first < 0) first = 0;
    end = position + 1 - start;
    if (end > kKeyTile) end = kKeyTile;
  }
  bool is_empty() const { return first >= end; }
};

// Scores of a query to weights of its keys; what it has summed so far shrinks accordingly.
void weigh(const Workspace &work, int query, int dim, const Seen &seen) {
  float *scores = work.scores + query * kKeyTile;
  if (seen.is_empty()) {
    for (int i = 0; i < kKeyTile; i += kLanes) store(scores + i, splat(0.0f));
    return;
  }
  for (int i = 0; i < seen.first; ++i) scores[i] = -INFINITY;
  for (int i = seen.end; i < kKeyTile; ++i) scores[i] = -INFINITY;
  Vector largest = load(scores);
  for (int i = kLanes; i < kKeyTile; i += kLanes) largest = vmax(largest, load(scores + i));
  const float before = work.maxima[query], here = lanes_max(largest);
  const float maximum = here > before ? here : before;
  Vector totals[kParts];
  for (int part = 0; part < kParts; ++part) totals[part] = splat(0.0f);
  for (int i = 0; i < kKeyTile; i += kParts * kLanes)
    for (int part = 0; part < kParts; ++part) {
      float *place = scores + i + part * kLanes;
      const Vector weight = exponential(sub(load(place), splat(maximum)));
      store(place, weight);
      totals[part] = add(totals[part], weight);
    }
  float shrinks[kLanes];
  store(shrinks, exponential(splat(before - maximum)));
  work.maxima[query] = maximum;
  work.weights[query] = work.weights[query] * shrinks[0] + sum_of(totals);
  if (shrinks[0] == 1.0f) return;
  float *sums = work.sums + int64_t{query} * dim;
  for (int d = 0; d < dim; d += kLanes) store(sums + d, mul(load(sums + d), splat(shrinks[0])));
}

// Adds the weighted values of a tile to the sums of queries [begin, num_queries).
void add_values(const Queries &queries, const Workspace &work, int start, int count, int begin,
                int num_queries, int dim, bool is_finite) {
  if (is_finite) {
    multiply_floats(work.scores + begin * kKeyTile, kKeyTile, work.values, dim, count,
                    work.sums + int64_t{begin} * dim, dim, num_queries - begin, dim, true);
    return;
  }
  // 0 times NaN is NaN: each query takes what it sees, and nothing else.
  for (int query = begin; query < num_queries; ++query) {
    const Seen seen(queries, query, start);
    if (seen.is_empty()) continue;
    multiply_floats(work.scores + query * kKeyTile + seen.first, kKeyTile,
                    work.values + int64_t{seen.first} * dim, dim, seen.end - seen.first,
                    work.sums + int64_t{query} * dim, dim, 1, dim, true);
  }
}

float *head_of(float *tokens, int64_t stride, const Queries &queries, int query, int dim) {
  const int token = query / queries.group_size, member = query % queries.group_size;
  return tokens + token * stride + (queries.kv_head * queries.group_size + member) * int64_t{dim};
}

void attend(const Pages &pages, const Queries &queries, float *scratch) {
  const int dim = pages.head_dim, num_queries = queries.num_tokens * queries.group_size;
  const Workspace work(scratch, num_queries, dim);
  for (int q = 0; q < num_queries; ++q) {
    const float *from =
        head_of(const_cast<float *>(queries.query), queries.query_stride, queries, q, dim);
    for (int d = 0; d < dim; d += kLanes) {
      store(work.queries + q * dim + d, mul(load(from + d), splat(queries.scale)));
      store(work.sums + q * dim + d, splat(0.0f));
    }
    work.maxima[q] = kLowest;
    work.weights[q] = 0.0f;
  }
  const int length = queries.first_position + queries.num_tokens;
  int start = 0;
  if (queries.window && queries.first_position + 1 > queries.window)
    start = (queries.first_position + 1 - queries.window) / kKeyTile * kKeyTile;
  for (; start < length; start += kKeyTile) {
    const int count = length - start < kKeyTile ? length - start : kKeyTile;
    const bool is_finite = gather(pages, queries, start, count, work);
    // Queries before the tile see nothing of it.
    int begin = (start - queries.first_position) * queries.group_size;
    if (begin < 0) begin = 0;
    const int columns = (count + kLanes - 1) / kLanes * kLanes;
    multiply_floats(work.queries + int64_t{begin} * dim, dim, work.keys, kKeyTile, dim,
                    work.scores + begin * kKeyTile, kKeyTile, num_queries - begin, columns, false);
    for (int q = begin; q < num_queries; ++q) weigh(work, q, dim, Seen(queries, q, start));
    add_values(queries, work, start, count, begin, num_queries, dim, is_finite);
  }
  for (int q = 0; q < num_queries; ++q) {
    float *to = head_of(queries.output, queries.output_stride, queries, q, dim);
    const Vector weight = splat(work.weights[q]);
    for (int d = 0; d < dim; d += kLanes) store(to + d, div(load(work.sums + q * dim + d), weight));
  }
}

} // namespace
} // namespace pagewire
