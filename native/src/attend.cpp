// Attention over pages: all requests of a step in one call, with one query token or many.
//
// The query heads of a KV head stand as rows over the same keys. Rows of up to some tokens make a
// tile, whose keys are read in blocks of 64 by their place in the sequence, turned once, and
// weighted as they come (Dao et al., FlashAttention, arXiv 2205.14135). Four blocks make a piece;
// pieces are merged in order. If few tiles have many keys, pieces are dealt out one by one
// (Dao et al., Flash-Decoding, 2023), with the same result.
//
// Borders lie at places in the sequence and rows do not meet, so a token's bits depend neither on
// the batch nor on the chunk that it comes in. Lengths are read here, when the operation runs.
#include <cmath>
#include <type_traits>
#include <utility>

#include "codes.h"
#include "products.h"
#include "softmax.h"
#include "tiles.h"

namespace camshaft {

namespace {

// Call `visit` with the first of the choices that `count` reaches, or the last one, as a constant.
template <int First, int... Rest, class Visit>
inline void as_constant(int64_t count, Visit&& visit) {
  if constexpr (sizeof...(Rest) == 0) {
    visit(std::integral_constant<int, First>{});
  } else if (count >= First) {
    visit(std::integral_constant<int, First>{});
  } else {
    as_constant<Rest...>(count, visit);
  }
}

template <class T>
class Worker {
 public:
  Worker(const AttendArguments& a, const Sizes& sizes, std::byte* scratch) : a_(a), sizes_(sizes) {
    auto take = [&](size_t bytes) { return std::exchange(scratch, scratch + bytes); };
    q_ = reinterpret_cast<T*>(take(sizes.q));
    weights_ = reinterpret_cast<T*>(take(sizes.weights));
    keys_ = reinterpret_cast<int32_t*>(take(sizes.keys));
    values_ = reinterpret_cast<int32_t*>(take(sizes.values));
    total_ = reinterpret_cast<float*>(take(sizes.records));
    part_ = reinterpret_cast<float*>(take(sizes.records));
    plain_ = reinterpret_cast<T*>(take(sizes.plain));
    rows_ = reinterpret_cast<BlockRows*>(take(sizeof(BlockRows)));
    ahead_ = reinterpret_cast<BlockRows*>(take(sizeof(BlockRows)));
    std::fill_n(rows_->keys, 2 * kBlock, kNothing);
    row_steps_ = a.head_dim / kPer;
  }

  // Attend with a tile over all its keys.
  void whole(const Tile& tile, int64_t head) {
    begin(tile, head);
    const int64_t first = tile.first_piece(a_), count = tile.pieces(a_);
    for (int64_t at = 0; at < count; ++at) {
      piece(first + at, at ? part_ : total_, sizes_.record, sizes_.group);
      for (int64_t row = 0; at && row < tile.count * sizes_.group; ++row)
        record(total_, row).merge(record(part_, row));
    }
    for (int64_t token = 0; token < tile.count; ++token)
      for (int64_t one = 0; one < sizes_.group; ++one)
        finish(tile.token + token, head * sizes_.group + one,
               record(total_, token * sizes_.group + one));
  }

  // Attend with a tile over a piece of its keys; `split` is [T, H, pieces] records.
  void one_piece(const Tile& tile, int64_t head, int64_t number, float* split) {
    begin(tile, head);
    const int64_t row = tile.token * a_.heads + head * sizes_.group;
    piece(number, split + (row * sizes_.pieces + number) * sizes_.record,
          sizes_.pieces * sizes_.record, a_.heads);
  }

  // Merge the pieces of a tile of one token.
  void merge(const Tile& tile, int64_t head, float* split) {
    const int64_t first = tile.first_piece(a_), count = tile.pieces(a_);
    for (int64_t one = head * sizes_.group; one < (head + 1) * sizes_.group; ++one) {
      float* records = split + (tile.token * a_.heads + one) * sizes_.pieces * sizes_.record;
      for (int64_t at = 1; at < count; ++at)
        record(records, first).merge(record(records, first + at));
      finish(tile.token, one, record(records, first));
    }
  }

 private:
  static constexpr int64_t kPer = kPerDword<T>;

