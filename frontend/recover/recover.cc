#include "frontend/recover.h"

#include "frontend/recover/patterns.h"
#include "ir/merge_equal.h"

namespace shardc {

namespace {

void Clean(Graph& graph) {
  for (bool changed = true; changed;) {
    changed = recover::Simplify(graph);
    changed |= recover::SimplifyProducts(graph);
    changed |= MergeEqual(graph);
    changed |= recover::SimplifyPieces(graph);
    changed |= recover::SimplifyInterleaved(graph);
    changed |= recover::BatchLookups(graph);
    changed |= recover::ComputeRepeatsOnce(graph);
  }
}

}  // namespace

void RecoverPatterns(Graph& graph) {
  // First: no pattern has to see through the casts of weights.
  recover::WidenParams(graph);
  // Positions and masks that every layer computes for itself become one, and spellings become
  // alike.
  Clean(graph);
  recover::RecoverStraightThrough(graph);
  recover::NoteDetachedPairs(graph);
  // Before softmaxes, and attention: masks are choices.
  if (recover::RecoverSelects(graph)) Clean(graph);
  recover::RecoverSoftmax(graph);
  // Before the patterns, so that they see broadcasting in its usual form.
  if (recover::DropRepeatedRows(graph)) Clean(graph);
  // Chains over the last dim, before lifting moves reshapes into them; and after it, for chains
  // that had reshapes inside.
  recover::RecoverNorms(graph);
  recover::RecoverActivations(graph);
  if (recover::LiftLinears(graph)) {
    Clean(graph);
    recover::RecoverNorms(graph);
    recover::RecoverActivations(graph);
  }
  recover::RecoverEmbeddings(graph);
  // Wants lookups, norms and activations as ops.
  if (recover::SpreadExperts(graph)) Clean(graph);
  if (recover::ChooseRowsOfExperts(graph)) Clean(graph);
  recover::RecoverCrossEntropy(graph);
  // Before layouts are chosen: a transpose sinks through one op, and not through its pieces.
  if (recover::RecoverRotary(graph)) Clean(graph);
  // Wants reshapes and transposes of q, k, v folded, and layout choice wants them gone around the
  // result.
  recover::RecoverAttention(graph);
  // Finds tables and heads as embedding and matmul operands.
  recover::MergeTiedParams(graph);
  Clean(graph);
  // One use is one site only once the chains are ops.
  recover::SplitSharedVectors(graph);
  // Reads all of the above.
  recover::SetRoles(graph);
  // Joins weights that have roles of their own.
  if (recover::RecoverSeparateHeads(graph)) Clean(graph);
}

}  // namespace shardc
