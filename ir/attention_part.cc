#include "ir/attention_part.h"

#include "ir/diagnostic.h"
#include "ir/dropout.h"

namespace shardc {
namespace {

constexpr size_t kQueries = 2;  // of probabilities

}  // namespace

ProbabilityPlaces PlacesOfProbabilities(const KernelCall& call, const TensorView& rows,
                                        bool heads_first, int64_t keys) {
  const int head = heads_first ? 1 : 2, query = 3 - head;
  Shape local, global;
  std::vector<std::vector<Run>> runs;
  for (int d : {0, head, query}) {
    local.push_back(rows.shape[d]);
    global.push_back(call.GlobalDim(rows, d));
    runs.push_back(call.Runs(rows, d));
  }
  local.push_back(keys);
  global.push_back(keys);
  runs.push_back({{0, 0, keys}});
  auto dims = PlacesOfDims(*call.attrs, local, global, runs);
  for (auto& dim : dims) {
    for (int64_t& at : dim) at = at < 0 ? 0 : at;
  }
  return {std::move(dims[0]), std::move(dims[1]), std::move(dims[2])};
}

int64_t CausalDiagonal(const Attributes& attrs, int64_t queries, int64_t keys) {
  const int64_t whole = attrs.Has("whole") ? attrs.IntList("whole")[kQueries] : queries;
  const int64_t first = attrs.Has("origin") ? attrs.IntList("origin")[kQueries] : 0;
  return keys - whole + first;
}

int64_t CausalDiagonal(const KernelCall& call, const TensorView& rows, bool heads_first,
                       int64_t keys) {
  const int query = heads_first ? 2 : 1;
  const std::vector<Run> runs = call.Runs(rows, query);
  // Factor::contiguous.
  SHARDC_CHECK(runs.size() <= 1, "the queries of a rank are in ", runs.size(), " places");
  const int64_t first = runs.empty() ? 0 : runs[0].global - runs[0].local;
  return CausalDiagonal(*call.attrs, call.GlobalDim(rows, query), keys) + first;
}

}  // namespace shardc