  // How many of a block's keys are computed with if the first `end` are seen; the rest is zero.
  static int64_t used(int64_t end) { return end > 32 ? 64 : end > 16 ? 32 : 16; }

  Record record(float* records, int64_t row) const {
    return Record(records + row * sizes_.record, sizes_.width);
  }

  void begin(const Tile& tile, int64_t head) {
    if (tile.token != tile_.token) ahead_start_ = -1;
    tile_ = tile;
    head_ = head;
    const size_t bytes = static_cast<size_t>(sizes_.group * a_.head_dim) * sizeof(T);
    const T* from = static_cast<const T*>(a_.q) + tile.token * a_.q_stride +
                    head * sizes_.group * a_.head_dim;
    for (int64_t token = 0; token < tile.count; ++token)
      std::memcpy(q_ + token * sizes_.group * a_.head_dim, from + token * a_.q_stride, bytes);
  }

  // What the tile finds in a piece of the keys: a record for each row, `stride` floats apart, and
  // `across` records from token to token.
  void piece(int64_t number, float* records, int64_t stride, int64_t across) {
    records_ = records, record_stride_ = stride, across_ = across;
    for (int64_t row = 0; row < tile_.count * sizes_.group; ++row) at_row(row).clear();
    const int64_t last = std::min((number + 1) * kPiece, tile_.end(a_, tile_.count - 1));
    const int64_t first = std::max(number * kPiece, tile_.first(a_, 0));
    for (int64_t start = first / kBlock * kBlock; start < last; start += kBlock) block(start);
  }

  Record at_row(int64_t row) const {
    if (across_ != sizes_.group) row += row / sizes_.group * (across_ - sizes_.group);
    return Record(records_ + row * record_stride_, sizes_.width);
  }

  void block(int64_t start) {
    const int64_t end = std::min(kBlock, tile_.end(a_, tile_.count - 1) - start);
    if (ahead_start_ != start || ahead_head_ != head_) find(head_, start);
    std::swap(rows_, ahead_);
    look_ahead(start);
    if (a_.pages.form != kPlain) decode_rows(end);
    direct_ = tile_.count * sizes_.group <= kMostRows;
    if (!direct_) form_columns(end);
    rows_over(start);
  }

  void find(int64_t head, int64_t start) {
    const int64_t first = std::max<int64_t>(0, tile_.first(a_, 0) - start);
    const int64_t end = std::min(kBlock, tile_.end(a_, tile_.count - 1) - start);
    find_rows(a_.pages, a_.table + tile_.request * a_.table_stride, head, start, first, end,
              key_bytes(), value_bytes(), *ahead_);
    ahead_head_ = head, ahead_start_ = start;
  }

  // Find the block that is probably the next one: its rows are fetched meanwhile.
  void look_ahead(int64_t start) {
    ahead_start_ = -1;
    if (start + kBlock < tile_.end(a_, tile_.count - 1))
      find(head_, start + kBlock);
    else if (head_ + 1 < a_.pages.kv_heads)
      find(head_ + 1, tile_.first(a_, 0) / kBlock * kBlock);
  }

  void decode_rows(int64_t end) {
    T* to = plain_;
    auto decode = [&](const std::byte*& row, int64_t width) {
      for (int64_t at = 0; at < width; at += 16) store(to + at, decoded(a_.pages.form, row + at));
      row = reinterpret_cast<const std::byte*>(to);
      to += width;
    };
    for (int64_t key = 0; key < used(end); ++key) {
      decode(rows_->keys[key], a_.head_dim);
      decode(rows_->values[key], a_.value_dim);
    }
  }

  // Bring the block's first `end` keys and values into the form of `multiply`.
  void form_columns(int64_t end) {
    end = used(end);
    for (int64_t at = 0; at < end; at += kLanes)
      for (int64_t step = 0; step < row_steps_; step += 4) {
        __m512i columns[4];
        turn(rows_->keys + at, step * 4, columns);
        for (int64_t one = 0; one < 4; ++one)
          _mm512_store_si512(keys_ + (step + one) * kBlock + at, columns[one]);
      }
    for (int64_t key = 0; key < end; key += kPer)
      for (int64_t at = 0; at < a_.value_dim; at += kLanes * kPer) {
        __m512i columns[kPer];
        pair<T>(rows_->values + key, at, a_.value_dim, columns);
        for (int64_t one = 0; one < kPer; ++one)
          _mm512_store_si512(values_ + key / kPer * sizes_.width + at + one * kLanes, columns[one]);
      }
  }

