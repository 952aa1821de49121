// Softmax in powers of two, block by block (Milakov and Gimelshein, arXiv 1805.02867).
#pragma once

#include "vectors.h"

namespace camshaft {

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;
constexpr float kLeast = -3e38f;  // below every score, and finite: so are differences

// 2 to the power of x, relative error below 2e-7, and 1 to the bit for 0. Half the work of
// `exponential`, which is much where heads are small.
inline __m512 power_of_two(__m512 x) {
  const __m512 rest = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 sum = _mm512_set1_ps(0.0018671304f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0090170296f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.0557999136f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.2401644500f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.6931513118f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(sum, x);  // by 2 to the power of x rounded down
}

// The hyperbolic tangent, absolute error below 1e-6.
inline __m512 tangent(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.f);
  const __m512 power = power_of_two(_mm512_mul_ps(x, _mm512_set1_ps(2 * kLog2E)));
  return _mm512_fnmadd_ps(_mm512_set1_ps(2.f), _mm512_div_ps(one, _mm512_add_ps(power, one)), one);
}

// The same for weights: with bfloat16 they keep 8 bits, so a relative error of 1e-4 does. 0 for
// what is hidden, at minus infinity.
template <class T>
inline __m512 weight_of(__m512 x) {
  return power_of_two(x);
}

template <>
inline __m512 weight_of<Bfloat16>(__m512 x) {
  const __m512 shift = _mm512_set1_ps(12582912.f);  // behind it a float has no bits below the point
  x = _mm512_max_ps(_mm512_set1_ps(-127.f), x);  // in this order NaN stays NaN
  const __m512 whole = _mm512_add_ps(x, shift);
  const __m512 rest = _mm512_sub_ps(x, _mm512_sub_ps(whole, shift));
  __m512 sum = _mm512_set1_ps(0.0550089320f);
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.2422109599f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(0.6932829269f));
  sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(1.f));
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(whole), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(sum), exponent));
}

// Scores may be greater than what weights are counted from by this much: a weight is below 256 then.
constexpr float kHeadroom = 8.f;

// What is known of a row after some keys: 16 sums of weights, then what they are counted from, the
// greatest score or a little less, in units of log 2, behind the weighted values.
class Record {
 public:
  Record(float* at, int64_t width) : at_(at), width_(width) {}

  static int64_t floats(int64_t width) { return width + 32; }

  float* values() const { return at_; }
  __m512 sums() const { return _mm512_loadu_ps(at_ + width_); }
  __m512 most() const { return _mm512_set1_ps(base()); }
  float base() const { return at_[width_ + 16]; }

  void set_sums(__m512 sums) const { _mm512_storeu_ps(at_ + width_, sums); }
  void set_base(float base) const { at_[width_ + 16] = base; }
  void set(__m512 sums, __m512 most) const { set_sums(sums), set_base(_mm512_cvtss_f32(most)); }

  void clear() const {
    for (int64_t at = 0; at < width_; at += 16) _mm512_storeu_ps(at_ + at, _mm512_setzero_ps());
    set(_mm512_setzero_ps(), _mm512_set1_ps(kLeast));
  }

  // Take in what is known of other keys.
  void merge(const Record& other) const {
    const __m512 most = _mm512_max_ps(this->most(), other.most());
    const __m512 mine = power_of_two(_mm512_sub_ps(this->most(), most));
    const __m512 its = power_of_two(_mm512_sub_ps(other.most(), most));
    auto join = [&](__m512 a, __m512 b) { return _mm512_fmadd_ps(b, its, _mm512_mul_ps(a, mine)); };
    for (int64_t at = 0; at < width_; at += 16)
      _mm512_storeu_ps(at_ + at, join(_mm512_loadu_ps(at_ + at), _mm512_loadu_ps(other.at_ + at)));
    set(join(sums(), other.sums()), most);
  }

 private:
  float* at_;
  int64_t width_;
};

}  // namespace camshaft
