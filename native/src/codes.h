// Heads as codes of 8 bits with a float16 scale, as plugins/quant stores them.
#pragma once

#include <cmath>

#include "pages.h"

namespace camshaft {

// 2 to the power of 120: by how much the exponents of float and e4m3 differ.
constexpr float kFloat8Offset = 1.329227995784916e36f;

inline __m512 decoded(int32_t form, const std::byte* codes) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m512i wide = _mm512_cvtepi8_epi32(bytes);
  if (form == kInt8) return _mm512_cvtepi32_ps(wide);
  const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(wide, 31), 31);
  const __m512i rest = _mm512_slli_epi32(_mm512_and_si512(wide, _mm512_set1_epi32(0x7f)), 20);
  return _mm512_mul_ps(_mm512_castsi512_ps(_mm512_or_si512(sign, rest)),
                       _mm512_set1_ps(kFloat8Offset));
}

inline __m128i int8_codes(__m512 x) {
  const __m512 most = _mm512_set1_ps(127.f);
  x = _mm512_roundscale_ps(_mm512_add_ps(x, _mm512_set1_ps(0.5f)),
                           _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  x = _mm512_max_ps(_mm512_min_ps(x, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
}

// Rounded to nearest, ties to even.
inline __m128i float8_codes(__m512 x) {
  const __m512 most = _mm512_set1_ps(448.f);
  x = _mm512_max_ps(_mm512_min_ps(x, most), _mm512_sub_ps(_mm512_setzero_ps(), most));
  const __m512i bits =
      _mm512_castps_si512(_mm512_mul_ps(x, _mm512_set1_ps(1.f / kFloat8Offset)));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 20), _mm512_set1_epi32(1));
  const __m512i sign = _mm512_srli_epi32(_mm512_and_si512(bits, _mm512_set1_epi32(1 << 31)), 24);
  const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  const __m512i up = _mm512_add_epi32(size, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7ffff)));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(sign, _mm512_srli_epi32(up, 20)));
}

// Store a head; returns its scale. Where that is not finite the codes do not matter.
template <class T>
uint16_t encode(int32_t form, const T* from, int64_t width, std::byte* codes) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  __m512 most = _mm512_setzero_ps();
  __mmask16 nan = 0;
  for (int64_t at = 0; at < width; at += 16) {
    const __m512 value = load(from + at);
    nan |= _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    most = _mm512_max_ps(most, _mm512_and_ps(value, _mm512_castsi512_ps(mask)));
  }
  const float largest = nan ? NAN : _mm512_reduce_max_ps(most);
  const uint16_t scale = _cvtss_sh(largest / (form == kInt8 ? 127.f : 448.f), 0);
  const float whole = _cvtsh_ss(scale);
  const __m512 divisor = _mm512_set1_ps(whole == 0.f ? 1.f : whole);
  for (int64_t at = 0; at < width; at += 16) {
    const __m512 value = _mm512_div_ps(load(from + at), divisor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + at),
                     form == kInt8 ? int8_codes(value) : float8_codes(value));
  }
  return scale;
}

}  // namespace camshaft
