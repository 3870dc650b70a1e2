// Products of bytes in tiles, with AMX. Included after simd_avx512.h, whose vectors go with them.
//
// A tile has up to 16 rows of up to 64 bytes: of activations a token in each, of weights 4 columns
// of 16 rows of a matrix, 4 bytes a lane, and of results the 16 whole numbers of a token.
#pragma once

#include "kernels.h"

namespace pagewire {
namespace {

constexpr int kTileBytes = 64; // of a row of weights or results
constexpr int kTileRows = 2;   // groups of rows that one product takes

// GCC's functions of tiles are assembly that does not tell what it reads. So that it finds there
// what was stored: called between.
inline void have_stored(const void *memory) { asm volatile("" : : "r"(memory) : "memory"); }

// What is told of all tiles at once; see multiply_tiles for which is which.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Makes tiles ready for so many tokens and columns, until release_tiles. No longer than a call:
// others in the process (oneDNN) have shapes of their own, and a thread that has none has less to
// save when it is switched.
inline void shape_tiles(int num_tokens, int num_columns) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    const bool are_weights = tile >= 6, are_tokens = tile == 4 || tile == 5;
    shapes.rows[tile] = static_cast<uint8_t>(are_weights ? num_columns / 4 : num_tokens);
    shapes.row_bytes[tile] = static_cast<uint16_t>(are_tokens ? num_columns : kTileBytes);
  }
  have_stored(&shapes);
  _tile_loadconfig(&shapes);
}
inline void release_tiles() { _tile_release(); }

// Of high and of low bytes, each with both groups of rows: a sum for each token and row.
using TileDots = int32_t[2][kTileRows][kTileTokens][kLanes];

// Products of tokens, from a column of their group on, with two groups of rows.
inline void multiply_tiles(const TokenTiles &tokens, int column, const int8_t *first,
                           const int8_t *second, TileDots &dots) {
  // Plain numbers, since the functions are macros that make them part of a name. 0 to 3: results,
  // 4 and 5: tokens, 6 and 7: weights.
  _tile_loadd(4, tokens.high[0] + column, kGroup);
  _tile_loadd(6, first, kTileBytes);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  _tile_loadd(7, second, kTileBytes);
  _tile_zero(1);
  _tile_dpbssd(1, 4, 7);
  _tile_loadd(5, tokens.low[0] + column, kGroup);
  _tile_zero(2);
  _tile_dpbusd(2, 5, 6);
  _tile_zero(3);
  _tile_dpbusd(3, 5, 7);
  _tile_stored(0, dots[0][0], kTileBytes);
  _tile_stored(1, dots[0][1], kTileBytes);
  _tile_stored(2, dots[1][0], kTileBytes);
  _tile_stored(3, dots[1][1], kTileBytes);
}

// 256 * high + low, of one token.
inline Integers joined(const int32_t *high, const int32_t *low) {
  return _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(high), 8),
                          _mm512_loadu_si512(low));
}

// Splits a token's 32 codes: code = 256 * high + low.
inline void split_codes(const int16_t *codes, int8_t *high, uint8_t *low) {
  const __m512i words = _mm512_loadu_si512(codes);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(high),
                      _mm512_cvtepi16_epi8(_mm512_srai_epi16(words, 8)));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(low), _mm512_cvtepi16_epi8(words));
}

inline void store_bytes(int8_t *p, Integers bytes) { _mm512_storeu_si512(p, bytes); }

// Bytes of each lane, from the places in it that the bytes of `places` name.
inline Integers moved(Integers words, int32_t places) {
  const int32_t next = 0x04040404; // a lane further on
  return _mm512_shuffle_epi8(words, _mm512_set4_epi32(places + 3 * next, places + 2 * next,
                                                      places + next, places));
}
// Columns in their order, a byte each, of a vector of packed weights: see byte_of_8 in linear.h.
inline Integers ordered_bytes(Integers words) { return moved(words, 0x03010200); }
// The first four of its eight columns, or the last four: see byte_of_4.
template <int kHalf> inline Integers ordered_nibbles(Integers words) {
  const Integers twice = moved(words, 0x02000200 + kHalf * 0x01010101);
  return _mm512_and_si512(_mm512_srlv_epi16(twice, _mm512_set1_epi32(4 << 16)),
                          _mm512_set1_epi16(0x0f0f));
}

} // namespace
} // namespace pagewire
