#include "passes/chunk.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "ir/op_def.h"
#include "passes/live_bytes.h"
#include "passes/piecewise.h"

namespace shardc {
namespace {

// A piece makes the ops' weights be read once more. Products of this many flops for each byte of
// that hardly notice it; of halves, which are four times as fast, it takes as many times more.
constexpr int64_t kFlopsPerByte = 192, kSpeedOfHalves = 4;
// Pieces of this part of what lives beside them are small enough.
constexpr int64_t kSmallPart = 16;
constexpr int64_t kMostPieces = 16, kMostOps = 64, kMostCandidates = 16, kLeastGain = 32;

class Chunking {
 public:
  Chunking(Graph& graph, const ChunkOptions& options)
      : graph_(graph), options_(options), memory_(graph) {
    live_ = memory_.Profile([](const auto&) { return true; });
    microbatches_ = MicrobatchesUnderWay(graph);
  }

  // Cuts the chain that lowers the peak most of those around the largest value that has one.
  bool Run() {
    auto top = std::max_element(live_.begin(), live_.end());
    if (top == live_.end()) return false;
    peak_ = *top;
    auto at = static_cast<int>(top - live_.begin());
    std::vector<LiveBytes::Slot> candidates;
    for (const LiveBytes::Slot& s : memory_.slots()) {
      bool large = s.bytes >= std::max(options_.least_bytes, peak_ / kLeastGain);
      if (large && s.first <= at && at <= s.last) candidates.push_back(s);
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
    if (candidates.size() > kMostCandidates) candidates.resize(kMostCandidates);
    for (const LiveBytes::Slot& s : candidates) {
      std::optional<Choice> best;
      for (int d = 0; d < s.value->type.rank(); ++d) {
        auto choice = Choose(s.value, d);
        if (choice && (!best || choice->misses < best->misses)) best = std::move(choice);
      }
      if (!best) continue;
      best->chain.Apply(best->pieces);
      return true;
    }
    return false;
  }

 private:
  struct Choice {
    Piecewise chain;
    int pieces = 0;
    double misses = 0;  // by what factor, as a logarithm, the number of pieces that is best
  };

  int64_t Bytes(const Value* v) const { return LocalBytes(v->type, graph_.mesh); }

  std::optional<Choice> Choose(Value* seed, int dim) {
    Choice choice{Piecewise(graph_, seed, dim)};
    Piecewise& chain = choice.chain;
    if (!Grow(chain, seed)) return std::nullopt;
    Gain gain = GainOf(chain);
    const int64_t affordable =
        options_.pieces > 0 ? options_.pieces : std::min(kMostPieces, AffordablePieces(chain));
    auto want = static_cast<double>(options_.pieces > 0 ? affordable
                                                        : std::min(affordable, SmallPieces(gain)));
    if (want < 2) return std::nullopt;
    choice.misses = std::numeric_limits<double>::infinity();
    // Equal pieces, where there are about as many.
    int64_t most = std::min({chain.units(), affordable, static_cast<int64_t>(want * 1.5)});
    for (int64_t n = 2; n <= most; ++n) {
      double misses = std::abs(std::log(static_cast<double>(n) / want));
      if (chain.units() % n != 0) misses += 0.5;
      if (misses >= choice.misses) continue;
      choice.misses = misses;
      choice.pieces = static_cast<int>(n);
    }
    if (choice.pieces == 0 || !chain.Fits(choice.pieces)) return std::nullopt;
    int64_t then = std::max(gain.elsewhere, gain.beside + gain.inside / choice.pieces);
    if (peak_ - then < peak_ / kLeastGain) return std::nullopt;
    return choice;
  }

  // Takes in whatever reads or makes a value half as large as the seed that is cut too, what is
  // between, and what a result goes through on its way out, such as a cast that its op will absorb.
  bool Grow(Piecewise& chain, Value* seed) const {
    int64_t large = Bytes(seed) / 2;
    for (size_t i = 0; i < chain.cut().size(); ++i) {
      Value* v = chain.cut()[i];
      if (Bytes(v) >= large && v->producer && !v->producer->def->is_state) {
        if (graph_.IsOutput(v) || !chain.Include(v->producer)) return false;
        for (Op* user : v->users) {
          if (!chain.Include(user)) return false;
        }
      }
      if (Op* only = graph_.OnlyUser(v); only && chain.Contains(v->producer)) {
        bool unary = only->def->elementwise && only->operands.size() == 1;
        if (unary && !chain.Include(only)) return false;
      }
      if (static_cast<int64_t>(chain.ops().size()) > kMostOps) return false;
      if (i + 1 == chain.cut().size() && !TakeBetween(chain)) return false;
    }
    return true;
  }

  // Ops that an op of the chain waits for, and that wait for one.
  static bool TakeBetween(Piecewise& chain) {
    if (chain.ops().empty()) return false;
    for (bool more = true; more;) {
      more = false;
      auto followers = chain.Followers();
      for (Op* op : std::vector<Op*>(chain.ops())) {
        for (Value* v : op->operands) {
          if (!v->producer || !followers.contains(v->producer)) continue;
          if (chain.Contains(v->producer)) continue;
          if (!chain.Include(v->producer)) return false;
          more = true;
        }
      }
    }
    return true;
  }

  // Bytes at the peak while the chain runs: of values that come in pieces, and of all else; and at
  // the peak at other times. Other microbatches do not count: their peaks are alike, and their turn
  // comes.
  struct Gain {
    int64_t inside = 0, beside = 0, elsewhere = 0;
  };
  Gain GainOf(const Piecewise& chain) const {
    int first = chain.ops().front()->id, last = chain.ops().back()->id;
    auto inner = [&](const Value* v) {
      return v->producer && chain.Contains(v->producer) && chain.DimOf(v) >= 0 &&
             !chain.ReadOutside(v);
    };
    std::vector<int64_t> inside =
        memory_.Profile([&](const LiveBytes::Slot& s) { return s.last <= last && inner(s.value); });
    Gain gain;
    const int own = chain.ops().front()->microbatch;
    for (size_t i = 0; i < live_.size(); ++i) {
      auto at = static_cast<int>(i);
      if (at < first || at > last) {
        const bool counts = own < 0 || microbatches_[i] < 0 || microbatches_[i] == own;
        if (counts) gain.elsewhere = std::max(gain.elsewhere, live_[i]);
      } else {
        gain.inside = std::max(gain.inside, inside[i]);
        gain.beside = std::max(gain.beside, live_[i] - inside[i]);
      }
    }
    // Pieces that are put together are there twice; what comes from elsewhere is sliced.
    for (const Value* v : chain.cut()) {
      bool made = v->producer && chain.Contains(v->producer);
      if (made && chain.ReadOutside(v)) gain.beside += Bytes(v);
      if (!made) gain.inside += Bytes(v);
    }
    return gain;
  }

  // So many that more would save little.
  static int64_t SmallPieces(const Gain& gain) {
    int64_t small = std::max<int64_t>(gain.beside / kSmallPart, 1);
    return (gain.inside + small - 1) / small;
  }

  // So many that what is read again for each costs little time.
  int64_t AffordablePieces(const Piecewise& chain) const {
    int64_t flops = 0, again = 0;
    for (const Op* op : chain.ops()) {
      const bool halves = DTypeSize(op->in(0).dtype) < 4;
      flops += CostOnRank(*op, graph_.mesh).flops / (halves ? kSpeedOfHalves : 1);
      for (const Value* v : op->operands) again += chain.DimOf(v) < 0 ? Bytes(v) : 0;
      for (const Value* r : op->results) again += chain.DimOf(r) < 0 ? 2 * Bytes(r) : 0;
    }
    return 1 + flops / std::max<int64_t>(kFlopsPerByte * again, 1);
  }

  Graph& graph_;
  const ChunkOptions& options_;
  LiveBytes memory_;
  std::vector<int64_t> live_;      // by op
  std::vector<int> microbatches_;  // by op: that which is under way
  int64_t peak_ = 0;
};

}  // namespace

void Chunk(Graph& graph, const ChunkOptions& options) {
  constexpr int kMostChains = 16;
  graph.EraseDead();
  int microbatches = 1;
  for (const auto& op : graph.ops()) microbatches = std::max(microbatches, op->microbatch + 1);
  const int most = (options.pieces > 0 ? 1 : kMostChains) * microbatches;
  for (int i = 0; i < most; ++i) {
    if (!Chunking(graph, options).Run()) break;
  }
}

}  // namespace shardc
