// Reductions over the same axes, and the linear ops behind them that could work on their operands
// instead.
#pragma once

#include <deque>
#include <vector>

#include "ir/graph.h"
#include "passes/rules.h"
#include "passes/sum_chains.h"

namespace shardc {

// What many regions of one graph ask. Op::id is in order, with room for what is made in between:
// few ops are numbered again when a region changes the graph.
struct SinkTables {
  explicit SinkTables(Graph& g) : graph(g) { Number(); }

  SumChains& ChainsFor(const AxisList& axes);
  // After a change of the graph at which ops were made, each right before or behind one of `beside`
  // or another such.
  void Changed(const std::vector<Op*>& beside);
  int64_t Visits() const;

  Graph& graph;
  Rules rules;
  std::deque<SumChains> chains;
  int64_t visits = 0;  // of ops and values, less those of `chains`

 private:
  void Number();
  // Numbers what was made right behind the op, or at the beginning. Whether there was room.
  bool NumberBehind(const Op* op);
};

// Whether it is cut or partial over one of the axes.
bool IsOver(const Sharding& s, const AxisList& axes);

// Moves the reductions, which are in order, behind the ops behind which less travels, if there are
// such. Whether they moved.
bool SinkTogether(SinkTables& tables, const std::vector<Op*>& reductions);

}  // namespace shardc
