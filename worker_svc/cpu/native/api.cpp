// What the library gives to Python: a C interface over plain structs.
//
// No exception leaves it. What may fail gives a Status, or a null pointer for what it would have
// made; pw_status and pw_error tell of the last such call on the same thread.
#include <vector>

#include "errors.h"
#include "plan.h"
#include "processor.h"

#ifndef PAGEWIRE_SOURCES
#define PAGEWIRE_SOURCES ""
#endif

namespace pagewire {
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAmx;
} // namespace pagewire

using namespace pagewire;

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int32_t pw_status() { return last_status(); }
EXPORT const char *pw_error() { return last_error(); }

// Digest of the sources that this was built from.
EXPORT const char *pw_sources() { return PAGEWIRE_SOURCES; }

// A variant by its place, best first; null past the last, or where this processor lacks it.
EXPORT const Kernels *pw_kernels(int32_t place) {
  switch (place) {
  case 0:
    return has_amx() ? &kKernelsAmx : nullptr;
  case 1:
    return has_avx512() ? &kKernelsAvx512 : nullptr;
  case 2:
    return has_avx2() ? &kKernelsAvx2 : nullptr;
  default:
    return nullptr;
  }
}

EXPORT const char *pw_name(const Kernels *kernels) { return kernels->name; }
EXPORT int32_t pw_lanes(const Kernels *kernels) { return kernels->lanes; }

EXPORT int64_t pw_packed_bytes(const Kernels *kernels, int32_t kind, int32_t rows,
                               int32_t columns) {
  const int64_t groups = (rows + kernels->lanes - 1) / kernels->lanes;
  return groups * kernels->group_bytes(kind, columns);
}

EXPORT int32_t pw_pack(const Kernels *kernels, int32_t ggml_type, const uint8_t *blocks,
                       Matrix matrix, uint8_t *out) {
  return guarded([&] {
    const int64_t bytes = kernels->group_bytes(matrix.kind, matrix.columns);
    for (int32_t first = 0; first < matrix.rows; first += kernels->lanes, out += bytes)
      kernels->pack(ggml_type, blocks, matrix.rows, matrix.columns, first, out);
  });
}

EXPORT Pool *pw_pool_create(int32_t num_threads) {
  Pool *pool = nullptr;
  guarded([&] { pool = new Pool(num_threads); });
  return pool;
}
EXPORT void pw_pool_destroy(Pool *pool) { delete pool; }

EXPORT Plan *pw_plan_create(const Kernels *kernels, Pool *pool, const Model *model) {
  Plan *plan = nullptr;
  guarded([&] { plan = new Plan(*kernels, *pool, *model); });
  return plan;
}
EXPORT void pw_plan_destroy(Plan *plan) { delete plan; }
EXPORT int32_t pw_plan_forward(Plan *plan, const Cache *cache, const Step *step, float *hidden) {
  return guarded([&] { plan->forward(*cache, *step, hidden); });
}
EXPORT int32_t pw_plan_logits(Plan *plan, const float *hidden, int32_t num_rows, float *output) {
  return guarded([&] { plan->logits(hidden, num_rows, output); });
}
EXPORT int32_t pw_plan_greedy(Plan *plan, const float *hidden, int32_t num_rows,
                              int64_t *token_ids, float *largest) {
  return guarded([&] { plan->greedy(hidden, num_rows, token_ids, largest); });
}

// Single kernels, for tests and for the check of a variant.

EXPORT int32_t pw_unpack_row(const Kernels *kernels, Matrix matrix, int32_t row, float *out) {
  return guarded([&] { kernels->unpack_row(matrix, row, out); });
}

// [num_tokens][columns] times the matrix, at most kMaxTokens tokens.
EXPORT int32_t pw_linear(const Kernels *kernels, Matrix matrix, const float *input,
                         int32_t num_tokens, const float *bias, bool adds, float *out) {
  return guarded([&] {
    const int64_t blocks = (int64_t{num_tokens} + kTokens - 1) / kTokens;
    const int64_t groups = int64_t{matrix.columns} / kGroup * kTokens * blocks;
    std::vector<int16_t> codes(groups * kGroup);
    std::vector<float> scales(groups), sums(groups);
    std::vector<TokenTiles> tiles(kernels->takes_tiles ? num_tiles(num_tokens, matrix.columns) : 0);
    Activations activations{input,       matrix.columns, codes.data(), scales.data(),
                            sums.data(), tiles.data(),   num_tokens};
    for (int32_t token = 0; token < num_tokens; ++token)
      kernels->quantize(input + int64_t{token} * matrix.columns, matrix.columns, token,
                        activations);
    const int32_t end = (matrix.rows + kernels->lanes - 1) / kernels->lanes;
    kernels->multiply(matrix, activations, 0, end, Output{out, matrix.rows, bias, adds});
  });
}

EXPORT int32_t pw_take_largest(const Kernels *kernels, const float *values, int32_t count,
                               int32_t first, Largest *best) {
  return guarded([&] { kernels->take_largest(values, count, first, *best); });
}

EXPORT int32_t pw_rms_norm(const Kernels *kernels, const float *input, const float *weight,
                           float eps, int32_t size, float *output) {
  return guarded([&] { kernels->rms_norm(input, weight, eps, size, output); });
}

EXPORT int32_t pw_swiglu(const Kernels *kernels, float *gate, const float *up, int32_t size) {
  return guarded([&] { kernels->swiglu(gate, up, size); });
}

EXPORT int32_t pw_rotate(const Kernels *kernels, float *heads, int32_t num_heads,
                         int32_t head_dim, const float *cosines, const float *sines) {
  return guarded([&] { kernels->rotate(heads, num_heads, head_dim, cosines, sines); });
}

// Writes keys and values of a step into one layer and attends; tensors are contiguous.
EXPORT int32_t pw_attend(const Kernels *kernels, Pool *pool, const Cache *cache, int32_t layer,
                         const Step *step, int32_t num_heads, int32_t window, float scale,
                         const float *query, const float *key, const float *value,
                         float *output) {
  return guarded([&] {
    const int32_t dim = cache->head_dim, group_size = num_heads / cache->num_kv_heads;
    const Pages pages = layer_pages(*cache, layer);
    const int64_t kv_size = int64_t{cache->num_kv_heads} * dim;
    Attention attention(*kernels, *pool, group_size, dim);
    std::vector<Item> items;
    attention.cut(*step, cache->num_kv_heads, 0, step->num_tokens, items);
    for (int32_t token = 0; token < step->num_tokens; ++token)
      kernels->write_kv(pages, step->slots[token], key + token * kv_size, value + token * kv_size);
    Queries queries{};
    queries.query = query;
    queries.output = output;
    queries.query_stride = queries.output_stride = int64_t{num_heads} * dim;
    queries.group_size = group_size;
    queries.window = window;
    queries.scale = scale;
    const Awake awake(*pool);
    attention.run(pages, *step, items, queries, 0);
  });
}