  // Let the rows that see some of the block's keys take them in.
  void rows_over(int64_t start) {
    const int64_t group = sizes_.group;
    int64_t row = 0, end = tile_.count * group;
    if (a_.causal) row = std::max<int64_t>(0, start - tile_.place) * group;
    if (a_.window) end = std::min(end, (start + kBlock + a_.window - 1 - tile_.place) * group);
    while (row < end) {
      as_constant<6, 4, 3, 2, 1>(end - row, [&](auto rows) {
        const int64_t keys = used(tile_.end(a_, (row + rows - 1) / group) - start);
        as_constant<4, 2, 1>(keys / kLanes, [&](auto vectors) {
          some_rows<rows, vectors>(row, start);
        });
        row += rows;
      });
    }
  }

  template <int Rows, int Vectors>
  void some_rows(int64_t row, int64_t start) {
    __m512 scores[Rows][Vectors];
#pragma GCC unroll 8
    for (auto& one : scores)
#pragma GCC unroll 4
      for (__m512& score : one) score = _mm512_setzero_ps();
    const auto* q = reinterpret_cast<const int32_t*>(q_ + row * a_.head_dim);
    if (direct_)
      multiply_turned<T>(q, row_steps_, rows_->keys, ahead_->keys, row_steps_, scores);
    else
      multiply<T>(q, row_steps_, keys_, kBlock, row_steps_, scores);
    const bool grown = weigh<Rows, Vectors>(row, start, scores);
    const auto* weights = reinterpret_cast<const int32_t*>(weights_);
    constexpr int64_t steps = Vectors * kLanes / kPer;
    for (int64_t at = 0; at < sizes_.width;)
      as_constant<4, 2, (kPer == 1 ? 1 : 2)>((sizes_.width - at) / kLanes, [&](auto columns) {
        __m512 sums[Rows][columns];
#pragma GCC unroll 8
        for (int one = 0; one < Rows; ++one) {
          const float* values = at_row(row + one).values() + at;
#pragma GCC unroll 4
          for (int lane = 0; lane < columns; ++lane) {
            sums[one][lane] = _mm512_loadu_ps(values + lane * kLanes);
            if (grown) sums[one][lane] = _mm512_mul_ps(sums[one][lane], _mm512_set1_ps(kept_[one]));
          }
        }
        if (direct_)
          multiply_paired<T>(weights, kBlock / kPer, rows_->values, ahead_->values, at,
                             a_.value_dim, steps, sums);
        else
          multiply<T>(weights, kBlock / kPer, values_ + at, sizes_.width, steps, sums);
        for (int one = 0; one < Rows; ++one) {
          float* values = at_row(row + one).values() + at;
          for (int lane = 0; lane < columns; ++lane)
            _mm512_storeu_ps(values + lane * kLanes, sums[one][lane]);
        }
        at += columns * kLanes;
      });
  }

