#include "errors.h"

#include <cstdio>
#include <exception>
#include <new>
#include <stdexcept>

namespace pagewire {
namespace {

// No memory is asked for here: there may be none.
struct Last {
  Status status;
  char message[200];
};
thread_local Last last{kDone, ""};

void note(Status status, const char *message) {
  last.status = status;
  std::snprintf(last.message, sizeof last.message, "%s", message);
}

} // namespace

Status last_status() noexcept { return last.status; }
const char *last_error() noexcept { return last.message; }

void note_success() noexcept { note(kDone, ""); }

void note_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc &) {
    note(kOutOfMemory, "not enough memory");
  } catch (const std::length_error &) { // more than any memory holds
    note(kOutOfMemory, "not enough memory");
  } catch (const std::exception &error) {
    note(kFailed, error.what());
  } catch (...) {
    note(kFailed, "an exception of an unknown kind");
  }
}

} // namespace pagewire
