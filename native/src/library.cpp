// The C interface: open a team, run operations on it, record some and run them again as one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "ops.h"

namespace camshaft {

namespace {

const Operation* const kOperations[] = {&kLinear, &kLookup, &kRmsNorm, &kGate, &kRotate, &kAttend};
constexpr int kCount = sizeof(kOperations) / sizeof(kOperations[0]);

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Operations in order, with a copy of their arguments.
struct Tape {
  struct Entry {
    const Operation* operation;
    std::unique_ptr<std::byte[]> arguments;
  };
  std::vector<Entry> entries;
};

struct Span {
  const Tape::Entry* entries;
  int64_t count;
};

// Memory for operations while they run: what is shared, then what each rank has for itself. These
// never overlap, so a rank that comes late does no harm.
struct Scratch {
  std::unique_ptr<std::byte, Free> memory;
  size_t bytes = 0;
  Need held;

  void reserve(const Need& need, int ranks) {
    held = {padded(need.shared), padded(need.own)};
    const size_t wanted = held.shared + held.own * static_cast<size_t>(ranks);
    if (wanted <= bytes) return;
    memory.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, wanted)));
    bytes = wanted;
  }

  Room room(int rank) const {
    std::byte* own = memory.get() + held.shared;
    return {memory.get(), own + held.own * static_cast<size_t>(rank)};
  }

 private:
  static constexpr size_t kPage = 4096;
  static size_t padded(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
};

struct Library {
  std::unique_ptr<Team> team;
  Scratch scratch;
  Tape* recording = nullptr;
  Span running{nullptr, 0};  // nothing if it has no entries

  void run(const Span& span) {
    start(span);
    finish();
  }

  // Let the other threads begin; this one helps them from `finish` on.
  void start(const Span& span) {
    finish();
    if (span.count == 0) return;
    if (!team) team = std::make_unique<Team>(1, 0, std::vector<int>{});  // nobody opened one
    Need most;
    for (int64_t at = 0; at < span.count; ++at) {
      const Tape::Entry& one = span.entries[at];
      const Need need = one.operation->need(one.arguments.get());
      most = {std::max(most.shared, need.shared), std::max(most.own, need.own)};
    }
    scratch.reserve(most, team->size());
    running = span;
    team->start(play, &running);
  }

  void finish() {
    if (running.count == 0) return;
    team->finish();
    running.count = 0;
  }

  static void play(Team& team, int rank, const void* argument);
};

Library library;

void Library::play(Team& team, int rank, const void* argument) {
  const auto& span = *static_cast<const Span*>(argument);
  const Room room = library.scratch.room(rank);
  for (int64_t at = 0; at < span.count; ++at) {
    const Tape::Entry& one = span.entries[at];
    team.barrier(rank);  // it may read at once what the one before it fills
    one.operation->run(team, rank, one.arguments.get(), room);
  }
}

}  // namespace

extern "C" {

// Take threads. `cores` [size] names a core for each, the first one's is not used; -1 for any.
void camshaft_open(int32_t size, int32_t spins, const int32_t* cores) {
  std::vector<int> wanted(cores, cores + size);
  library.finish();
  library.team.reset();
  library.team = std::make_unique<Team>(size, spins, wanted);
}

void camshaft_close() {
  library.finish();
  library.team.reset();
  library.scratch = {};
}

int32_t camshaft_size() { return library.team ? library.team->size() : 0; }

// Bytes of the arguments of an operation, 0 where there is none of that number.
int64_t camshaft_argument_bytes(int32_t operation) {
  return operation < 0 || operation >= kCount
             ? 0
             : static_cast<int64_t>(kOperations[operation]->argument_bytes);
}

// Run an operation; put it on the tape that is being recorded, if any.
void camshaft_run(int32_t operation, const void* arguments) {
  const Operation* what = kOperations[operation];
  Tape::Entry entry{what, std::make_unique<std::byte[]>(what->argument_bytes)};
  std::memcpy(entry.arguments.get(), arguments, what->argument_bytes);
  library.run({&entry, 1});
  if (library.recording) library.recording->entries.push_back(std::move(entry));
}

void* camshaft_tape() { return new Tape; }

void camshaft_tape_free(void* tape) {
  library.finish();  // it may be what runs
  delete static_cast<Tape*>(tape);
}

int64_t camshaft_tape_size(void* tape) {
  return static_cast<int64_t>(static_cast<Tape*>(tape)->entries.size());
}

// Record on this tape from now on; null ends it.
void camshaft_record(void* tape) { library.recording = static_cast<Tape*>(tape); }

// Run entries `first` to `last - 1` of a tape.
void camshaft_play(void* tape, int64_t first, int64_t last) {
  library.run({static_cast<Tape*>(tape)->entries.data() + first, last - first});
}

// The same beside the caller, on the other threads: nothing else may touch what it reads and fills
// until `camshaft_finish`, or any other call that runs operations, has helped it to its end.
void camshaft_start(void* tape, int64_t first, int64_t last) {
  library.start({static_cast<Tape*>(tape)->entries.data() + first, last - first});
}

void camshaft_finish() { library.finish(); }

}  // extern "C"

}  // namespace camshaft
