// Threads that run one function together: each calls it, and work is dealt to whoever asks.
//
// Nobody waits for a thread, only for work: a loop is over when its items are done. A thread whose
// core is taken away, or that wakes late, holds up no more than the item it has; when it is back it
// finds the loops that are over empty and catches up. On shared cores barriers between threads, in
// place of that, cost a scheduler's slice each.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace camshaft {

class Team {
 public:
  using Body = void (*)(Team& team, int rank, const void* argument);

  // `spins` is how often a thread looks before it sleeps; `cores` names the core of each rank but
  // the first, -1 for any.
  Team(int size, int spins, const std::vector<int>& cores);
  ~Team();

  int size() const { return size_; }

  // Let all ranks run `body`. The caller is rank 0: it takes part from `finish` on, which returns
  // when everything that was dealt is done and nobody is in `body`. What a rank does outside of
  // loops it may do late: it must change nothing that others see.
  void start(Body body, const void* argument);
  void finish();

  // Call `item(at)` once for each `at` below `count`, in whichever rank. All ranks must come to the
  // same loops in the same order; those before are over when the first item begins.
  template <class Item>
  void deal(int rank, int64_t count, Item&& item) {
    if (size_ == 1) {
      for (int64_t at = 0; at < count; ++at) item(at);
      return;
    }
    Place& mine = places_[static_cast<size_t>(rank)];
    barrier(rank);
    begin(++mine.loop);
    mine.count = static_cast<uint32_t>(count);
    uint32_t done = 0;
    for (int64_t at = take(mine); at >= 0; at = take(mine), ++done) item(at);
    if (done) finish(mine, done);
  }

  // The same, with as many neighbours at once as their cost in cycles asks for.
  template <class Item>
  void deal_by_cost(int rank, int64_t count, int64_t cycles, Item&& item) {
    const int64_t share = share_of(count, cycles);
    deal(rank, (count + share - 1) / share, [&](int64_t at) {
      const int64_t end = std::min(count, (at + 1) * share);
      for (int64_t one = at * share; one < end; ++one) item(one);
    });
  }

  // Wait for all items of the last loop.
  void barrier(int rank);

 private:
  // Where a rank is: the number of its last loop, and its items.
  struct alignas(64) Place {
    uint32_t loop = 0, count = 0;
  };

  int64_t share_of(int64_t count, int64_t cycles) const;
  void serve(int rank, int core);
  void begin(uint32_t loop);
  int64_t take(const Place& mine);
  void finish(const Place& mine, uint32_t done);
  template <class Word, class Ready>
  void await(Word& word, Ready&& ready);

  int size_;
  int spins_;
  Body body_ = nullptr;
  const void* argument_ = nullptr;
  uint32_t first_ = 0;
  std::vector<Place> places_;
  // Odd while a run is open for ranks to come in.
  alignas(64) std::atomic<uint32_t> gate_{0};
  alignas(64) std::atomic<uint32_t> inside_{0};
  // Each the number of a loop, and of its items those that were dealt, or are done.
  alignas(64) std::atomic<uint64_t> dealt_{0};
  alignas(64) std::atomic<uint64_t> done_{0};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace camshaft
