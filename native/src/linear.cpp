// Linears whose weights stay packed in 4 or 8 bits; activations are rounded to 8.
//
// A group of 32 or 16 activations has one scale, so that its products add up in integers:
//   sum w * x = scale * step * sum(q * a) + shift * step * sum(a)
// A row of the result is summed in the same order whatever the number of rows: it has the same bits
// in any batch. Unless the caller lets many rows be multiplied with weights that have one scale a
// row (see channels.h): then 64 activations share theirs where rows are that long.
#include "channels.h"
#include "gates.h"

namespace camshaft {

namespace {

constexpr int kMostRows = 12;
constexpr int kMostRowsOfPairs = 6;
constexpr int32_t kNoGate = -1;

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
  int32_t many;           // rows from which on weights get one scale a row; 0 for never
  int32_t gate;           // kNoGate, or which: the first half of the outputs gates the second then
  int32_t unused;
};

size_t padded(size_t bytes) { return (bytes + 63) / 64 * 64; }

bool is_many(const LinearArguments& a) { return a.many && a.rows >= a.many; }

// How many activations share a scale: twice as many as weights do where these have none for groups.
int64_t rounded_group(const LinearArguments& a) {
  return is_many(a) && a.group == 32 && a.inputs % 64 == 0 ? 64 : a.group;
}

// Few rows are rounded by every rank for itself: that is faster than to wait for each other.
bool is_small(const LinearArguments& a) { return a.rows * a.inputs <= 4096; }

size_t value_bytes(const LinearArguments& a) { return padded(static_cast<size_t>(a.rows * a.inputs)); }

size_t quant_bytes(const LinearArguments& a) { return static_cast<size_t>(kLanes * a.inputs); }

template <class Step>
Activations<Step> place(const LinearArguments& a, std::byte* at) {
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<Step*>(at + value_bytes(a))};
}

Need linear_need(const void* arguments) {
  const auto& a = *static_cast<const LinearArguments*>(arguments);
  static_assert(sizeof(ShiftedStep) == sizeof(OffsetStep));
  const size_t steps =
      static_cast<size_t>(a.rows * (a.inputs / rounded_group(a))) * sizeof(OffsetStep);
  const size_t rounded = value_bytes(a) + padded(steps);
  if (is_many(a)) return {rounded, 2 * (quant_bytes(a) + kLanes * sizeof(float))};
  return is_small(a) ? Need{0, rounded} : Need{rounded, 0};
}

// Where some rows of 16 outputs go.
template <class Out>
struct Target {
  Out* out;
  int64_t stride;
  const float* bias;
  __mmask16 mask;

  Target(const LinearArguments& a, int64_t block)
      : out(static_cast<Out*>(a.out) + block * kLanes),
        stride(a.out_stride),
        bias(a.bias ? a.bias + block * kLanes : nullptr),
        mask(first_lanes(a.outputs - block * kLanes)) {}

  void put(int64_t row, __m512 sum) const {
    if (bias) sum = _mm512_add_ps(sum, _mm512_loadu_ps(bias));
    store(out + row * stride, sum, mask);
  }
};

// Call `tile(rows, first)` for `Rows` rows at a time as long as there are that many, then for the
// rest at once.
template <int Rows, class Tile>
void by_tiles(int64_t rows, Tile&& tile, int64_t first = 0) {
  for (; rows - first >= Rows; first += Rows) tile(std::integral_constant<int, Rows>{}, first);
  if constexpr (Rows > 1)
    if (rows > first) by_tiles<Rows - 1>(rows, tile, first);
}

// Sixteen outputs of `Rows` rows.
template <int Rows, class F>
[[gnu::noinline]] void multiply(const std::byte* block, int64_t groups, const int8_t* values,
                                const ShiftedStep* steps, __m512 (&result)[Rows]) {
  __m512 sums[Rows];
#pragma GCC unroll 12
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  const int64_t inputs = groups * F::kGroup;
  for (int64_t group = 0; group < groups; ++group, block += F::kGroupBytes) {
    const Heads<F> heads(block);
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
      const ShiftedStep& step = steps[row * groups + group];
      const __m512 whole = _mm512_cvtepi32_ps(_mm512_add_epi32(even, odd));
      const __m512 factor = _mm512_mul_ps(heads.scale, _mm512_set1_ps(step.scale));
      sums[row] = _mm512_fmadd_ps(whole, factor, sums[row]);
      sums[row] = _mm512_fmadd_ps(heads.shift, _mm512_set1_ps(step.sum), sums[row]);
    }
  }
#pragma GCC unroll 12
  for (int row = 0; row < Rows; ++row) result[row] = sums[row];
}

int64_t blocks_of(const LinearArguments& a) { return (a.outputs + kLanes - 1) / kLanes; }

// How many blocks behind its gate an up stands; 0 without a gate.
int64_t up_behind(const LinearArguments& a) { return a.gate == kNoGate ? 0 : blocks_of(a) / 2; }

// As if both had been stored in between.
template <class Out>
__m512 passed(__m512 gate, __m512 up, int32_t kind) {
  constexpr Out* kType = nullptr;
  return gated(as_stored(kType, gate), as_stored(kType, up), kind);
}

