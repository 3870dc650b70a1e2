// Into how many pieces of work a matrix product is cut.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pagewire {

constexpr int32_t kPiecesPerThread = 4; // threads that others delay do fewer
constexpr int32_t kMostPairs = 64;      // of a piece: who is done waits for the last one

// Pieces of `num_pairs` pairs of row groups.
inline int32_t num_pieces(int32_t num_pairs, int32_t num_threads) {
  return std::min(num_pairs, std::max(kPiecesPerThread * num_threads,
                                      (num_pairs + kMostPairs - 1) / kMostPairs));
}

} // namespace pagewire
