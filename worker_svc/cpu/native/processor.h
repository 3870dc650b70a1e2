// What this processor can do, and the system lets it do.
#pragma once

namespace pagewire {

// Each says whether the variant of that name may be called.
bool has_avx2();
bool has_avx512();
bool has_amx();

} // namespace pagewire
