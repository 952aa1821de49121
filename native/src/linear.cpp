// Linears whose weights stay packed in 4 or 8 bits; activations are rounded to 8.
//
// A weight is `scale * q + shift` with q of 4 or 8 bits, scale and shift shared by a group of 32 or
// 16 weights of a row (Q4_1's form; a signed quant is an unsigned one with a shift). Activations are
// rounded to 8 signed bits with a scale for each group, so that its products add up in integers:
//   sum w * x = scale * step * sum(q * a) + shift * step * sum(a)
// Sixteen output rows lie side by side. Their weights of one group are 16 scales, 16 shifts and
// then vectors of 64 bytes in which a lane holds 4 neighbours along a row; with 4 bits the low
// halves are the group's first half, the high ones its last.
//
// A row of the result is summed in the same order whatever the number of rows: it has the same bits
// in any batch.
#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace camshaft {

namespace {

constexpr int64_t kLanes = 16;
constexpr int kMostRows = 12;
constexpr int64_t kCyclesOfShare = 30'000;

struct LinearArguments {
  const void* x;          // [rows, inputs]
  void* out;              // [rows, outputs]
  const std::byte* weight;
  const float* bias;      // [outputs padded], or null
  int64_t rows, inputs, outputs;
  int64_t x_stride, out_stride;  // elements from row to row
  int32_t x_type, out_type;
  int32_t bits;           // 4 or 8
  int32_t group;          // 32, or 16 with 8 bits and wide scales
  int32_t wide_scales;    // float32 scales and shifts, else float16
  int32_t unused;
};

struct Step {
  float scale, sum;  // of a group of activations; sum is scale times the sum of the rounded ones
};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t groups_of(const LinearArguments& a) { return static_cast<size_t>(a.inputs / a.group); }

struct Activations {
  int8_t* values;  // [rows, inputs]
  Step* steps;     // [rows, groups]
};

Activations place(const LinearArguments& a, std::byte* at) {
  size_t values = padded(static_cast<size_t>(a.rows * a.inputs));
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<Step*>(at + values)};
}

// Few rows are rounded by every rank for itself: that is faster than to wait for each other.
bool is_small(const LinearArguments& a) { return a.rows * a.inputs <= 4096; }

size_t bytes_of(const LinearArguments& a) {
  return padded(static_cast<size_t>(a.rows * a.inputs)) +
         padded(static_cast<size_t>(a.rows) * groups_of(a) * sizeof(Step));
}

Need linear_need(const void* arguments) {
  const auto& a = *static_cast<const LinearArguments*>(arguments);
  return is_small(a) ? Need{0, bytes_of(a)} : Need{bytes_of(a), 0};
}

// Step and rounded values of up to 32 numbers; a row with a value that is not finite becomes NaN, as
// it would in floating point.
inline Step round_group(__m512 low, __m512 high, int8_t* first, int8_t* last) {
  const __m512 sign = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fffffff));
  const float most = _mm512_reduce_max_ps(
      _mm512_max_ps(_mm512_and_ps(low, sign), _mm512_and_ps(high, sign)));
  if (_mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q) || most > 3.4e38f) return {NAN, NAN};
  const float scale = most / 127.f;
  const __m512 inverse = _mm512_set1_ps(most > 0 ? 127.f / most : 0.f);
  const __m512i front = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
  const __m512i back = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(first), _mm512_cvtsepi32_epi8(front));
  if (last) _mm_storeu_si128(reinterpret_cast<__m128i*>(last), _mm512_cvtsepi32_epi8(back));
  const int sum = _mm512_reduce_add_epi32(_mm512_add_epi32(front, back));
  return {scale, scale * static_cast<float>(sum)};
}

template <class T>
void round_row(const T* x, int64_t inputs, int64_t group, int8_t* values, Step* steps) {
  for (int64_t at = 0; at < inputs; at += group, ++steps) {
    if (group == 2 * kLanes) {
      *steps = round_group(load(x + at), load(x + at + kLanes), values + at, values + at + kLanes);
    } else {
      *steps = round_group(load(x + at), _mm512_setzero_ps(), values + at, nullptr);
    }
  }
}

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

