#include "processor.h"

#include <cpuid.h>

#include <cstdint>

#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pagewire {
namespace {

constexpr uint32_t kOsxsave = 1u << 27;            // leaf 1, ECX
constexpr uint32_t kAmx = 1u << 24 | 1u << 25;     // leaf 7, EDX: tiles, and products of bytes
constexpr uint32_t kTileState = 1u << 17 | 1u << 18; // XCR0: shapes and contents

// Whether the processor has tiles, and the system saves them.
bool saves_tiles() {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave)) return false;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kAmx) != kAmx) return false;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

// A process asks once, for all its threads; without it the first use of a tile is a fault.
bool may_use_tiles() {
#ifdef __linux__
  constexpr long kRequestPermission = 0x1023, kTileContents = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileContents) == 0;
#else
  return false;
#endif
}

} // namespace

bool has_avx2() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

bool has_amx() {
  static const bool has = has_avx512() && saves_tiles() && may_use_tiles();
  return has;
}

} // namespace pagewire
