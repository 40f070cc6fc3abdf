// Reductions over the same axes, and the linear ops behind them that could work on their operands
// instead.
#pragma once

#include <deque>
#include <vector>

#include "ir/graph.h"
#include "passes/rules.h"
#include "passes/sum_chains.h"

namespace shardc {

// What many regions of one graph ask.
struct SinkTables {
  explicit SinkTables(Graph& g) : graph(g) { Changed(); }

  SumChains& ChainsFor(const AxisList& axes);
  // Numbers the ops again, and forgets what is no longer so.
  void Changed();
  int64_t Visits() const;

  Graph& graph;
  Rules rules;
  std::deque<SumChains> chains;
  int64_t visits = 0;  // of ops and values, less those of `chains`
};

// Whether it is cut or partial over one of the axes.
bool IsOver(const Sharding& s, const AxisList& axes);

// Moves the reductions, which are in order, behind the ops behind which less travels, if there are
// such. Whether they moved.
bool SinkTogether(SinkTables& tables, const std::vector<Op*>& reductions);

}  // namespace shardc
