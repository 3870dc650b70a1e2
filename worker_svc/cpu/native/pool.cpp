#include "pool.h"

#include <sched.h>

#include <utility>

namespace pagewire {
namespace {

constexpr int kCountBits = 20;
constexpr uint64_t kCountMask = (uint64_t{1} << kCountBits) - 1;
constexpr int kSpins = 4000; // some tens of microseconds, before others get the core

void pause(int spins) {
  if (spins > kSpins)
    sched_yield();
  else
    __builtin_ia32_pause();
}

} // namespace

Pool::Pool(int32_t num_threads) {
  threads_.reserve(num_threads);
  try {
    for (int32_t i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { work(i); });
  } catch (const std::exception &) {
    // The container allows no more, or has no memory: the others do what they would have.
  }
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  condition_.notify_all();
  for (std::thread &thread : threads_) thread.join();
}

void Pool::wake() {
  if (threads_.empty()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    is_awake_.store(true, std::memory_order_relaxed);
  }
  condition_.notify_all();
}

void Pool::rest() { is_awake_.store(false, std::memory_order_relaxed); }

void Pool::run(int32_t num_pieces, Piece piece, void *context) {
  if (threads_.empty() || num_pieces == 1) {
    for (int32_t i = 0; i < num_pieces; ++i) piece(context, i, 0);
    return;
  }
  piece_ = piece;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  has_failed_.store(false, std::memory_order_relaxed);
  const uint64_t number = (ticket_.load(std::memory_order_relaxed) >> (2 * kCountBits)) + 1;
  ticket_.store(number << (2 * kCountBits) | static_cast<uint64_t>(num_pieces) << kCountBits,
                std::memory_order_release);
  while (take(0)) {
  }
  for (int spins = 0; done_.load(std::memory_order_acquire) != num_pieces; ++spins) pause(spins);
  if (has_failed_.load(std::memory_order_relaxed))
    std::rethrow_exception(std::exchange(failure_, nullptr));
}

// Takes one piece of the present work and does it; false: none is left.
bool Pool::take(int32_t thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    const uint64_t count = ticket >> kCountBits & kCountMask;
    if ((ticket & kCountMask) >= count) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                          std::memory_order_acquire));
  // The work cannot end before this piece is done, so these are its own.
  run_piece(static_cast<int32_t>(ticket & kCountMask), thread);
  done_.fetch_add(1, std::memory_order_release);
  return true;
}

void Pool::run_piece(int32_t index, int32_t thread) {
  try {
    piece_(context_, index, thread);
  } catch (...) {
    // Others may be at the work that the caller would leave.
    if (!has_failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

void Pool::work(int32_t thread) {
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      condition_.wait(lock, [this] { return ends_ || is_awake_.load(std::memory_order_relaxed); });
      if (ends_) return;
    }
    for (int spins = 0; is_awake_.load(std::memory_order_relaxed); ++spins) {
      if (take(thread)) spins = 0;
      else pause(spins);
    }
  }
}

} // namespace pagewire
