// AMX's tiles in plain C++, of each thread. What would be a fault on a processor is an exception,
// which the library's functions give to Python as KernelError.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

// Inlined, all together they take a minute to compile, and run no faster.
#define EMULATED __attribute__((noinline)) inline

namespace emulated {

// What tests look at, of all threads.
inline std::atomic<int64_t> num_products{0}; // of tiles
inline std::atomic<int64_t> num_shaped{0};   // threads whose tiles have shapes

// As the instruction reads it.
struct Shapes {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(Shapes) == 64);

struct Tiles {
  bool are_shaped = false;
  Shapes shapes;
  uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;

inline void require(bool is_so, const char *what, int tile = -1) {
  if (!is_so) throw std::logic_error(std::string(what) + ", tile " + std::to_string(tile));
}

EMULATED void load_shapes(const void *memory) {
  Shapes shapes;
  std::memcpy(&shapes, memory, sizeof shapes);
  require(shapes.palette == 1, "a palette that there is not");
  require(shapes.start_row == 0, "a load that goes on");
  for (uint8_t byte : shapes.reserved) require(byte == 0, "a reserved byte that is not 0");
  for (int tile = 0; tile < 16; ++tile) {
    const int rows = shapes.rows[tile], bytes = shapes.row_bytes[tile];
    require(rows <= 16 && bytes <= 64, "too large", tile);
    require((rows == 0) == (bytes == 0), "rows without bytes", tile);
    require(tile < 8 || rows == 0, "there are eight", tile);
  }
  num_shaped += !tiles.are_shaped;
  tiles.are_shaped = true;
  tiles.shapes = shapes;
  std::memset(tiles.data, 0, sizeof tiles.data);
}

EMULATED void release_shapes() {
  num_shaped -= tiles.are_shaped;
  tiles.are_shaped = false;
}

EMULATED void check(int tile) {
  require(tiles.are_shaped, "tiles without shapes", tile);
  require(tile >= 0 && tile < 8 && tiles.shapes.rows[tile] > 0, "not configured", tile);
}

EMULATED void zero(int tile) {
  check(tile);
  std::memset(tiles.data[tile], 0, sizeof tiles.data[tile]);
}

EMULATED void load_tile(int tile, const void *from, int64_t stride) {
  zero(tile);
  for (int row = 0; row < tiles.shapes.rows[tile]; ++row)
    std::memcpy(tiles.data[tile][row], static_cast<const char *>(from) + row * stride,
                tiles.shapes.row_bytes[tile]);
}

EMULATED void store_tile(int tile, void *to, int64_t stride) {
  check(tile);
  for (int row = 0; row < tiles.shapes.rows[tile]; ++row)
    std::memcpy(static_cast<char *>(to) + row * stride, tiles.data[tile][row],
                tiles.shapes.row_bytes[tile]);
}

// sums += left times right: of left a row has bytes of four columns after each other, of right a
// row has those four of each lane.
template <typename Left, typename Right>
EMULATED void add_products(int sums, int left, int right) {
  for (int tile : {sums, left, right}) check(tile);
  require(sums != left && sums != right && left != right, "one tile twice", sums);
  const Shapes &shapes = tiles.shapes;
  require(shapes.row_bytes[sums] % 4 == 0 && shapes.row_bytes[left] % 4 == 0, "no whole columns",
          sums);
  require(shapes.rows[sums] == shapes.rows[left], "rows that differ", sums);
  require(shapes.row_bytes[sums] == shapes.row_bytes[right], "lanes that differ", sums);
  require(shapes.row_bytes[left] / 4 == shapes.rows[right], "columns that differ", left);
  const int num_lanes = shapes.row_bytes[sums] / 4;
  for (int row = 0; row < shapes.rows[sums]; ++row)
    for (int lane = 0; lane < num_lanes; ++lane) {
      uint32_t sum; // it wraps
      std::memcpy(&sum, &tiles.data[sums][row][4 * lane], sizeof sum);
      for (int column = 0; column < shapes.row_bytes[left]; ++column) {
        const auto x = static_cast<Left>(tiles.data[left][row][column]);
        const auto y = static_cast<Right>(tiles.data[right][column / 4][4 * lane + column % 4]);
        sum += static_cast<uint32_t>(int32_t{x} * int32_t{y});
      }
      std::memcpy(&tiles.data[sums][row][4 * lane], &sum, sizeof sum);
    }
  ++num_products;
}

} // namespace emulated

// The header's are macros too.
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbssd
#undef _tile_dpbusd
#define _tile_loadconfig emulated::load_shapes
#define _tile_release emulated::release_shapes
#define _tile_loadd emulated::load_tile
#define _tile_stored emulated::store_tile
#define _tile_zero emulated::zero
#define _tile_dpbssd emulated::add_products<int8_t, int8_t>
#define _tile_dpbusd emulated::add_products<uint8_t, int8_t>