// Sixteen outputs of `Rows` rows.
template <int Rows, class F>
inline void multiply(const std::byte* block, int64_t groups, const int8_t* values,
                     const Step* steps, __m512 (&sums)[Rows]) {
  using Scale = typename F::Scale;
  for (int row = 0; row < Rows; ++row) sums[row] = _mm512_setzero_ps();
  const int64_t inputs = groups * F::kGroup;
  for (int64_t group = 0; group < groups; ++group, block += F::kGroupBytes) {
    const auto* heads = reinterpret_cast<const Scale*>(block);
    const __m512 scale = scales_at(heads), shift = scales_at(heads + kLanes);
    __m512i quants[F::kVectors];
    unpack<F>(block, quants);
#pragma GCC unroll 12
    for (int row = 0; row < Rows; ++row) {
      const int8_t* a = values + row * inputs + group * F::kGroup;
      // two chains, so that a single row does not wait for its own sums
      __m512i even = _mm512_setzero_si512(), odd = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (int at = 0; at < F::kVectors; at += 2) {
        even = _mm512_dpbusd_epi32(even, quants[at], four_of(a + 4 * at));
        odd = _mm512_dpbusd_epi32(odd, quants[at + 1], four_of(a + 4 * at + 4));
      }
      const Step& step = steps[row * groups + group];
      const __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(step.scale));
      sums[row] = _mm512_fmadd_ps(whole, factor, sums[row]);
      sums[row] = _mm512_fmadd_ps(shift, _mm512_set1_ps(step.sum), sums[row]);
    }
  }
}

template <class Out>
struct Target {
  Out* out;
  int64_t stride;
  const float* bias;
  __mmask16 mask;
};

template <int Rows, class F, class Out>
void tile(const std::byte* block, int64_t groups, const int8_t* values, const Step* steps,
          const Target<Out>& target) {
  __m512 sums[Rows];
  multiply<Rows, F>(block, groups, values, steps, sums);
  for (int row = 0; row < Rows; ++row) {
    __m512 sum = target.bias ? _mm512_add_ps(sums[row], _mm512_loadu_ps(target.bias)) : sums[row];
    store(target.out + row * target.stride, sum, target.mask);
  }
}

// All rows, `Rows` at a time as long as there are that many, then the rest at once.
template <int Rows, class F, class Out>
void tiles_of(int64_t rows, const std::byte* block, int64_t groups, const int8_t* values,
              const Step* steps, Target<Out> target) {
  for (; rows >= Rows; rows -= Rows) {
    tile<Rows, F>(block, groups, values, steps, target);
    values += Rows * groups * F::kGroup;
    steps += Rows * groups;
    target.out += Rows * target.stride;
  }
  if constexpr (Rows > 1) {
    if (rows) tiles_of<Rows - 1, F>(rows, block, groups, values, steps, target);
  }
}

// How many blocks are dealt at once. Up to sixteen shares for each rank even out what other work takes
// from a core; but to deal one costs about as much as 1,000 cycles of work, when cores are far apart.
int64_t share_of(int64_t blocks, int64_t cycles, int64_t ranks) {
  const int64_t each = std::clamp<int64_t>(cycles / (ranks * kCyclesOfShare), 1, 16);
  return (blocks + each * ranks - 1) / (each * ranks);
}

template <class F, class Out>
void product(Team& team, int rank, const LinearArguments& a, const Activations& rounded) {
  const int64_t groups = a.inputs / F::kGroup;
  const int64_t blocks = (a.outputs + kLanes - 1) / kLanes;
  const int64_t share = share_of(blocks, blocks * a.inputs / 32 * (20 + 11 * a.rows), team.size());
  team.deal(rank, (blocks + share - 1) / share, [&](int64_t item) {
    const int64_t end = std::min(blocks, (item + 1) * share);
    for (int64_t block = item * share; block < end; ++block) {
      const int64_t first = block * kLanes;
      Target<Out> target{static_cast<Out*>(a.out) + first, a.out_stride,
                         a.bias ? a.bias + first : nullptr, first_lanes(a.outputs - first)};
      tiles_of<kMostRows, F>(a.rows, a.weight + block * groups * F::kGroupBytes, groups,
                             rounded.values, rounded.steps, target);
    }
  });
}

