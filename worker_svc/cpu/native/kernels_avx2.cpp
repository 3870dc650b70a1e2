// Compiled with AVX2, FMA and F16C; called only where the processor has them.
#include "simd_avx2.h"

#include "variant.h"

namespace pagewire {
extern const Kernels kKernelsAvx2 = make_kernels("avx2");
} // namespace pagewire
