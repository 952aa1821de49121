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

// e to the power of x, relative error below 2e-7; 0 below -87.
inline __m512 exponential(__m512 x) {
  const __m512 lowest = _mm512_set1_ps(-87.3f);
  __mmask16 tiny = _mm512_cmp_ps_mask(x, lowest, _CMP_LT_OQ);
  x = _mm512_min_ps(x, _mm512_set1_ps(88.7f));
  __m512 whole = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                      _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(0.693359375f), x);
  rest = _mm512_fnmadd_ps(whole, _mm512_set1_ps(-2.12194440e-4f), rest);
  __m512 sum = _mm512_set1_ps(1.f / 5040);
  for (float factor : {1.f / 720, 1.f / 120, 1.f / 24, 1.f / 6, 0.5f, 1.f, 1.f})
    sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(factor));
  return _mm512_maskz_scalef_ps(static_cast<__mmask16>(~tiny), sum, whole);
}

template <class Visit>
inline void by_type(int32_t type, Visit&& visit) {
  if (type == kBfloat16)
    visit(Bfloat16{});
  else
    visit(float{});
}

}  // namespace camshaft