  // Turn scores into weights, and note by how much what was there before counts less now; returns
  // whether any does.
  template <int Rows, int Vectors>
  bool weigh(int64_t row, int64_t start, __m512 (&scores)[Rows][Vectors]) {
    const int64_t group = sizes_.group;
    if (a_.pages.form != kPlain || a_.soft_cap != 0.f)
      for (auto& one : scores) change<Vectors>(one);
    if (tile_.first(a_, (row + Rows - 1) / group) > start ||
        tile_.end(a_, row / group) < start + Vectors * kLanes)
      for (int one = 0; one < Rows; ++one) hide<Vectors>((row + one) / group, start, scores[one]);
    const __m512 unit = _mm512_set1_ps((a_.soft_cap != 0.f ? a_.soft_cap : a_.scale) * kLog2E);
    __m512 greatest[(Rows + 3) / 4 * 4];
#pragma GCC unroll 8
    for (int one = 0; one < Rows; ++one) {
      greatest[one] = scores[one][0];
#pragma GCC unroll 4
      for (int at = 1; at < Vectors; ++at)
        greatest[one] = _mm512_max_ps(greatest[one], scores[one][at]);
    }
    for (int one = Rows; one < (Rows + 3) / 4 * 4; ++one) greatest[one] = greatest[Rows - 1];
    __mmask16 grown = 0;
#pragma GCC unroll 2
    for (int first = 0; first < Rows; first += 4) {
      const __m512 most = _mm512_mul_ps(
          unit, greatest_of_four(greatest[first], greatest[first + 1], greatest[first + 2],
                                 greatest[first + 3]));
      grown |= count_from<Rows>(row, first, most);
    }
#pragma GCC unroll 8
    for (int one = 0; one < Rows; ++one) {
      const Record record = at_row(row + one);
      const __m512 base = record.most();
      __m512 sums = record.sums();
      if (grown) sums = _mm512_mul_ps(sums, _mm512_set1_ps(kept_[one]));
      T* to = weights_ + one * kBlock;
#pragma GCC unroll 4
      for (int at = 0; at < Vectors; ++at) {
        __m512 weight = weight_of<T>(_mm512_sub_ps(_mm512_mul_ps(scores[one][at], unit), base));
        sums = _mm512_add_ps(sums, weight);
        if (a_.pages.form != kPlain)
          weight = _mm512_mul_ps(weight, _mm512_load_ps(rows_->value_scales + at * kLanes));
        store(to + at * kLanes, weight);
      }
      record.set_sums(sums);
    }
    return grown;
  }

  // Move what the weights of up to four rows are counted from, where scores have grown far beyond
  // it: `most` has the greatest of each. Others' weights keep their bits.
  template <int Rows>
  __mmask16 count_from(int64_t row, int first, __m512 most) {
    const int count = std::min(4, Rows - first);
    auto base = [&](int one) { return at_row(row + first + std::min(one, count - 1)).base(); };
    const __m128 before = _mm_setr_ps(base(0), base(1), base(2), base(3));
    const __m128 highest = _mm512_castps512_ps128(most);
    const __m128 enough = _mm_add_ps(before, _mm_set1_ps(kHeadroom));
    const __mmask8 grown = static_cast<__mmask8>(
        _mm_cmp_ps_mask(highest, enough, _CMP_GT_OQ) & ((1 << count) - 1));
    if (!grown) {
      for (int one = 0; one < count; ++one) kept_[first + one] = 1.f;
      return 0;
    }
    const __m128 now = _mm_mask_mov_ps(before, grown, highest);
    alignas(16) float bases[4];
    _mm_store_ps(bases, now);
    for (int one = 0; one < count; ++one) at_row(row + first + one).set_base(bases[one]);
    const __m512 kept = power_of_two(_mm512_castps128_ps512(_mm_sub_ps(before, now)));
    _mm_store_ps(bases, _mm512_castps512_ps128(kept));
    for (int one = 0; one < count; ++one) kept_[first + one] = bases[one];
    return grown;
  }

  // Apply what scores need before the softmax's scale: scales of stored keys, and the soft cap.
  template <int Vectors>
  void change(__m512 (&scores)[Vectors]) const {
    for (int at = 0; at < Vectors; ++at) {
      if (a_.pages.form != kPlain)
        scores[at] = _mm512_mul_ps(scores[at], _mm512_load_ps(rows_->key_scales + at * kLanes));
      if (a_.soft_cap != 0.f)
        scores[at] = tangent(_mm512_mul_ps(scores[at], _mm512_set1_ps(a_.scale / a_.soft_cap)));
    }
  }

  template <int Vectors>
  void hide(int64_t token, int64_t start, __m512 (&scores)[Vectors]) const {
    const int64_t first = tile_.first(a_, token) - start, end = tile_.end(a_, token) - start;
    for (int at = 0; at < Vectors; ++at) {
      const int64_t lane = at * kLanes;
      const unsigned seen = first_lanes(std::max<int64_t>(0, end - lane));
      const unsigned early = first_lanes(std::max<int64_t>(0, first - lane));
      scores[at] = _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY),
                                      static_cast<__mmask16>(seen & ~early), scores[at]);
    }
  }

