// Threads that share the pieces of one piece of work after another.
//
// The caller takes pieces too and never waits for a thread that holds none: on a machine whose
// cores others use as well, a thread may not run for milliseconds. Between steps threads sleep;
// within one that is worth waking them they spin, since a step has hundreds of pieces of work of
// microseconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace pagewire {

class Pool {
public:
  // Does piece `index` on thread `thread`, 0 being the caller's.
  using Piece = void (*)(void *context, int32_t index, int32_t thread);

  explicit Pool(int32_t num_threads);
  ~Pool();
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  int32_t num_threads() const { return static_cast<int32_t>(threads_.size()) + 1; }
  // Wakes the threads; until `rest` they look out for work.
  void wake();
  void rest();
  // Runs all pieces and returns when they are done. At most 2^20 of them. One caller at a time.
  // What a piece throws is thrown here, once no thread is at the work any more: of several, one.
  void run(int32_t num_pieces, Piece piece, void *context);

  template <typename Function> void each(int32_t num_pieces, Function &function) {
    run(
        num_pieces,
        [](void *context, int32_t index, int32_t thread) {
          (*static_cast<Function *>(context))(index, thread);
        },
        &function);
  }

private:
  void work(int32_t thread);
  bool take(int32_t thread);
  void run_piece(int32_t index, int32_t thread);

  // Number of the work (24 bits), its pieces (20), and the next that nobody has taken (20): one
  // word, so that a late thread takes no piece of work that is over.
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int32_t> done_{0};
  Piece piece_ = nullptr;
  void *context_ = nullptr;
  std::atomic<bool> has_failed_{false};
  std::exception_ptr failure_; // of the thread that set has_failed_

  std::atomic<bool> is_awake_{false};
  bool ends_ = false;
  std::mutex mutex_;
  std::condition_variable condition_;
  std::vector<std::thread> threads_;
};

// Threads are awake as long as it lives. If they are not wanted, the caller does all the work, but
// for what a thread takes that has not seen yet that the work before was over.
class Awake {
public:
  explicit Awake(Pool &pool, bool is_wanted = true) : pool_(pool) {
    if (is_wanted) pool_.wake();
  }
  ~Awake() { pool_.rest(); }
  Awake(const Awake &) = delete;
  Awake &operator=(const Awake &) = delete;

private:
  Pool &pool_;
};

} // namespace pagewire
