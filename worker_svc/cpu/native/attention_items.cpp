#include <algorithm>

#include "plan.h"

namespace pagewire {
namespace {

constexpr int32_t kQueriesPerItem = 48; // of all heads: their sums stay in the nearest caches

} // namespace

Pages layer_pages(const Cache &cache, int32_t layer) {
  const int64_t size =
      cache.num_blocks * cache.num_kv_heads * cache.head_dim * int64_t{cache.block_size};
  uint16_t *keys = cache.data + 2 * layer * size;
  return Pages{keys, keys + size, cache.block_size, cache.num_kv_heads, cache.head_dim};
}

Attention::Attention(const Kernels &kernels, Pool &pool, int32_t group_size, int32_t head_dim)
    : kernels_(kernels), pool_(pool),
      queries_per_item_(std::max<int32_t>(1, kQueriesPerItem / group_size)) {
  scratch_size_ = kernels.scratch_floats(queries_per_item_ * group_size, head_dim);
  scratch_.reset(new float[scratch_size_ * pool.num_threads()]);
}

void Attention::cut(const Step &step, int32_t num_kv_heads, int32_t begin, int32_t end,
                    std::vector<Item> &items) const {
  items.clear();
  for (int32_t row = 0; row < step.num_rows; ++row) {
    const int32_t row_begin = std::max<int32_t>(begin, step.query_starts[row]);
    const int32_t row_end = std::min<int32_t>(end, step.query_starts[row + 1]);
    for (int32_t first = row_begin; first < row_end; first += queries_per_item_)
      for (int32_t head = 0; head < num_kv_heads; ++head)
        items.push_back({row, first, std::min(queries_per_item_, row_end - first), head});
  }
}

void Attention::run(const Pages &pages, const Step &step, const std::vector<Item> &items,
                    const Queries &queries, int32_t begin) {
  auto attend = [&](int32_t index, int32_t thread) {
    const Item &item = items[index];
    Queries mine = queries;
    mine.query += (item.first_token - begin) * queries.query_stride;
    mine.output += (item.first_token - begin) * queries.output_stride;
    mine.block_table = step.block_tables + item.row * step.table_width;
    mine.first_position = static_cast<int32_t>(step.positions[item.first_token]);
    mine.num_tokens = item.num_tokens;
    mine.kv_head = item.kv_head;
    kernels_.attend(pages, mine, scratch_.get() + thread * scratch_size_);
  };
  pool_.each(static_cast<int32_t>(items.size()), attend);
}

} // namespace pagewire
