// In place of native/processor.cpp: every variant may be called, since its instructions are
// emulated. And what tests want to know of the emulation.
#include "processor.h"

#include "tiles.h"

namespace pagewire {

bool has_avx2() { return true; }
bool has_avx512() { return true; }
bool has_amx() { return true; }

} // namespace pagewire

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int64_t emulated_products() { return emulated::num_products; }
EXPORT int64_t emulated_shaped() { return emulated::num_shaped; }
