// Exceptions end at the C interface: a caller gets a status, and a message where it asks for one.
#pragma once

#include <cstdint>
#include <utility>

namespace pagewire {

enum Status : int32_t { kDone = 0, kOutOfMemory = 1, kFailed = 2 };

// Of the last guarded call on this thread.
Status last_status() noexcept;
const char *last_error() noexcept;

void note_success() noexcept;
// Called in a catch block.
void note_exception() noexcept;

// Runs a function; says whether it was done, as last_status does.
template <typename Function> Status guarded(Function &&function) noexcept {
  try {
    std::forward<Function>(function)();
    note_success();
  } catch (...) {
    note_exception();
  }
  return last_status();
}

} // namespace pagewire
