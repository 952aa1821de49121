// What comes between a layer's projection and its attention: norms of query and key heads, rotary
// embedding (Su et al., arXiv 2104.09864), and keys and values into their pages.
#include <cmath>

#include "codes.h"

namespace camshaft {

namespace {

struct RotateArguments {
  const void* qkv;             // [T, (H + G) * D + G * Dv]
  void* q;                     // [T, H, D], contiguous
  const float* cos;            // [positions, rotated / 2], or null
  const float* sin;            // the same
  const int64_t* positions;    // [T]
  const int64_t* write_page;   // [T]
  const int64_t* write_offset; // [T]
  const void* q_norm;          // [D], or null
  const void* k_norm;          // [D], or null
  Pages pages;
  int64_t tokens, qkv_stride;
  int32_t type, q_norm_type, k_norm_type;
  int32_t heads, head_dim, value_dim, rotated;
  float eps;
};

// Normalise a head; rounded once, as a norm by itself would.
template <class T>
void normalise(const T* from, T* to, int64_t width, const void* weight, int32_t type, float eps) {
  __m512 squares = _mm512_setzero_ps();
  for (int64_t at = 0; at < width; at += 16) {
    const __m512 value = load(from + at);
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(width);
  const __m512 factor = _mm512_set1_ps(1.f / std::sqrt(mean + eps));
  by_type(type, [&](auto kind) {
    const auto* weights = static_cast<const decltype(kind)*>(weight);
    for (int64_t at = 0; at < width; at += 16)
      store(to + at, _mm512_mul_ps(_mm512_mul_ps(load(from + at), factor), load(weights + at)));
  });
}

// Rotate the first `2 * half` elements of a head, first halves against second ones.
template <class T>
void rotate(const T* from, T* to, int64_t width, const float* cos, const float* sin,
            int64_t half) {
  for (int64_t at = 0; at < half; at += 16) {
    const __mmask16 mask = first_lanes(half - at);
    const __m512 a = load(from + at, mask), b = load(from + half + at, mask);
    const __m512 c = load(cos + at, mask), s = load(sin + at, mask);
    store(to + at, _mm512_fnmadd_ps(b, s, _mm512_mul_ps(a, c)), mask);
    store(to + half + at, _mm512_fmadd_ps(a, s, _mm512_mul_ps(b, c)), mask);
  }
  if (from != to && 2 * half < width)
    std::memcpy(to + 2 * half, from + 2 * half, static_cast<size_t>(width - 2 * half) * sizeof(T));
}

template <class T>
void put(const Pages& pages, int64_t row, const T* head, int64_t width, std::byte* field,
         uint16_t* scales) {
  if (pages.form == kPlain) {
    const size_t bytes = static_cast<size_t>(width) * sizeof(T);
    std::memcpy(field + row * static_cast<int64_t>(bytes), head, bytes);
  } else {
    scales[row] = encode(pages.form, head, width, field + row * width);
  }
}

template <class T>
void rotate_token(const RotateArguments& a, int64_t token) {
  const T* from = static_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const int64_t half = a.cos ? a.rotated / 2 : 0;
  const int64_t angle = a.cos ? a.positions[token] * half : 0;
  auto head = [&](const void* norm, int32_t type, T* to) {
    const T* plain = from;
    from += a.head_dim;
    if (norm) normalise(plain, to, a.head_dim, norm, type, a.eps), plain = to;
    rotate(plain, to, a.head_dim, a.cos + angle, a.sin + angle, half);
  };
  T* q = static_cast<T*>(a.q) + token * a.heads * a.head_dim;
  for (int64_t at = 0; at < a.heads; ++at) head(a.q_norm, a.q_norm_type, q + at * a.head_dim);
  const int64_t page = a.write_page[token], offset = a.write_offset[token];
  T plain[kWidest];
  for (int64_t at = 0; at < a.pages.kv_heads; ++at) {
    head(a.k_norm, a.k_norm_type, plain);
    put(a.pages, a.pages.row(page, at, offset), plain, a.head_dim, a.pages.keys,
        a.pages.key_scales);
  }
  for (int64_t at = 0; at < a.pages.kv_heads; ++at, from += a.value_dim)
    put(a.pages, a.pages.row(page, at, offset), from, a.value_dim, a.pages.values,
        a.pages.value_scales);
}

void run_rotate(Team& team, int rank, const void* arguments, const Room&) {
  const auto& a = *static_cast<const RotateArguments*>(arguments);
  by_type(a.type, [&](auto type) {
    team.deal_by_cost(rank, a.tokens, a.qkv_stride, [&](int64_t token) {
      rotate_token<decltype(type)>(a, token);
    });
  });
}

}  // namespace

const Operation kRotate{sizeof(RotateArguments), no_room, run_rotate};

}  // namespace camshaft
