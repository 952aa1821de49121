// Weights of 16 outputs brought to 8 bits with one scale a row, for products of many rows.
//
// A scale for each group costs more than a quarter of a product's time. With one for a whole row of
// the weight only the activations' scales are left. To round packed weights anew costs as much as
// some 15 rows; the error is below a 250th of the row's greatest weight.
#pragma once

#include <algorithm>

#include "rounded.h"

namespace camshaft {

struct Channels {
  uint8_t* quants;  // [inputs / 4, 16, 4], 128 added
  float* scales;    // [16]
};

// The greatest size that any weight of each of 16 rows can have.
template <class F>
__m512 bound(const std::byte* block, int64_t groups) {
  const __m512 last = _mm512_set1_ps((1 << F::kBits) - 1);
  __m512 most = _mm512_setzero_ps();
  for (int64_t group = 0; group < groups; ++group, block += F::kGroupBytes) {
    const Heads<F> heads(block);
    most = _mm512_max_ps(most, _mm512_abs_ps(heads.shift));
    most = _mm512_max_ps(most, _mm512_abs_ps(_mm512_fmadd_ps(last, heads.scale, heads.shift)));
  }
  return most;
}

// Bytes of `quant * factor + offset`, rounded, in 16 bits: the error beside rounding is below a 30th.
// Quants of 4 bits are exact, factors and offsets have 8 bits behind the point; quants of 8 bits
// count from 128, where no factor is above 1, factors have 15 bits and offsets 7.
template <int Bits>
struct Requantizer {
  static constexpr int kPoint = Bits == 4 ? 8 : 7;
  __m512i factor, offset;  // twice in each lane

  Requantizer(__m512 by, __m512 plus) {
    if constexpr (Bits == 8) plus = _mm512_fmadd_ps(by, _mm512_set1_ps(128.f), plus);
    factor = twice(_mm512_mul_ps(by, _mm512_set1_ps(Bits == 4 ? 256.f : 32768.f)));
    offset = twice(_mm512_mul_ps(_mm512_add_ps(plus, _mm512_set1_ps(0.5f)),
                                 _mm512_set1_ps(1 << kPoint)));
  }

  static __m512i twice(__m512 x) {
    const __m512i low = _mm512_cvtps_epi32(x);
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0xffff)),
                           _mm512_slli_epi32(low, 16));
  }

  // Quants as 16 bits to bytes as 16 bits.
  __m512i operator()(__m512i quants) const {
    if constexpr (Bits == 4) {
      return _mm512_srli_epi16(_mm512_add_epi16(_mm512_mullo_epi16(quants, factor), offset), 8);
    } else {
      const __m512i from_128 = _mm512_sub_epi16(quants, _mm512_set1_epi16(128));
      const __m512i product = _mm512_mulhrs_epi16(_mm512_slli_epi16(from_128, 7), factor);
      return _mm512_srli_epi16(_mm512_add_epi16(product, offset), 7);
    }
  }

  __m512i bytes(__m512i quants) const {
    const __m512i even = (*this)(_mm512_and_si512(quants, _mm512_set1_epi16(255)));
    const __m512i odd = (*this)(_mm512_srli_epi16(quants, 8));
    return _mm512_or_si512(even, _mm512_slli_epi16(odd, 8));
  }
};

template <class F>
void to_channels(const std::byte* block, int64_t groups, const Channels& to) {
  const __m512 most = bound<F>(block, groups);
  const __mmask16 some = _mm512_cmp_ps_mask(most, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.f), most);
  _mm512_storeu_ps(to.scales, _mm512_mul_ps(most, _mm512_set1_ps(1.f / 127.f)));
  auto* quants = reinterpret_cast<__m512i*>(to.quants);
  for (int64_t group = 0; group < groups; ++group, block += F::kGroupBytes) {
    const Heads<F> heads(block);
    const Requantizer<F::kBits> rounded(
        _mm512_mul_ps(heads.scale, inverse),
        _mm512_fmadd_ps(heads.shift, inverse, _mm512_set1_ps(128.f)));
    __m512i unpacked[F::kVectors];
    unpack<F>(block, unpacked);
    for (int at = 0; at < F::kVectors; ++at)
      _mm512_store_si512(quants++, rounded.bytes(unpacked[at]));
  }
}

// `Rows` rows times 16 * `Vectors` outputs. By itself: what surrounds it must not take registers.
template <int Rows, int Vectors, int Group>
[[gnu::noinline]] void multiply(const Channels (&weights)[Vectors], int64_t inputs,
                                const int8_t* values, const OffsetStep* steps,
                                __m512 (&result)[Rows][Vectors]) {
  const int64_t groups = inputs / Group;
  __m512 sums[Rows][Vectors];
#pragma GCC unroll 8
  for (auto& row : sums)
#pragma GCC unroll 2
    for (__m512& sum : row) sum = _mm512_setzero_ps();
  for (int64_t group = 0; group < groups; ++group) {
    __m512i products[Rows][Vectors];
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row)
#pragma GCC unroll 2
      for (int at = 0; at < Vectors; ++at)
        products[row][at] = _mm512_set1_epi32(steps[row * groups + group].start);
    for (int64_t four = group * Group; four < (group + 1) * Group; four += 4) {
      __m512i quants[Vectors];
#pragma GCC unroll 2
      for (int at = 0; at < Vectors; ++at)
        quants[at] = _mm512_load_si512(weights[at].quants + four * kLanes);
#pragma GCC unroll 8
      for (int row = 0; row < Rows; ++row) {
        const __m512i one = four_of(values + row * inputs + four);
#pragma GCC unroll 2
        for (int at = 0; at < Vectors; ++at)
          products[row][at] = _mm512_dpbusd_epi32(products[row][at], quants[at], one);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
      const __m512 scale = _mm512_set1_ps(steps[row * groups + group].scale);
#pragma GCC unroll 2
      for (int at = 0; at < Vectors; ++at)
        sums[row][at] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products[row][at]), scale, sums[row][at]);
    }
  }
#pragma GCC unroll 2
  for (int at = 0; at < Vectors; ++at) {
    const __m512 scale = _mm512_loadu_ps(weights[at].scales);
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) result[row][at] = _mm512_mul_ps(sums[row][at], scale);
  }
}

}  // namespace camshaft