  void finish(int64_t token, int64_t head, const Record& record) const {
    __m512 most = record.most(), factor = _mm512_set1_ps(1.f);
    __m512 sum = _mm512_set1_ps(_mm512_reduce_add_ps(record.sums()));
    if (a_.sinks) {
      const __m512 sink = _mm512_set1_ps(a_.sinks[head] * kLog2E);
      const __m512 more = _mm512_max_ps(most, sink);
      factor = power_of_two(_mm512_sub_ps(most, more));
      sum = _mm512_fmadd_ps(sum, factor, power_of_two(_mm512_sub_ps(sink, more)));
      most = more;
    }
    factor = _mm512_div_ps(factor, sum);
    T* out = static_cast<T*>(a_.out) + token * a_.out_stride + head * a_.value_dim;
    for (int64_t at = 0; at < a_.value_dim; at += kLanes * kPer) {
      __m512 values[kPer];
      for (int64_t one = 0; one < kPer; ++one)
        values[one] = _mm512_loadu_ps(record.values() + at + one * kLanes);
      in_order<T>(values);
      for (int64_t one = 0; one < kPer; ++one)
        store(out + at + one * kLanes, _mm512_mul_ps(values[one], factor),
              first_lanes(std::max<int64_t>(0, a_.value_dim - at - one * kLanes)));
    }
    if (a_.lse)
      a_.lse[token * a_.lse_stride + head] =
          (_mm512_cvtss_f32(most) + std::log2(_mm512_cvtss_f32(sum))) * kLn2;
  }

  int64_t key_bytes() const {
    return a_.head_dim * (a_.pages.form == kPlain ? static_cast<int64_t>(sizeof(T)) : 1);
  }
  int64_t value_bytes() const {
    return a_.value_dim * (a_.pages.form == kPlain ? static_cast<int64_t>(sizeof(T)) : 1);
  }

  const AttendArguments& a_;
  const Sizes& sizes_;
  int64_t row_steps_;
  T *q_, *weights_, *plain_;
  int32_t *keys_, *values_;
  float *total_, *part_;
  BlockRows *rows_, *ahead_;
  Tile tile_{-1, -1, 0, 0, 0};
  int64_t ahead_start_ = -1, ahead_head_ = -1;
  int64_t head_;
  float* records_;
  int64_t record_stride_, across_;
  bool direct_;
  float kept_[kMostRows];
};

Sizes sizes_of(const AttendArguments& a) { return Sizes(a, a.type == kBfloat16 ? 2 : 4); }

Need attend_need(const void* arguments) {
  const Sizes sizes = sizes_of(*static_cast<const AttendArguments*>(arguments));
  return {sizes.split, sizes.rank};
}

template <class T>
void attend(Team& team, int rank, const AttendArguments& a, const Room& room) {
  const Sizes sizes = sizes_of(a);
  const Cut cut(a, sizes, team.size());
  Worker<T> worker(a, sizes, room.own);
  auto* split = reinterpret_cast<float*>(room.shared);
  Tiles tiles(a, sizes.tile_tokens);
  Tile tile{};
  int64_t first = 0, end = 0;
  team.deal(rank, cut.items, [&](int64_t item) {
    while (item >= end) {
      tiles.next(tile);
      first = end;
      end += a.pages.kv_heads * (cut.by_piece ? tile.pieces(a) : 1);
    }
    const int64_t head = (item - first) % a.pages.kv_heads;
    const int64_t number = tile.first_piece(a) + (item - first) / a.pages.kv_heads;
    if (cut.by_piece)
      worker.one_piece(tile, head, number, split);
    else
      worker.whole(tile, head);
  });
  if (!cut.by_piece) return;
  Tiles again(a, 1);
  first = -1;
  const int64_t groups = a.pages.kv_heads;
  team.deal(rank, a.tokens * groups, [&](int64_t item) {
    for (; first < item / groups; ++first)
      if (!again.next(tile)) return;
    worker.merge(tile, item % groups, split);
  });
}

void run_attend(Team& team, int rank, const void* arguments, const Room& room) {
  const auto& a = *static_cast<const AttendArguments*>(arguments);
  by_type(a.type, [&](auto type) { attend<decltype(type)>(team, rank, a, room); });
}

}  // namespace

const Operation kAttend{sizeof(AttendArguments), attend_need, run_attend};

}  // namespace camshaft
