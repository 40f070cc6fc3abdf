// What the recovery rules share: looking at values, and running rules over a graph.
#pragma once

#include <array>
#include <cmath>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>

#include "ir/builder.h"
#include "ir/constant.h"
#include "ir/graph.h"

namespace shardc::recover {

// A rule returns the value that replaces the op's first result, or null. It may add ops before `op`
// through the builder and must not erase any. One that returns a value for an op with several
// results has replaced the others, or seen that they are unused.
using Rule = Value* (*)(Builder& builder, Op* op);

// Applies the rules to every op, in order, again and again until none applies; erases what died.
// Returns whether anything changed.
bool ApplyRules(Graph& graph, std::initializer_list<Rule> rules);

bool OneOf(std::string_view name, std::initializer_list<std::string_view> names);

// What v is, but for its order, its parts and its type: behind the ops that only arrange elements,
// or look some of them up.
const Value* ArrangedFrom(const Value* v);
bool Arranges(const Op* op);  // whether it is such an op

// The producer of v if it is an op of that name, else null.
Op* ProducedBy(const Value* v, std::string_view op);
// The cast whose result v is, if it is from one float type to another, and wider or narrower.
Op* FloatCast(const Value* v, bool widens);
// A reshape, or a transpose that only moves dims of size 1; not null.
bool KeepsOrder(const Op* op);
Value* Unshaped(Value* v);  // what it is reshaped from
// What v is the rounded form of, with the gradient of that where it is in range: x of
// x + (y - x) with a detached difference, or of where(c, x, 0) in its place; else null.
const Value* Unrounded(const Value* v);
bool IsProduct(const Op* op);                    // matmul or matmul_nt, or these of chosen rows
bool MultipliesByTransposed(const Op* product);  // the _nt of both
bool IsNorm(const Op* op);                       // layer_norm or rms_norm
bool IsLookup(const Op* op);                     // of rows: embedding, or gather along dim 0
// Whether a lookup takes these rows of its table as they are; else it does not train one of them.
bool TrainsRows(const Op* lookup, const Ints& rows);
bool TrainsAllRows(const Op* lookup);
// Whether the op is the product of something else with v as the right side, as a weight is.
bool MultipliesBy(const Op* op, const Value* v);
bool IsParam(const Value* v);
bool DependsOnParam(const Value* v);  // whether a param is among what v is computed from
// The one value that all elements of a constant have; sees through broadcast_to, reshape, slice and
// casts between float types.
std::optional<double> SplatOf(const Value* v);
// Whether all have this value; zeros may differ in sign, as those that beta = 0 makes of whatever
// memory held.
bool IsSplat(const Value* v, double value);
// Equal up to the rounding of a constant to float32.
inline bool Close(double a, double b) { return std::fabs(a - b) <= 1e-6 * std::fabs(b); }

// v = x * c or x / c with a splat c that does not broadcast x: (x, factor).
std::optional<std::pair<Value*, double>> ScaledBy(const Value* v);
// The x of x * x or pow(x, 2), else null.
Value* SquareOf(const Value* v);
// The coefficients of v as a polynomial in x of degree 3 or less, through add, sub, mul, div, neg
// and pow.
using Polynomial = std::array<double, 4>;
std::optional<Polynomial> PolynomialIn(const Value* x, const Value* v, int depth = 8);

// The first of consecutive ids along the last dim, the same in all rows; nothing if they are not
// so.
std::optional<int64_t> Consecutive(const HostTensor& ids);
// The ids [..., 1] of which v is the one-hot form [..., n], 1 where the id is the place in the row;
// else null.
Value* IdsOfOneHot(const Value* v, int64_t n);
// The ids, those that are no place among n moved to one, and 1 for those that are one, else 0.
std::pair<Value*, Value*> WithinTable(Builder& b, Value* ids, int64_t n, DType dtype);

// Whether the axis, which may count from the end, is the last one.
inline bool IsLastAxis(int64_t axis, int64_t rank) { return axis == -1 || axis == rank - 1; }
// Whether no op reads another result than the first: the statistics of a norm or an attention.
bool OnlyFirstResultRead(const Op& op);
bool IsPerm(const Op* transpose, const Ints& perm);
inline const Ints kSwapHeads = {0, 2, 1, 3};  // [b, s, h, d] <-> [b, h, s, d]
// What v is the transpose of by that, else null.
Value* BeforeSwap(const Value* v);
int HeadsDim(const Op& attention);  // the dim of q, k and v that heads are in
int64_t CountUses(const Value* v);

}  // namespace shardc::recover
