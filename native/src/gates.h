// Gates of feed-forward layers.
#pragma once

#include "vectors.h"

namespace camshaft {

enum Gate : int32_t { kSilu = 0, kGelu = 1 };

// An activated gate times what it lets pass: g / (1 + e^-z) * up; with z = g that is silu, with
// z = 2 sqrt(2 / pi) (g + 0.044715 g^3) gelu by tanh.
inline __m512 gated(__m512 g, __m512 up, int32_t gate) {
  __m512 z = g;
  if (gate == kGelu) {
    __m512 cube = _mm512_mul_ps(_mm512_mul_ps(g, g), g);
    z = _mm512_mul_ps(_mm512_fmadd_ps(cube, _mm512_set1_ps(0.044715f), g),
                      _mm512_set1_ps(1.5957691216f));
  }
  __m512 power = exponential(_mm512_sub_ps(_mm512_setzero_ps(), z));
  g = _mm512_mul_ps(g, inverse(_mm512_add_ps(power, _mm512_set1_ps(1.f))));
  return _mm512_mul_ps(g, up);
}

}  // namespace camshaft
