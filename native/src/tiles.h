// How a step's queries are cut into tiles, and their keys into pieces.
#pragma once

#include <algorithm>

#include "pages.h"
#include "softmax.h"

namespace camshaft {

constexpr int64_t kPiece = 4 * kBlock;  // keys
constexpr int64_t kTileRows = 96;
constexpr int64_t kMostRows = 6;  // that fit in registers, with 64 columns
constexpr int64_t kSplitTokens = 64;  // steps with more have tiles enough
constexpr size_t kSplitBytes = size_t{64} << 20;

struct AttendArguments {
  const void* q;           // [T, H, D], heads contiguous
  void* out;               // [T, H, Dv], heads contiguous
  float* lse;              // [T, H], or null
  const float* sinks;      // [H], or null
  const void* query_start; // [B + 1]
  const void* context;     // [B]
  const int32_t* table;    // [B, table_pages]
  Pages pages;
  int64_t tokens, requests, table_pages;
  int64_t q_stride, out_stride, lse_stride, table_stride;  // elements from token to token
  int32_t type, start_bytes, context_bytes;
  int32_t heads, head_dim, value_dim, window, causal;
  float scale, soft_cap;
};

inline int64_t integer(const void* from, int32_t bytes, int64_t at) {
  return bytes == 8 ? static_cast<const int64_t*>(from)[at] : static_cast<const int32_t*>(from)[at];
}

inline size_t padded(int64_t bytes) { return (static_cast<size_t>(bytes) + 63) / 64 * 64; }

// What follows from the arguments' sizes alone.
struct Sizes {
  int64_t group, tile_tokens, tile_rows, width, record, pieces;
  size_t q, weights, keys, values, records, plain, rank, split;

  Sizes(const AttendArguments& a, int64_t element) {
    const int64_t per = 4 / element;
    group = a.heads / a.pages.kv_heads;
    tile_tokens = std::max<int64_t>(1, kTileRows / group);
    tile_rows = tile_tokens * group;
    width = (a.value_dim + 16 * per - 1) / (16 * per) * (16 * per);
    record = Record::floats(width);
    pieces = (a.table_pages * a.pages.page_tokens + kPiece - 1) / kPiece;
    q = padded(tile_rows * a.head_dim * element);
    weights = padded(kMostRows * kBlock * element);
    keys = padded(a.head_dim * kBlock * element);
    values = padded(kBlock * width * element);
    records = padded(tile_rows * record * 4);
    plain = a.pages.form == kPlain ? 0 : padded(kBlock * (a.head_dim + a.value_dim) * element);
    rank = q + weights + keys + values + 2 * records + plain + 2 * padded(sizeof(BlockRows));
    split = padded(a.tokens * a.heads * pieces * record * 4);
    if (a.tokens > kSplitTokens || split > kSplitBytes) split = 0;
  }
};

// Neighbouring query tokens of a request.
struct Tile {
  int64_t request, token, count;  // `token` counts from the step's first one
  int64_t place;                  // of that token in the sequence
  int64_t keys;                   // of the request

  // The keys that token `at` of the tile sees are `first` to `end - 1`.
  int64_t first(const AttendArguments& a, int64_t at) const {
    return a.window ? std::max<int64_t>(0, place + at - a.window + 1) : 0;
  }
  int64_t end(const AttendArguments& a, int64_t at) const {
    return a.causal ? std::min(keys, place + at + 1) : keys;
  }
  int64_t first_piece(const AttendArguments& a) const { return first(a, 0) / kPiece; }
  int64_t pieces(const AttendArguments& a) const {
    const int64_t last = (end(a, count - 1) + kPiece - 1) / kPiece;
    return std::max<int64_t>(1, last - first_piece(a));
  }
};

// Tiles from the last one on: those of prompts come last in a step and have the most to do.
class Tiles {
 public:
  Tiles(const AttendArguments& a, int64_t tokens) : a_(a), tokens_(tokens), request_(a.requests) {}

  bool next(Tile& tile) {
    while (left_ == 0) {
      if (--request_ < 0) return false;
      start_ = integer(a_.query_start, a_.start_bytes, request_);
      left_ = integer(a_.query_start, a_.start_bytes, request_ + 1) - start_;
      context_ = integer(a_.context, a_.context_bytes, request_);
      keys_ = std::min(context_ + left_, a_.table_pages * a_.pages.page_tokens);
    }
    const int64_t at = (left_ - 1) / tokens_ * tokens_;
    tile = {request_, start_ + at, left_ - at, context_ + at, keys_};
    left_ = at;
    return true;
  }

 private:
  const AttendArguments& a_;
  int64_t tokens_, request_, start_ = 0, left_ = 0, context_ = 0, keys_ = 0;
};

// How the step's work is cut into items.
struct Cut {
  int64_t items = 0;
  bool by_piece = false;

  Cut(const AttendArguments& a, const Sizes& sizes, int ranks) {
    int64_t tiles = 0, pieces = 0, most = 0;
    Tile tile;
    for (Tiles all(a, sizes.tile_tokens); all.next(tile);) {
      const int64_t count = tile.pieces(a);
      ++tiles, pieces += count, most = std::max(most, count);
    }
    // a rank must not be left alone with a tile for longer than half of what each has to do
    by_piece = sizes.split && ranks > 1 && most > 1 && 2 * ranks * most > a.pages.kv_heads * pieces;
    items = a.pages.kv_heads * (by_piece ? pieces : tiles);
  }
};

}  // namespace camshaft
