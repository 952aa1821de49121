// Activations rounded to 8 signed bits, a group of 16, 32 or 64 with one scale.
#pragma once

#include <cmath>

#include "packed.h"

namespace camshaft {

constexpr float kGreatest = 3.4e38f;  // that is taken as finite

// What is known of a group, for products with weights whose groups have shifts.
struct ShiftedStep {
  float scale, sum;  // sum is scale times the sum of the rounded ones

  static __m128 second(__m128 scale, __m128i sum) {
    return _mm_mul_ps(scale, _mm_cvtepi32_ps(sum));
  }
};

// The same for weights that are signed quants with 128 added.
struct OffsetStep {
  float scale;
  int32_t start;  // of the sum of products, so that the 128 go

  static __m128 second(__m128, __m128i sum) {
    return _mm_castsi128_ps(_mm_sub_epi32(_mm_setzero_si128(), _mm_slli_epi32(sum, 7)));
  }
};

template <class Step>
struct Activations {
  int8_t* values;  // [rows, inputs]
  Step* steps;     // [rows, groups]
};

// Round a group of 16 * `Vectors` numbers. One that is not finite makes the scale NaN, and so the
// row of the result, as it would be in floating point.
template <int Vectors, class Step>
inline void round_group(const __m512* x, int8_t* values, Step* step) {
  __m512 most = _mm512_setzero_ps();
  __mmask16 odd = 0;
  for (int at = 0; at < Vectors; ++at) {
    most = _mm512_max_ps(most, _mm512_abs_ps(x[at]));
    odd |= _mm512_cmp_ps_mask(x[at], x[at], _CMP_UNORD_Q);
  }
  const float greatest = _mm512_reduce_max_ps(most);
  const bool bad = odd || greatest > kGreatest;
  const __m512 inverse = _mm512_set1_ps(greatest > 0 && !bad ? 127.f / greatest : 0.f);
  __m512i total = _mm512_setzero_si512();
  for (int at = 0; at < Vectors; ++at, values += kLanes) {
    const __m512i quants = _mm512_cvtps_epi32(_mm512_mul_ps(x[at], inverse));
    total = _mm512_add_epi32(total, quants);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values), _mm512_cvtsepi32_epi8(quants));
  }
  const __m128 scale = _mm_set1_ps(bad ? NAN : greatest / 127.f);
  const __m128 second =
      Step::second(scale, _mm_set1_epi32(bad ? 0 : _mm512_reduce_add_epi32(total)));
  _mm_storel_pi(reinterpret_cast<__m64*>(step), _mm_unpacklo_ps(scale, second));
}

// Round 128 numbers, four groups of 32 or two of 64, for much less than four or two times as much.
template <int Vectors, class Step>
inline void round_groups(const __m512 (&x)[8], int8_t* values, Step* steps) {
  constexpr bool kPairs = Vectors == 4;
  __m512 most[4];
  __mmask16 odd = 0;
#pragma GCC unroll 4
  for (int at = 0; at < 4; ++at) {
    most[at] = _mm512_max_ps(_mm512_abs_ps(x[2 * at]), _mm512_abs_ps(x[2 * at + 1]));
    odd |= _mm512_cmp_ps_mask(x[2 * at], x[2 * at + 1], _CMP_UNORD_Q);
  }
  __m512 all = greatest_of_four(most[0], most[1], most[2], most[3]);
  if (odd | _mm512_cmp_ps_mask(all, _mm512_set1_ps(kGreatest), _CMP_GT_OQ)) {
    for (int at = 0; at < 8; at += Vectors, values += Vectors * kLanes)
      round_group<Vectors>(x + at, values, steps++);
    return;
  }
  if (kPairs) all = _mm512_max_ps(all, _mm512_permute_ps(all, _MM_SHUFFLE(2, 3, 0, 1)));
  const __mmask16 some = _mm512_cmp_ps_mask(all, _mm512_setzero_ps(), _CMP_GT_OQ);
  const __m512 inverse = _mm512_maskz_div_ps(some, _mm512_set1_ps(127.f), all);
  __m512i quants[8];
#pragma GCC unroll 8
  for (int at = 0; at < 8; ++at) {
    const __m512 factor = _mm512_permutexvar_ps(_mm512_set1_epi32(at / 2), inverse);
    quants[at] = _mm512_cvtps_epi32(_mm512_mul_ps(x[at], factor));
  }
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512 fours[2];  // sums of four: two of each of two groups in 128 bits
#pragma GCC unroll 2
  for (int at = 0; at < 2; ++at) {
    const __m512i* four = quants + 4 * at;
    const __m512i mixed = _mm512_packs_epi16(_mm512_packs_epi32(four[0], four[1]),
                                             _mm512_packs_epi32(four[2], four[3]));
    _mm512_storeu_si512(values + 64 * at, _mm512_permutexvar_epi32(order, mixed));
    fours[at] = _mm512_castsi512_ps(
        _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), mixed));
  }
  __m512i sums = _mm512_add_epi32(
      _mm512_castps_si512(_mm512_shuffle_ps(fours[0], fours[1], _MM_SHUFFLE(2, 0, 2, 0))),
      _mm512_castps_si512(_mm512_shuffle_ps(fours[0], fours[1], _MM_SHUFFLE(3, 1, 3, 1))));
  sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4(sums, sums, 0x4e));
  sums = _mm512_add_epi32(sums, _mm512_shuffle_i32x4(sums, sums, 0xb1));
  if (kPairs) sums = _mm512_add_epi32(sums, _mm512_shuffle_epi32(sums, _MM_PERM_CDAB));
  const __m128 scale = _mm_div_ps(_mm512_castps512_ps128(all), _mm_set1_ps(127.f));
  const __m128 second = Step::second(scale, _mm512_castsi512_si128(sums));
  const __m128 low = _mm_unpacklo_ps(scale, second), high = _mm_unpackhi_ps(scale, second);
  _mm_storeu_ps(reinterpret_cast<float*>(steps), kPairs ? _mm_movelh_ps(low, high) : low);
  if (!kPairs) _mm_storeu_ps(reinterpret_cast<float*>(steps + 2), high);
}

// Round a row, in groups of 16 * `Vectors`.
template <int Vectors, class T, class Step>
void round_row(const T* x, int64_t inputs, int8_t* values, Step* steps) {
  constexpr int64_t kGroup = Vectors * kLanes, kMany = 8 * kLanes;
  int64_t at = 0;
  if constexpr (Vectors > 1)
    for (; at + kMany <= inputs; at += kMany, steps += 8 / Vectors) {
      __m512 some[8];
#pragma GCC unroll 8
      for (int one = 0; one < 8; ++one) some[one] = load(x + at + one * kLanes);
      round_groups<Vectors>(some, values + at, steps);
    }
  for (; at < inputs; at += kGroup, ++steps) {
    __m512 some[Vectors];
    for (int one = 0; one < Vectors; ++one) some[one] = load(x + at + one * kLanes);
    round_group<Vectors>(some, values + at, steps);
  }
}

}  // namespace camshaft
