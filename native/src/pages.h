// Keys and values in pages, heads first: where they lie, and how a block of keys is read.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace camshaft {

// As in native/attention.py. Codes of 8 bits have a float16 scale for each token and head.
enum Form : int32_t { kPlain = 0, kInt8 = 1, kFloat8 = 2 };

struct Pages {
  std::byte* keys;         // [N, G, P, D], of the activations' type or codes
  std::byte* values;       // [N, G, P, Dv]
  uint16_t* key_scales;    // [N, G, P] float16; null with kPlain
  uint16_t* value_scales;
  int32_t page_tokens, kv_heads, form, unused;

  // The place of a token and head among all.
  int64_t row(int64_t page, int64_t head, int64_t offset) const {
    return (page * kv_heads + head) * page_tokens + offset;
  }
};

constexpr int64_t kBlock = 64;  // keys that are read and weighted together
constexpr int64_t kWidest = 1024;

// What is read in place of keys that a block has but nobody sees: 0 * NaN would be NaN.
alignas(64) inline constexpr std::byte kNothing[kWidest * 4] = {};

// Where the rows of a block lie, and their scales if there are any.
struct BlockRows {
  const std::byte* keys[kBlock];
  const std::byte* values[kBlock];
  alignas(64) float key_scales[kBlock];
  alignas(64) float value_scales[kBlock];
};

inline void load_scales(const uint16_t* from, int64_t count, float* to) {
  for (int64_t at = 0; at < count; at += 16) {
    const __mmask16 mask = first_lanes(count - at);
    __m256i halves = _mm256_maskz_loadu_epi16(mask, from + at);
    _mm512_mask_storeu_ps(to + at, mask, _mm512_cvtph_ps(halves));
  }
}

// Find the block's keys `first` to `end - 1`, counted from its `start`; the others are nothing.
inline void find_rows(const Pages& pages, const int32_t* table, int64_t head, int64_t start,
                      int64_t first, int64_t end, int64_t key_bytes, int64_t value_bytes,
                      BlockRows& rows) {
  const bool scaled = pages.form != kPlain;
  auto leave = [&](int64_t from, int64_t to) {
    for (int64_t at = from; at < to; ++at) rows.keys[at] = rows.values[at] = kNothing;
    if (scaled && from < to) {
      std::fill(rows.key_scales + from, rows.key_scales + to, 0.f);
      std::fill(rows.value_scales + from, rows.value_scales + to, 0.f);
    }
  };
  leave(0, first);
  for (int64_t at = first; at < end;) {
    const int64_t page = (start + at) / pages.page_tokens;
    const int64_t offset = start + at - page * pages.page_tokens;
    const int64_t count = std::min(end - at, pages.page_tokens - offset);
    const int64_t row = pages.row(table[page], head, offset);
    for (int64_t one = 0; one < count; ++one) {
      rows.keys[at + one] = pages.keys + (row + one) * key_bytes;
      rows.values[at + one] = pages.values + (row + one) * value_bytes;
    }
    if (scaled) {
      load_scales(pages.key_scales + row, count, rows.key_scales + at);
      load_scales(pages.value_scales + row, count, rows.value_scales + at);
    }
    at += count;
  }
  leave(end, kBlock);
}

}  // namespace camshaft
