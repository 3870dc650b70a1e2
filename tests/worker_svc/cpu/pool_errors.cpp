// Pieces that throw on a thread of a pool, for test_errors.py.
#include <sched.h>

#include <atomic>
#include <new>
#include <stdexcept>

#include "errors.h"
#include "pool.h"

using namespace pagewire;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int32_t pw_status() { return last_status(); }
EXPORT const char *pw_error() { return last_error(); }

// Two pieces at once, of which the one on thread `bad` throws; what is thrown is 0: nothing, 1: no
// memory, 2: a message, 3: no std::exception. `done` counts the pieces that came to their end.
EXPORT int32_t run_two(int32_t bad, int32_t thrown, int32_t *done) {
  return guarded([&] {
    Pool pool(2);
    if (pool.num_threads() != 2) throw std::runtime_error("there is no second thread");
    std::atomic<int32_t> begun{0}, ended{0};
    auto piece = [&](int32_t, int32_t thread) {
      begun.fetch_add(1);
      while (begun.load() < 2) sched_yield(); // so each thread has one
      if (thread == bad && thrown == 1) throw std::bad_alloc();
      if (thread == bad && thrown == 2) throw std::runtime_error("as the test wants");
      if (thread == bad && thrown == 3) throw 3;
      ended.fetch_add(1);
    };
    const Awake awake(pool);
    try {
      pool.each(2, piece);
    } catch (...) {
      // The pool goes on.
      thrown = 0;
      begun.store(0);
      pool.each(2, piece);
      *done = ended.load();
      throw;
    }
    *done = ended.load();
  });
}
