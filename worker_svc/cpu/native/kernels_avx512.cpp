// Compiled with AVX-512 and VNNI; called only where the processor has them.
#include "simd_avx512.h"

#include "variant.h"

namespace pagewire {
extern const Kernels kKernelsAvx512 = make_kernels("avx512");
} // namespace pagewire