template <class T>
void round_rows(Team& team, int rank, const LinearArguments& a, const Activations& to) {
  const auto* x = static_cast<const T*>(a.x);
  const int64_t groups = a.inputs / a.group;
  auto one = [&](int64_t row) {
    round_row(x + row * a.x_stride, a.inputs, a.group, to.values + row * a.inputs, to.steps + row * groups);
  };
  if (is_small(a)) {
    for (int64_t row = 0; row < a.rows; ++row) one(row);
    return;
  }
  team.deal(rank, a.rows, one);
}

void run_linear(Team& team, int rank, const void* arguments, const Room& room) {
  const auto& a = *static_cast<const LinearArguments*>(arguments);
  const Activations rounded = place(a, is_small(a) ? room.own : room.shared);
  by_type(a.x_type, [&](auto x) { round_rows<decltype(x)>(team, rank, a, rounded); });
  by_type(a.out_type, [&](auto out) {
    by_form(a.bits, a.group, a.wide_scales, [&](auto form) {
      product<decltype(form), decltype(out)>(team, rank, a, rounded);
    });
  });
}

struct LookupArguments {
  const std::byte* weight;
  const int64_t* ids;  // [rows]
  void* out;           // [rows, inputs]
  int64_t rows, inputs;
  int32_t out_type, bits, group, wide_scales;
};

// Row `id` of a weight: one lane of its block.
template <class F, class Out>
void decode_row(const LookupArguments& a, int64_t row) {
  const int64_t groups = a.inputs / F::kGroup, lane = a.ids[row] % kLanes;
  const std::byte* block = a.weight + a.ids[row] / kLanes * groups * F::kGroupBytes;
  Out* out = static_cast<Out*>(a.out) + row * a.inputs;
  for (int64_t group = 0; group < groups; ++group, block += F::kGroupBytes) {
    const auto* heads = reinterpret_cast<const typename F::Scale*>(block);
    alignas(64) float scales[kLanes], shifts[kLanes];
    _mm512_store_ps(scales, scales_at(heads));
    _mm512_store_ps(shifts, scales_at(heads + kLanes));
    __m512i quants[F::kVectors];
    unpack<F>(block, quants);
    alignas(64) uint8_t row_of[F::kGroup];
    for (int at = 0; at < F::kVectors; ++at) {
      alignas(64) uint8_t lanes[64];
      _mm512_store_si512(lanes, quants[at]);
      std::memcpy(row_of + 4 * at, lanes + 4 * lane, 4);
    }
    const __m512 scale = _mm512_set1_ps(scales[lane]), shift = _mm512_set1_ps(shifts[lane]);
    for (int64_t at = 0; at < F::kGroup; at += kLanes) {
      __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(row_of + at));
      __m512 whole = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
      // not fused, as who decodes by `scale * q + shift` rounds in between
      store(out + group * F::kGroup + at, _mm512_add_ps(_mm512_mul_ps(whole, scale), shift));
    }
  }
}

void run_lookup(Team& team, int rank, const void* arguments, const Room&) {
  const auto& a = *static_cast<const LookupArguments*>(arguments);
  by_type(a.out_type, [&](auto out) {
    by_form(a.bits, a.group, a.wide_scales, [&](auto form) {
      team.deal(rank, a.rows, [&](int64_t row) {
        decode_row<decltype(form), decltype(out)>(a, row);
      });
    });
  });
}

}  // namespace

const Operation kLookup{sizeof(LookupArguments), no_room, run_lookup};
const Operation kLinear{sizeof(LinearArguments), linear_need, run_linear};

}  // namespace camshaft
