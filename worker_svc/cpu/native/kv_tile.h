// The paged cache as attention reads it, a tile of kKeyTile positions at a time, and how it is
// written. Included by a variant after elementwise.h. Sizes of heads and blocks are multiples of
// kPart.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

constexpr int kPart = 16; // positions that lie in one block
constexpr int kPartVectors = kPart / kLanes;

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

// Whether all of `size` halves are finite; a multiple of 16.
inline bool are_finite(const uint16_t *halves, int64_t size) {
  const __m256i no_sign = _mm256_set1_epi16(0x7fff), infinity = _mm256_set1_epi16(0x7c00);
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < size; i += 16) {
    const auto *p = reinterpret_cast<const __m256i *>(halves + i);
    largest = _mm256_max_epi16(largest, _mm256_and_si256(_mm256_loadu_si256(p), no_sign));
  }
  // Halves without their signs are ordered as whole numbers are, infinity and NaN last.
  return _mm256_movemask_epi8(_mm256_cmpgt_epi16(infinity, largest)) == -1;
}

// Where `count` positions of one KV head lie, from `start` on, a multiple of kPart.
struct KvTile {
  const uint16_t *keys[kKeyTile / kPart];   // [head_dim] at a stride of block_size, kPart of each
  const uint16_t *values[kKeyTile / kPart]; // [kPart][head_dim]
  int count;

  KvTile(const Pages &pages, const Queries &queries, int start, int num_positions)
      : count(num_positions) {
    const int size = pages.block_size, dim = pages.head_dim;
    for (int part = 0; part < kKeyTile / kPart; ++part) {
      // Parts that nobody looks at are the first once more: a block may be missing.
      const int position = start + (part * kPart < count ? part * kPart : 0);
      const int64_t block = queries.block_table[position / size], offset = position % size;
      const int64_t head = (block * pages.num_kv_heads + queries.kv_head) * size * dim;
      keys[part] = pages.keys + head + offset;
      values[part] = pages.values + head + offset * dim;
    }
  }
  int length(int part) const {
    const int left = count - part * kPart;
    return left < 0 ? 0 : left < kPart ? left : kPart;
  }
  bool has_finite_values(int dim) const {
    for (int part = 0; length(part) > 0; ++part)
      if (!are_finite(values[part], int64_t{length(part)} * dim)) return false;
    return true;
  }
};

// Copies a tile as float32; the rest of its last part comes along, and is not used.
inline void copy_tile(const KvTile &tile, int block_size, int dim, float *keys, float *values) {
  for (int part = 0; part < kKeyTile / kPart && tile.length(part) > 0; ++part) {
    for (int d = 0; d < dim; ++d)
      for (int i = 0; i < kPart; i += kLanes)
        store(keys + d * kKeyTile + part * kPart + i,
              load_half(tile.keys[part] + int64_t{d} * block_size + i));
    const int size = tile.length(part) * dim;
    for (int i = 0; i < size; i += kLanes)
      store(values + part * kPart * dim + i, load_half(tile.values[part] + i));
  }
}

} // namespace
} // namespace pagewire
