// Small products of rows with columns that lie ready in vectors, and bringing them into that form.
//
// Elements are taken as dwords: one float, or two neighbouring bfloat16. A vector holds a dword of
// each of 16 columns, so that one multiply-add serves 16 columns with one or two elements. A sum is
// added up in the order of the dwords, whatever other rows and columns come along.
#pragma once

#include "vectors.h"

namespace camshaft {

constexpr int64_t kLanes = 16;

template <class T>
constexpr int64_t kPerDword = 4 / static_cast<int64_t>(sizeof(T));

template <class T>
inline __m512 multiply_add(__m512 sum, __m512i a, __m512i b);

template <>
inline __m512 multiply_add<float>(__m512 sum, __m512i a, __m512i b) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), sum);
}

template <>
inline __m512 multiply_add<Bfloat16>(__m512 sum, __m512i a, __m512i b) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  const __m512i odd = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  sum = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)),
                        _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), sum);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, odd)),
                         _mm512_castsi512_ps(_mm512_and_si512(b, odd)), sum);
#endif
}

// Add `Rows` rows times 16 * `Vectors` columns to `sums`. A row has `steps` dwords, `stride` from
// row to row; columns lie [steps, width] in dwords.
template <class T, int Rows, int Vectors>
inline void multiply(const int32_t* rows, int64_t stride, const int32_t* columns, int64_t width,
                     int64_t steps, __m512 (&sums)[Rows][Vectors]) {
  for (int64_t step = 0; step < steps; ++step, columns += width) {
    __m512i column[Vectors];
#pragma GCC unroll 4
    for (int at = 0; at < Vectors; ++at) column[at] = _mm512_loadu_si512(columns + at * kLanes);
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
      const __m512i one = _mm512_set1_epi32(rows[row * stride + step]);
#pragma GCC unroll 4
      for (int at = 0; at < Vectors; ++at)
        sums[row][at] = multiply_add<T>(sums[row][at], one, column[at]);
    }
  }
}

// Sixteen bytes, from `at` on, of rows 0, 4, 8 and 12.
inline __m512i four_pieces(const std::byte* const* rows, int64_t at) {
  auto piece = [&](int row) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + at));
  };
  __m512i all = _mm512_castsi128_si512(piece(0));
  all = _mm512_inserti32x4(all, piece(4), 1);
  all = _mm512_inserti32x4(all, piece(8), 2);
  return _mm512_inserti32x4(all, piece(12), 3);
}

