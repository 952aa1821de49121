// What a layer does to rows beside its linears: norms and gates. Computed in float32, rounded once.
#include <cmath>

#include "gates.h"

namespace camshaft {

namespace {

constexpr int64_t kLanes = 16;

struct NormArguments {
  const void* x;         // [rows, width]
  const void* residual;  // [rows, width] to be added, or null
  void* total;           // [rows, width] where the sum goes, of the residual's type; may be it
  void* out;             // [rows, width], of x's type
  const void* weight;    // [width]
  int64_t rows, width;
  int64_t x_stride, residual_stride, total_stride, out_stride;
  int32_t x_type, residual_type, weight_type;
  float eps;
};

template <class X, class R, class W>
void norm_row(const NormArguments& a, int64_t row) {
  const X* x = static_cast<const X*>(a.x) + row * a.x_stride;
  const R* residual = static_cast<const R*>(a.residual);
  R* total = static_cast<R*>(a.total);
  if (residual) residual += row * a.residual_stride, total += row * a.total_stride;
  __m512 squares = _mm512_setzero_ps();
  for (int64_t at = 0; at < a.width; at += kLanes) {
    const __mmask16 mask = first_lanes(a.width - at);
    __m512 value = load(x + at, mask);
    if (residual) {
      value = as_stored(total, _mm512_add_ps(value, load(residual + at, mask)));
      store(total + at, value, mask);
    }
    squares = _mm512_fmadd_ps(value, value, squares);
  }
  const float mean = _mm512_reduce_add_ps(squares) / static_cast<float>(a.width);
  const __m512 factor = _mm512_set1_ps(1.f / std::sqrt(mean + a.eps));
  const W* weight = static_cast<const W*>(a.weight);
  X* out = static_cast<X*>(a.out) + row * a.out_stride;
  for (int64_t at = 0; at < a.width; at += kLanes) {
    const __mmask16 mask = first_lanes(a.width - at);
    __m512 value = residual ? load(total + at, mask) : load(x + at, mask);
    store(out + at, _mm512_mul_ps(_mm512_mul_ps(value, factor), load(weight + at, mask)), mask);
  }
}

void run_norm(Team& team, int rank, const void* arguments, const Room&) {
  const auto& a = *static_cast<const NormArguments*>(arguments);
  by_type(a.x_type, [&](auto x) {
    by_type(a.residual_type, [&](auto residual) {
      by_type(a.weight_type, [&](auto weight) {
        team.deal_by_cost(rank, a.rows, 40 + a.width / 2, [&](int64_t row) {
          norm_row<decltype(x), decltype(residual), decltype(weight)>(a, row);
        });
      });
    });
  });
}

struct GateArguments {
  const void* x;  // [rows, 2 * width]: gates, then ups
  void* out;      // [rows, width]
  int64_t rows, width;
  int64_t x_stride, out_stride;
  int32_t type, gate;
};

template <class T>
void gate_row(const GateArguments& a, int64_t row) {
  const T* gate = static_cast<const T*>(a.x) + row * a.x_stride;
  const T* up = gate + a.width;
  T* out = static_cast<T*>(a.out) + row * a.out_stride;
  for (int64_t at = 0; at < a.width; at += kLanes) {
    const __mmask16 mask = first_lanes(a.width - at);
    store(out + at, gated(load(gate + at, mask), load(up + at, mask), a.gate), mask);
  }
}

void run_gate(Team& team, int rank, const void* arguments, const Room&) {
  const auto& a = *static_cast<const GateArguments*>(arguments);
  by_type(a.type, [&](auto type) {
    team.deal_by_cost(rank, a.rows, 2 * a.width, [&](int64_t row) {
      gate_row<decltype(type)>(a, row);
    });
  });
}

}  // namespace

const Operation kRmsNorm{sizeof(NormArguments), no_room, run_norm};
const Operation kGate{sizeof(GateArguments), no_room, run_gate};

}  // namespace camshaft