template <class F, class Out>
void few_rows(Team& team, int rank, const LinearArguments& a,
              const Activations<ShiftedStep>& rounded) {
  const int64_t groups = a.inputs / F::kGroup;
  const int64_t up = up_behind(a), cycles = a.inputs / 32 * (20 + 11 * a.rows);
  team.deal_by_cost(rank, up ? up : blocks_of(a), up ? 2 * cycles : cycles, [&](int64_t block) {
    const Target<Out> target(a, block);
    by_tiles<kMostRows>(a.rows, [&](auto rows, int64_t first) {
      auto products = [&](int64_t of, __m512 (&sums)[rows]) {
        multiply<rows, F>(a.weight + of * groups * F::kGroupBytes, groups,
                          rounded.values + first * a.inputs, rounded.steps + first * groups, sums);
      };
      __m512 sums[rows];
      products(block, sums);
      if (up) {
        __m512 ups[rows];
        products(block + up, ups);
        for (int row = 0; row < rows; ++row) sums[row] = passed<Out>(sums[row], ups[row], a.gate);
      }
      for (int row = 0; row < rows; ++row) target.put(first + row, sums[row]);
    });
  });
}

// All rows of a block, or of two that are `apart`.
template <int Vectors, int Group, class F, class Out>
void with_channels(const LinearArguments& a, int64_t block, int64_t apart,
                   const Channels (&weights)[Vectors], const Activations<OffsetStep>& rounded) {
  const int64_t groups = a.inputs / F::kGroup;
  for (int at = 0; at < Vectors; ++at)
    to_channels<F>(a.weight + (block + at * apart) * groups * F::kGroupBytes, groups, weights[at]);
  by_tiles<kMostRowsOfPairs>(a.rows, [&](auto rows, int64_t first) {
    __m512 sums[rows][Vectors];
    multiply<rows, Vectors, Group>(weights, a.inputs, rounded.values + first * a.inputs,
                                   rounded.steps + first * (a.inputs / Group), sums);
    if (a.gate != kNoGate) {
      const Target<Out> target(a, block);
      for (auto& row : sums) target.put(first++, passed<Out>(row[0], row[Vectors - 1], a.gate));
      return;
    }
    for (int at = 0; at < Vectors; ++at) {
      const Target<Out> target(a, block + at * apart);
      for (int row = 0; row < rows; ++row) target.put(first + row, sums[row][at]);
    }
  });
}

template <int Group, class F, class Out>
void many_rows(Team& team, int rank, const LinearArguments& a,
               const Activations<OffsetStep>& rounded, std::byte* own) {
  const int64_t blocks = blocks_of(a), up = up_behind(a);
  auto channels = [&](int at) {
    auto* quants = reinterpret_cast<uint8_t*>(own) + static_cast<size_t>(at) * quant_bytes(a);
    auto* scales = reinterpret_cast<float*>(own + 2 * quant_bytes(a));
    return Channels{quants, scales + at * kLanes};
  };
  team.deal_by_cost(rank, (blocks + 1) / 2, a.inputs / 32 * (300 + 20 * a.rows), [&](int64_t pair) {
    if (up)
      with_channels<2, Group, F, Out>(a, pair, up, {channels(0), channels(1)}, rounded);
    else if (2 * pair + 1 < blocks)
      with_channels<2, Group, F, Out>(a, 2 * pair, 1, {channels(0), channels(1)}, rounded);
    else
      with_channels<1, Group, F, Out>(a, 2 * pair, 0, {channels(0)}, rounded);
  });
}

// Call `visit` with the vectors of a group of activations as a constant.
template <class Visit>
void by_group(const LinearArguments& a, Visit&& visit) {
  const int64_t group = rounded_group(a);
  if (group == 64) return visit(std::integral_constant<int, 4>{});
  if (group == 32) return visit(std::integral_constant<int, 2>{});
  visit(std::integral_constant<int, 1>{});
}

template <class Step>
void round_rows(Team& team, int rank, const LinearArguments& a, const Activations<Step>& to) {
  const int64_t groups = a.inputs / rounded_group(a);
  by_type(a.x_type, [&](auto type) {
    const auto* x = static_cast<const decltype(type)*>(a.x);
    auto one = [&](int64_t row) {
      by_group(a, [&](auto vectors) {
        round_row<vectors>(x + row * a.x_stride, a.inputs, to.values + row * a.inputs,
                           to.steps + row * groups);
      });
    };
    if (is_small(a) && !is_many(a)) {
      for (int64_t row = 0; row < a.rows; ++row) one(row);
    } else {
      team.deal_by_cost(rank, a.rows, groups * 50, one);
    }
  });
}

void run_linear(Team& team, int rank, const void* arguments, const Room& room) {
  const auto& a = *static_cast<const LinearArguments*>(arguments);
  auto by_form_and_type = [&](auto&& visit) {
    by_type(a.out_type, [&](auto out) {
      by_form(a.bits, a.group, a.wide_scales, [&](auto form) { visit(form, out); });
    });
  };
  if (is_many(a)) {
    const auto rounded = place<OffsetStep>(a, room.shared);
    round_rows(team, rank, a, rounded);
    by_form_and_type([&](auto form, auto out) {
      using F = decltype(form);
      if (rounded_group(a) == F::kGroup)
        many_rows<F::kGroup, F, decltype(out)>(team, rank, a, rounded, room.own);
      else
        many_rows<2 * F::kGroup, F, decltype(out)>(team, rank, a, rounded, room.own);
    });
  } else {
    const auto rounded = place<ShiftedStep>(a, is_small(a) ? room.own : room.shared);
    round_rows(team, rank, a, rounded);
    by_form_and_type([&](auto form, auto out) {
      few_rows<decltype(form), decltype(out)>(team, rank, a, rounded);
    });
  }
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
    const Heads<F> heads(block);
    alignas(64) float scales[kLanes], shifts[kLanes];
    _mm512_store_ps(scales, heads.scale);
    _mm512_store_ps(shifts, heads.shift);
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
