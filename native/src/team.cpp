#include "team.h"

#include <algorithm>

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace camshaft {

namespace {

void breathe() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void pin(int core) {
#if defined(__linux__)
  if (core < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
#else
  (void)core;
#endif
}

constexpr int kLeastSpins = 100;
constexpr int64_t kCyclesOfShare = 30'000;

uint64_t state_of(uint32_t loop, uint32_t items) { return uint64_t{loop} << 32 | items; }
uint32_t loop_of(uint64_t state) { return static_cast<uint32_t>(state >> 32); }
uint32_t items_of(uint64_t state) { return static_cast<uint32_t>(state); }

// Numbers of loops wrap around.
bool is_before(uint32_t one, uint32_t other) { return static_cast<int32_t>(one - other) < 0; }

}  // namespace

Team::Team(int size, int spins, const std::vector<int>& cores)
    : size_(size), spins_(spins), places_(static_cast<size_t>(size)) {
  for (int rank = 1; rank < size; ++rank) {
    const size_t at = static_cast<size_t>(rank);
    const int core = at < cores.size() ? cores[at] : -1;
    threads_.emplace_back([this, rank, core] { serve(rank, core); });
  }
}

Team::~Team() {
  stop_.store(true);
  gate_.fetch_add(1);
  gate_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

template <class Word, class Ready>
void Team::await(Word& word, Ready&& ready) {
  // who looked in vain looks half as long next time: then something else wants this core
  thread_local int patience = spins_;
  for (int spin = 0; spin < patience; ++spin) {
    if (ready(word.load(std::memory_order_acquire))) {
      patience = std::min(spins_, patience + spins_ / 8 + 1);
      return;
    }
    breathe();
  }
  patience = std::max(patience / 2, std::min(spins_, kLeastSpins));
  for (auto seen = word.load(std::memory_order_acquire); !ready(seen);
       seen = word.load(std::memory_order_acquire))
    word.wait(seen, std::memory_order_acquire);
}

// Up to sixteen shares for each rank even out what other work takes from a core; but to deal one costs
// about as much as 1,000 cycles of work, when cores are far apart.
int64_t Team::share_of(int64_t count, int64_t cycles) const {
  const int64_t each = std::clamp<int64_t>(count * cycles / (size_ * kCyclesOfShare), 1, 16);
  return (count + each * size_ - 1) / (each * size_);
}

void Team::serve(int rank, int core) {
  pin(core);
  Place& mine = places_[static_cast<size_t>(rank)];
  uint32_t last = 0;
  for (;;) {
    await(gate_, [&](uint32_t gate) { return gate % 2 && gate != last; });
    if (stop_.load(std::memory_order_relaxed)) return;
    // who is inside sees an open gate, or the run did not wait for it
    inside_.fetch_add(1);
    const uint32_t gate = gate_.load();
    if (gate % 2 && gate != last) {
      last = gate;
      mine = {first_, 0};
      body_(*this, rank, argument_);
    }
    if (inside_.fetch_sub(1) == 1) inside_.notify_all();
  }
}

void Team::start(Body body, const void* argument) {
  body_ = body;
  argument_ = argument;
  if (size_ == 1) return;
  first_ = places_[0].loop;
  places_[0].count = 0;
  gate_.fetch_add(1);
  gate_.notify_all();
}

void Team::finish() {
  body_(*this, 0, argument_);
  if (size_ == 1) return;
  barrier(0);
  gate_.fetch_add(1);
  await(inside_, [](uint32_t inside) { return inside == 0; });
}

void Team::begin(uint32_t loop) {
  // the loop before is over: this rank came here through its barrier
  uint64_t seen = done_.load(std::memory_order_acquire);
  if (is_before(loop_of(seen), loop)) done_.compare_exchange_strong(seen, state_of(loop, 0));
  seen = dealt_.load(std::memory_order_acquire);
  if (is_before(loop_of(seen), loop)) dealt_.compare_exchange_strong(seen, state_of(loop, 0));
}

int64_t Team::take(const Place& mine) {
  uint64_t seen = dealt_.load(std::memory_order_acquire);
  while (loop_of(seen) == mine.loop && items_of(seen) < mine.count)
    if (dealt_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel))
      return items_of(seen);
  return -1;
}

void Team::finish(const Place& mine, uint32_t done) {
  const uint64_t before = done_.fetch_add(done, std::memory_order_acq_rel);
  if (items_of(before) + done == mine.count) done_.notify_all();
}

void Team::barrier(int rank) {
  if (size_ == 1) return;
  const Place& mine = places_[static_cast<size_t>(rank)];
  if (mine.count == 0) return;
  await(done_, [&](uint64_t done) {
    return loop_of(done) == mine.loop ? items_of(done) >= mine.count
                                      : is_before(mine.loop, loop_of(done));
  });
}

}  // namespace camshaft
