// What the library can do: every operation is a function that all ranks of a team run together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "team.h"

namespace camshaft {

// Bytes of memory that an operation needs while it runs.
struct Need {
  size_t shared = 0;  // by all ranks, filled by items of loops alone
  size_t own = 0;     // by each rank for itself
};

// Such memory, 64-byte aligned.
struct Room {
  std::byte* shared;
  std::byte* own;
};

// `run` changes what others see in items of loops alone: a rank may come late, when the others are
// operations ahead (see team.h).
struct Operation {
  size_t argument_bytes;
  Need (*need)(const void* arguments);
  void (*run)(Team& team, int rank, const void* arguments, const Room& room);
};

inline Need no_room(const void*) { return {}; }

// Element types of tensors, as Python passes them.
enum Type : int32_t { kFloat32 = 0, kBfloat16 = 1 };

// By the numbers that Python knows them by: see native/calls.py.
extern const Operation kLinear;
extern const Operation kLookup;
extern const Operation kRmsNorm;
extern const Operation kGate;
extern const Operation kRotate;
extern const Operation kAttend;

}  // namespace camshaft
