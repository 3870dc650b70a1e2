// Compiled with AVX-512, VNNI and AMX; called only where the processor has them.
#include "simd_avx512.h"

#include "simd_amx.h"
#include "variant.h"

#include "tile_products.h"

namespace pagewire {
namespace {

constexpr Kernels make_tile_kernels() {
  Kernels kernels = make_kernels("amx");
  kernels.takes_tiles = true;
  kernels.multiply = multiply_matrix_in_tiles;
  kernels.quantize = quantize_and_split;
  return kernels;
}

} // namespace

extern const Kernels kKernelsAmx = make_tile_kernels();
} // namespace pagewire