// Four dwords of 16 rows, from byte `at` on, as four vectors with a dword of each row.
inline void turn(const std::byte* const* rows, int64_t at, __m512i (&columns)[4]) {
  const __m512i a = four_pieces(rows, at), b = four_pieces(rows + 1, at);
  const __m512i c = four_pieces(rows + 2, at), d = four_pieces(rows + 3, at);
  const __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
  const __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
  columns[0] = _mm512_unpacklo_epi64(ab, cd);
  columns[1] = _mm512_unpackhi_epi64(ab, cd);
  columns[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
  columns[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}

// Lanes of a row of values as `pair` leaves them: with bfloat16 a multiple of 32.
template <class T>
constexpr int64_t paired_width(int64_t width) {
  const int64_t piece = kLanes * kPerDword<T>;
  return (width + piece - 1) / piece * piece;
}

// Elements `at` and on of one row (float), or of two neighbours side by side (bfloat16), where the
// 32 elements stand in an order that `in_order` undoes. Nothing behind `width` is read.
template <class T>
inline void pair(const std::byte* const* rows, int64_t at, int64_t width,
                 __m512i (&columns)[kPerDword<T>]);

template <>
inline void pair<float>(const std::byte* const* rows, int64_t at, int64_t, __m512i (&columns)[1]) {
  columns[0] = _mm512_loadu_si512(rows[0] + at * 4);
}

template <>
inline void pair<Bfloat16>(const std::byte* const* rows, int64_t at, int64_t width,
                           __m512i (&columns)[2]) {
  const __mmask32 mask = width - at >= 32 ? 0xffffffffu : 0xffffu;
  const __m512i even = _mm512_maskz_loadu_epi16(mask, rows[0] + at * 2);
  const __m512i odd = _mm512_maskz_loadu_epi16(mask, rows[1] + at * 2);
  columns[0] = _mm512_unpacklo_epi16(even, odd);
  columns[1] = _mm512_unpackhi_epi16(even, odd);
}

// Into the second cache: the first one has too few fetches under way at a time.
inline void prefetch(const std::byte* at) { _mm_prefetch(at, _MM_HINT_T1); }

// The same products with columns as they lie in memory, for so few rows that to bring them into
// form first would cost more: `Rows` rows times 16 * `Vectors` rows of `columns`. What lies `ahead`
// is fetched meanwhile, a little with each step: pages are scattered, and processors do not guess
// where the next one is.
template <class T, int Rows, int Vectors>
inline void multiply_turned(const int32_t* rows, int64_t stride, const std::byte* const* columns,
                            const std::byte* const* ahead, int64_t steps,
                            __m512 (&sums)[Rows][Vectors]) {
#pragma GCC unroll 4
  for (int at = 0; at < Vectors; ++at)
    for (int64_t step = 0; step < steps; step += 4) {
      __m512i column[4];
      turn(columns + at * kLanes, step * 4, column);
#pragma GCC unroll 4
      for (int one = 0; one < 4; ++one)
        prefetch(ahead[at * kLanes + step % 16 + one] + step / 16 * 64);
#pragma GCC unroll 4
      for (int one = 0; one < 4; ++one)
#pragma GCC unroll 8
        for (int row = 0; row < Rows; ++row)
          sums[row][at] = multiply_add<T>(
              sums[row][at], _mm512_set1_epi32(rows[row * stride + step + one]), column[one]);
    }
}

// The same with columns from byte `at` on, of `steps` rows (float) or pairs of rows (bfloat16).
template <class T, int Rows, int Vectors>
inline void multiply_paired(const int32_t* rows, int64_t stride, const std::byte* const* columns,
                            const std::byte* const* ahead, int64_t first, int64_t width,
                            int64_t steps,
                            __m512 (&sums)[Rows][Vectors]) {
  constexpr int kPer = static_cast<int>(kPerDword<T>);
  for (int64_t step = 0; step < steps; ++step, columns += kPer, ahead += kPer) {
    __m512i column[Vectors / kPer][kPer];
#pragma GCC unroll 4
    for (int at = 0; at < Vectors / kPer; ++at) {
      pair<T>(columns, first + at * kPer * kLanes, width, column[at]);
#pragma GCC unroll 2
      for (int one = 0; one < kPer; ++one)
        prefetch(ahead[one] + (first + at * kPer * kLanes) * static_cast<int64_t>(sizeof(T)));
    }
#pragma GCC unroll 8
    for (int row = 0; row < Rows; ++row) {
      const __m512i one = _mm512_set1_epi32(rows[row * stride + step]);
#pragma GCC unroll 4
      for (int at = 0; at < Vectors; ++at)
        sums[row][at] = multiply_add<T>(sums[row][at], one, column[at / kPer][at % kPer]);
    }
  }
}

// Sums over columns of `pair`, brought back into the order of the elements.
template <class T>
inline void in_order(__m512 (&sums)[kPerDword<T>]);

template <>
inline void in_order<float>(__m512 (&)[1]) {}

template <>
inline void in_order<Bfloat16>(__m512 (&sums)[2]) {
  const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512 low = sums[0], high = sums[1];
  sums[0] = _mm512_permutex2var_ps(low, first, high);
  sums[1] = _mm512_permutex2var_ps(low, last, high);
}

}  // namespace camshaft
