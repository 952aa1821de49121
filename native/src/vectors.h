// Sixteen floats at a time, from and to the element types of tensors.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "ops.h"

namespace camshaft {

struct Bfloat16 {
  uint16_t bits;
};

inline __m512 load(const float* at) { return _mm512_loadu_ps(at); }

inline __m512 load(const Bfloat16* at) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m512 load(const float* at, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, at); }

inline __m512 load(const Bfloat16* at, __mmask16 mask) {
  __m256i half = _mm256_maskz_loadu_epi16(mask, at);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// Round to nearest, ties to even, as torch does; NaN stays NaN.
inline __m256i rounded(__m512 value) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(value));
#else
  __m512i bits = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  up = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
#endif
}

inline void store(float* at, __m512 value) { _mm512_storeu_ps(at, value); }

inline void store(Bfloat16* at, __m512 value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), rounded(value));
}

inline void store(float* at, __m512 value, __mmask16 mask) { _mm512_mask_storeu_ps(at, mask, value); }

inline void store(Bfloat16* at, __m512 value, __mmask16 mask) {
  _mm256_mask_storeu_epi16(at, mask, rounded(value));
}

// The first `count` lanes, at most 16.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << count) - 1);
}

// A value as it is after being stored.
inline __m512 as_stored(const float*, __m512 value) { return value; }

inline __m512 as_stored(const Bfloat16*, __m512 value) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded(value)), 16));
}

// e to the power of x, relative error below 2e-7 + 6e-8 |x|; close to 0 below -87.
inline __m512 exponential(__m512 x) {
  const __m512 shift = _mm512_set1_ps(12582912.f);  // behind it a float has no bits below the point
  x = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f));
  x = _mm512_max_ps(_mm512_min_ps(x, _mm512_set1_ps(127.f)), _mm512_set1_ps(-126.f));
  const __m512 whole = _mm512_add_ps(x, shift);
  const __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(whole, shift));
  __m512 sum = _mm512_set1_ps(0.0013264727f);
  for (float factor : {0.0096715127f, 0.0555073374f, 0.2402224209f, 0.6931469776f, 1.f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(whole), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
}

// 1 / x for a normal number, relative error below 1e-7.
inline __m512 inverse(__m512 x) {
  const __m512 near = _mm512_rcp14_ps(x);
  return _mm512_mul_ps(near, _mm512_fnmadd_ps(x, near, _mm512_set1_ps(2.f)));
}

// Combine a to d, each of 16 lanes, into four numbers: in the end every 128 bits hold them.
template <class Join>
inline __m512 four_together(__m512 a, __m512 b, __m512 c, __m512 d, Join&& join) {
  auto pairs = [&](__m512 first, __m512 last) {
    return _mm512_castps_pd(
        join(_mm512_unpacklo_ps(first, last), _mm512_unpackhi_ps(first, last)));
  };
  const __m512d ab = pairs(a, b), cd = pairs(c, d);
  __m512 all = join(_mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)));
  all = join(all, _mm512_shuffle_f32x4(all, all, 0x4e));
  return join(all, _mm512_shuffle_f32x4(all, all, 0xb1));
}

// The greatest lane of each of them, so laid out.
inline __m512 greatest_of_four(__m512 a, __m512 b, __m512 c, __m512 d) {
  return four_together(a, b, c, d, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); });
}

template <class Visit>
inline void by_type(int32_t type, Visit&& visit) {
  if (type == kBfloat16)
    visit(Bfloat16{});
  else
    visit(float{});
}

}  // namespace camshaft
