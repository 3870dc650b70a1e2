// The tokens of the largest logits, without the logits: a piece of the head's rows at a time is
// multiplied into memory that stays in the nearest caches, and looked at there.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace pagewire {

class GreedyHead {
public:
  GreedyHead(const Kernels &kernels, Pool &pool, const Matrix &head);
  // Of each token the lowest row of the head with its largest logit, and that logit: a NaN if any
  // of them is one.
  void run(const Activations &input, int64_t *token_ids, float *largest);

private:
  void run_pairs(const Activations &input, int32_t begin, int32_t end, int32_t thread);

  const Kernels &kernels_;
  Pool &pool_;
  Matrix head_;
  int64_t group_bytes_;
  int32_t num_pairs_; // of row groups, which the kernels take together
  int32_t num_logits_; // at a time; at least those of a pair with all tokens
  std::unique_ptr<float[]> logits_; // of each thread
  std::vector<Largest> best_;       // [threads][kMaxTokens]
};

} // namespace pagewire
