// The steps of pattern recovery, one file each. recover.cc orders them and says why.
#pragma once

#include <set>
#include <string>

#include "frontend/recover/match.h"

namespace shardc::recover {

// Parameters in halves of which all that is read is cast to one wider type are of that type.
bool WidenParams(Graph& graph);
// Ops that do nothing, chains of reshapes or transposes.
bool Simplify(Graph& graph);
// Transposed operands of matmul, weights on the left, of all experts or of all heads.
bool SimplifyProducts(Graph& graph);
// Gathers at constant positions become slices, slices that are the whole together a split.
bool SimplifyPieces(Graph& graph);
// Rows that are gathered from several tensors in turns -> concat along a dim of their own.
bool SimplifyInterleaved(Graph& graph);
// Lookups of each example in itself, by indices that count the examples: with batch dims.
bool BatchLookups(Graph& graph);
// Rows that stand several times in a tensor are computed with once.
bool ComputeRepeatsOnce(Graph& graph);
// Parameters that hold the same rows many times, for a sum or a concat, keep one of each.
bool DropRepeatedRows(Graph& graph);
// Those of these names, which an exporter expanded to the batch, keep one of equal matrices, or one
// of equal rows. Without its word rows may be equal because they are new.
void DropExpanded(Graph& graph, const std::set<std::string>& expanded);
// [b, s, h] -> [b * s, h] for a matmul and back: the reshapes go below, where they cancel.
bool LiftLinears(Graph& graph);
// x + (y - x) where y is x rounded, or chosen by x: y - x has no gradient.
bool RecoverStraightThrough(Graph& graph);
// Adds a note where the graph has x - x or x / x of what parameters make: the gradient that one of
// the two had in the module, if the other was detached, is not in the file.
void NoteDetachedPairs(Graph& graph);
// where from sums of products with zeros and ones.
bool RecoverSelects(Graph& graph);
// layer_norm and rms_norm from their chains, with weight and bias.
bool RecoverNorms(Graph& graph);
// softmax from its quotient, without the maximum that is subtracted before it, and of masked scores
// where probabilities are masked and divided by their sum.
bool RecoverSoftmax(Graph& graph);
// gelu (tanh and erf) and silu.
bool RecoverActivations(Graph& graph);
// gather of a parameter, or a product of one-hot rows with it -> embedding; of consecutive constant
// rows -> slice.
bool RecoverEmbeddings(Graph& graph);
// Experts' weights that each token looks up -> products of each expert with its tokens.
bool SpreadExperts(Graph& graph);
// Products of rows that are multiplied with shares, zero but for a mask's -> of the mask's rows.
bool ChooseRowsOfExperts(Graph& graph);
// A lookup in log(softmax(x)), or log(sum(exp(x))) less one in x -> cross_entropy; of all rows
// where it is of most of them.
bool RecoverCrossEntropy(Graph& graph);
// Halves or neighbours turned by cos and sin -> rotary, with the rest of the row that is not.
bool RecoverRotary(Graph& graph);
// matmul, scale, mask, softmax, matmul -> attention, in its best layout.
bool RecoverAttention(Graph& graph);
// Attentions of a head each, whose results stand side by side -> one of all heads, of products with
// the weights of all of them.
bool RecoverSeparateHeads(Graph& graph);
// kv heads that are not repeated; layout "bshd" where heads came from and go back to [b, s, h, d].
bool ChooseAttentionLayout(Graph& graph);
// Two parameters that are the same matrix (or its transpose) become one.
void MergeTiedParams(Graph& graph);
// A vector used at several places becomes one parameter for each: exporters merge equal ones.
void SplitSharedVectors(Graph& graph);
// Notes parameters that are tables of sines: exporters do not say that a module does not train
// them.
void NoteSines(Graph& graph);
// `role`, `part`, `rows` and `columns` of the params.
void SetRoles(Graph& graph);

}  // namespace shardc::recover
