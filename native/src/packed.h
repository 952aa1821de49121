// The form of packed weights: `scale * q + shift` with q of 4 or 8 bits, scale and shift shared by
// a group of 32 or 16 weights of a row (Q4_1's form; a signed quant is an unsigned one with a
// shift).
//
// Sixteen output rows lie side by side. Their weights of one group are 16 scales, 16 shifts and
// then vectors of 64 bytes in which a lane holds 4 neighbours along a row; with 4 bits the low
// halves are the group's first half, the high ones its last.
#pragma once

#include "vectors.h"

namespace camshaft {

constexpr int64_t kLanes = 16;

// How a weight is stored.
template <int GroupSize, int Bits, class ScaleType>
struct Form {
  using Scale = ScaleType;
  static constexpr int kBits = Bits;
  static constexpr int64_t kGroup = GroupSize;
  static constexpr int kVectors = GroupSize / 4;  // of unpacked quants
  static constexpr int64_t kHeadBytes = 2 * kLanes * static_cast<int64_t>(sizeof(Scale));
  static constexpr int64_t kGroupBytes = kHeadBytes + kLanes * GroupSize * Bits / 8;
};

template <class Visit>
void by_form(int32_t bits, int32_t group, int32_t wide, Visit&& visit) {
  if (group == 16) return visit(Form<16, 8, float>{});
  if (bits == 4 && wide) return visit(Form<32, 4, float>{});
  if (bits == 4) return visit(Form<32, 4, uint16_t>{});
  if (wide) return visit(Form<32, 8, float>{});
  visit(Form<32, 8, uint16_t>{});
}

inline __m512 scales_at(const float* at) { return _mm512_load_ps(at); }
inline __m512 scales_at(const uint16_t* at) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(at)));
}

// The scales and shifts of a group.
template <class F>
struct Heads {
  __m512 scale, shift;

  explicit Heads(const std::byte* group) {
    const auto* at = reinterpret_cast<const typename F::Scale*>(group);
    scale = scales_at(at), shift = scales_at(at + kLanes);
  }
};

template <class F>
inline void unpack(const std::byte* group, __m512i (&quants)[F::kVectors]) {
  const auto* vectors = reinterpret_cast<const __m512i*>(group + F::kHeadBytes);
  if constexpr (F::kBits == 8) {
    for (int at = 0; at < F::kVectors; ++at) quants[at] = _mm512_loadu_si512(vectors + at);
  } else {
    constexpr int kHalf = F::kVectors / 2;
    const __m512i mask = _mm512_set1_epi8(15);
    for (int at = 0; at < kHalf; ++at) {
      __m512i both = _mm512_loadu_si512(vectors + at);
      quants[at] = _mm512_and_si512(both, mask);
      quants[at + kHalf] = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
    }
  }
}

inline __m512i four_of(const int8_t* at) {
  int32_t four;
  std::memcpy(&four, at, 4);
  return _mm512_set1_epi32(four);
}

}  // namespace camshaft
