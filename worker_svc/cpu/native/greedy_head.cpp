#include "greedy_head.h"

#include <algorithm>
#include <cmath>

#include "pieces.h"

namespace pagewire {
namespace {

constexpr int32_t kLogits = 4096; // that a thread looks at while they are in its nearest cache

} // namespace

GreedyHead::GreedyHead(const Kernels &kernels, Pool &pool, const Matrix &head)
    : kernels_(kernels), pool_(pool), head_(head),
      group_bytes_(kernels.group_bytes(head.kind, head.columns)),
      num_pairs_((head.rows + 2 * kernels.lanes - 1) / (2 * kernels.lanes)),
      num_logits_(std::max(kLogits, kMaxTokens * 2 * kernels.lanes)),
      logits_(new float[int64_t{pool.num_threads()} * num_logits_]),
      best_(int64_t{pool.num_threads()} * kMaxTokens) {}

void GreedyHead::run(const Activations &input, int64_t *token_ids, float *largest) {
  const int32_t threads = pool_.num_threads();
  std::fill(best_.begin(), best_.end(), Largest{-INFINITY, 0});
  const int32_t pieces = num_pieces(num_pairs_, threads);
  // A thread takes pieces in rising order, so that of equal logits it has the lowest row.
  auto piece = [&](int32_t index, int32_t thread) {
    run_pairs(input, static_cast<int32_t>(int64_t{num_pairs_} * index / pieces),
              static_cast<int32_t>(int64_t{num_pairs_} * (index + 1) / pieces), thread);
  };
  pool_.each(pieces, piece);
  for (int32_t token = 0; token < input.num_tokens; ++token) {
    Largest found = best_[token];
    for (int32_t thread = 1; thread < threads; ++thread) {
      const Largest &other = best_[int64_t{thread} * kMaxTokens + token];
      const bool is_first = other.value == found.value && other.place < found.place;
      if (std::isnan(other.value) || other.value > found.value || is_first) found = other;
    }
    token_ids[token] = found.place;
    largest[token] = found.value;
  }
}

void GreedyHead::run_pairs(const Activations &input, int32_t begin, int32_t end, int32_t thread) {
  const int32_t pair_rows = 2 * kernels_.lanes;
  float *logits = logits_.get() + int64_t{thread} * num_logits_;
  Largest *best = best_.data() + int64_t{thread} * kMaxTokens;
  const int32_t step = num_logits_ / (input.num_tokens * pair_rows);
  for (int32_t pair = begin; pair < end; pair += step) {
    const int32_t first = pair * pair_rows;
    const int32_t rows = std::min(std::min(end, pair + step) * pair_rows, head_.rows) - first;
    const Matrix part{head_.data + 2 * pair * group_bytes_, head_.kind, rows, head_.columns};
    kernels_.multiply(part, input, 0, (rows + kernels_.lanes - 1) / kernels_.lanes,
                      Output{logits, rows, nullptr, false});
    for (int32_t token = 0; token < input.num_tokens; ++token)
      kernels_.take_largest(logits + int64_t{token} * rows, rows, first, best[token]);
  }
}

} // namespace pagewire
