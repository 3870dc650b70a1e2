// Attention of queries over the paged cache. Included by a variant after elementwise.h.
//
// A query reduces its keys in tiles of kKeyTile positions from position 0 on, joined by an online
// softmax: in the same order in whatever chunk, batch or thread it is computed. Sizes of heads and
// blocks are multiples of kLanes.
#pragma once

#include "few_queries.h"
#include "float_products.h"
#include "kernels.h"
#include "kv_tile.h"

namespace pagewire {
namespace {

constexpr float kLowest = -1e30f; // starts the running maximum

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
    const KvTile tile(pages, queries, start, count);
    const bool is_finite = tile.has_finite_values(dim);
    // Queries before the tile see nothing of it.
    int begin = (start - queries.first_position) * queries.group_size;
    if (begin < 0) begin = 0;
    const int rows = num_queries - begin;
    float *scores = work.scores + begin * kKeyTile;
    // Few queries read the cache as it is: a copy in float32 would serve nobody else.
    const bool is_copied = rows > kFewQueries || !is_finite;
    if (is_copied) {
      copy_tile(tile, pages.block_size, dim, work.keys, work.values);
      multiply_floats(work.queries + int64_t{begin} * dim, dim, work.keys, kKeyTile, dim, scores,
                      kKeyTile, rows, (count + kLanes - 1) / kLanes * kLanes, false);
    } else {
      score_few(tile, pages.block_size, dim, work.queries + int64_t{begin} * dim, rows, scores);
    }
    for (int q = begin; q < num_queries; ++q) weigh(work, q, dim, Seen(queries, q, start));
    if (is_copied)
      add_values(queries, work, start, count, begin, num_queries, dim, is_finite);
    else
      add_few(tile, dim, scores, rows, work.sums + int64_t{begin} * dim);
  }
  for (int q = 0; q < num_queries; ++q) {
    float *to = head_of(queries.output, queries.output_stride, queries, q, dim);
    const Vector weight = splat(work.weights[q]);
    for (int d = 0; d < dim; d += kLanes) store(to + d, div(load(work.sums + q * dim + d), weight));
  }
}

} // namespace
} // namespace pagewire
