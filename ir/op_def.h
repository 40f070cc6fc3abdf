// One OpDef per op holds all that passes ask: inference, sharding rule, gradient, cost, reference
// semantics. No pass switches over op names.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/kernel_call.h"
#include "ir/sharding_rule.h"

namespace shardc {

class Builder;

enum class AttrKind : uint8_t { kInt, kFloat, kBool, kString, kInts, kStrings, kTensor };

// What the precision pass does with an op's floats where a model computes in a smaller type.
enum class Precision : uint8_t {
  kFull,        // operands in the model's own type: statistics, softmax, losses, updates
  kCompute,     // operands in the compute type, sums in f32: products, attention
  kFollow,      // the type that its whole operands already have: what is linear in memory traffic
  kAccumulate,  // in the model's own type, but a bias follows what it is added to: residuals, sums
                // of gradients
  kWiden,       // operands as they are, results in the model's own type: sums
};

// What its CPU kernel does with bf16 and f16. What is widened is copied to f32 first, results back
// (runtime/cpu/widen.h): memory that a prediction has to know of.
enum class CpuHalves : uint8_t {
  kAsTheyAre,   // it only moves them, or there is no kernel but the reference
  kWidened,     // all of them are
  kBf16Result,  // a bf16 result whose type the op chooses is written as such, and a bf16 operand
                // that may be narrow is read as such; others are widened
  kBf16,        // bf16 is computed on as it is; f16 is widened
};

struct AttrSpec {
  std::string_view name;
  AttrKind kind;
  bool required = false;
};

struct InferArgs {
  std::span<const TensorType* const> operands;
  const Attributes& attrs;
  const TensorType& operator[](size_t i) const { return *operands[i]; }
  size_t size() const { return operands.size(); }
};

// Asked for only where the gradient of some result has arrived and that of some operand is wanted:
// an op with one result and one float operand has nothing to check. Neither holds for integers.
struct GradientArgs {
  Builder& builder;
  const Op& op;  // of the forward graph; its operands and results may be used
  std::span<Value* const> result_grads;  // null where no gradient arrives
  const std::vector<bool>& wanted;       // per operand: false where a gradient would be dropped
};

// How a value lies over the mesh axes that an op names in its attribute "axes": whole, a partial
// sum (a maximum where the attribute "reduce" says so), or cut, along the dim that the attribute
// `dim` names, by these axes behind all others.
struct Lies {
  enum Kind : uint8_t { kWhole, kPartial, kCut } kind = kWhole;
  std::string_view dim = {};
};
// What an op that is placed by hand changes of it. Over all other axes results lie as operands do.
struct Movement {
  Lies from, to;
};

// A value of the forward that a gradient can make again on its way.
struct MadeAgain {
  Value* value = nullptr;
  std::vector<Value*> operands;  // of the op that does so, with the attribute OpDef::again
};

struct OpDef {
  std::string_view name;
  int min_operands = 1;
  int max_operands = 1;  // -1: any number
  bool Takes(size_t n) const {
    return static_cast<int>(n) >= min_operands &&
           (max_operands < 0 || static_cast<int>(n) <= max_operands);
  }
  std::vector<AttrSpec> attrs;

  // Global result types (dtype and shape; shardings are left whole), and the op's verifier: throws
  // Diagnostic E1101 when operands or attributes do not fit. The registry adds to it that a result
  // has no negative dim and is not too large.
  std::function<std::vector<TensorType>(const InferArgs&)> infer;

  // Null: the op is placed by hand (param, reshard, collectives): passes treat its types as given.
  std::function<ShardingRule(const Op&)> rule;

  // Gradients with respect to the operands, null where none. Null function: not differentiable, and
  // no_gradient says why ("integer result"); a gradient that arrives there is dropped if
  // gradient_is_zero, else refused.
  std::function<std::vector<Value*>(const GradientArgs&)> gradient;
  std::string_view no_gradient;
  bool gradient_is_zero = false;

  // Floating point operations for the global types; null: elements of the results.
  std::function<int64_t(const Op&)> flops;

  // The values of an integer operand are indices below this; 0: they are none. Null: no operand's.
  std::function<int64_t(int operand, const InferArgs&)> index_limit;

  // Reads of operand 0 only as many elements as the result has (lookups, slices).
  bool picks = false;

  // Memory that its CPU kernel takes beside the operands, in bytes, about, by the local types of
  // the op; for predictions only. Null: next to none.
  std::function<int64_t(const Op&)> work_bytes;

  // Memory beside operands and results, in bytes, that a kernel of some backend can make use of, at
  // most, by the local types of the op: where the arena has as much to spare, the program lends it
  // (Instruction::scratch). Null: none.
  std::function<int64_t(const InferArgs&)> scratch_bytes;

  CpuHalves cpu_halves = CpuHalves::kAsTheyAre;

  // An operand that may be left out, to which the result is added; in place where that is free. -1:
  // none.
  int adds_to = -1;

  // The attributes of the op on parts of its operands, with results of these types; the first
  // begins at `origin` in the whole. Null: they are the same for parts.
  std::function<Attributes(const Op&, std::span<const TensorType> results, const Shape& origin)>
      resized;

  // Naive semantics on local views, in any dtype the op allows: the oracle for every fast kernel
  // and the constant folder. Floats accumulate in double. Null only for ops that move data between
  // ranks and for param/state/update.
  std::function<void(const KernelCall&)> reference;

  // Of a gradient: what it could make again while it reads what that is made of, bit for bit and
  // for no more than the writing, so that it need not live until then. Nothing, or null: there is
  // none. The attribute named by `again`, a float type or "" for the value's own, asks for it: as
  // one more result, of that type, behind the others. Kernels give its own, and halves where that
  // is f32.
  std::function<std::optional<MadeAgain>(const Op& gradient)> makes_again;
  std::string_view again;

  // For rules with kExpandable factors, or placed ones: builds, before `op`, ops with plain rules
  // that compute the same results (statistics by reduce ops, so that only these travel) and returns
  // one value per result.
  std::function<std::vector<Value*>(Builder&, const Op&)> expand;

  // A value that equals the only result of `op` and costs less: an operand, or one that the builder
  // makes in the op's place. Null: there is none. For any graph, sharded or not.
  std::function<Value*(Builder&, const Op&)> simplify;

  // For ops that drop elements (ir/dropout.h) where they have the attribute "ratio": what the op
  // gives if nothing is dropped, one value per result, made by the builder in the op's place. Null:
  // it never drops.
  std::function<std::vector<Value*>(Builder&, const Op&)> undropped;
  bool random = false;  // always draws, and drops nothing

  // For ops that stand for several others (fused kernels): replaces `root`, an op named `fuses_at`
  // of a lowered graph, and ops that it reads by this op, if they match. False: they do not.
  std::string_view fuses_at;
  std::function<bool(Graph&, Op& root)> fuse;

  Precision precision = Precision::kFull;
  // Operands that stay in the model's type under kCompute (statistics, float masks).
  std::vector<int> full_operands;
  // The result whose type the attribute "out" chooses among the floats; -1: none.
  int typed_result = -1;
  // Operands that may be halves where the others are f32: kernels widen them as they read.
  std::vector<int> narrow_operands;

  // One pass over the operands with a few flops for each element: what it makes may as well be made
  // again as kept. Elementwise ops are cheap without saying so; a contraction never is.
  bool cheap = false;
  // The result holds the operand's elements in their order.
  bool view = false;

  // Whether a result may be made in the memory of an operand of the same local shape and bytes that
  // nothing else of the op shares: kernels of every backend, and the reference, have read there
  // what they need before they write. Null: elementwise ops may in any operand (others that are
  // read element for element may share it too), other ops in none.
  std::function<bool(int operand, int result)> in_place;

  bool elementwise = false;   // results have the broadcast shape
  bool side_effect = false;   // kept though nothing reads it
  bool is_state = false;      // param, state: persistent, named by attribute "name"
  bool communicates = false;  // moves data between ranks
  // Of collectives, and of a slice that each rank takes; nothing: a reshard, or another op.
  std::optional<Movement> moves;
  // Over the mesh axes of the attribute "axes" the result is cut as its type says, by the spec's
  // word; over the others by choice.
  bool constrains = false;
  // Zero in the padding of every operand gives zero in the padding of every result; but for what is
  // made again (KeepsZeroPadding).
  bool keeps_zero_padding = false;
  // The reference and fast kernels ignore padding along every dim by themselves (valid runs).
  bool ignores_padding = false;
};

bool IsOfKind(const Attribute& a, AttrKind kind);

// Throws Diagnostic E7002 with suggestions when unknown.
const OpDef& GetOpDef(std::string_view name);
const OpDef* FindOpDef(std::string_view name);
// All registered ops, by name.
std::vector<const OpDef*> AllOpDefs();

// OpDef::infer of these values.
std::vector<TensorType> InferResults(const OpDef& def, const std::vector<Value*>& operands,
                                     const Attributes& attrs);

bool IsCheap(const OpDef& def);  // cheap or elementwise, and moves nothing between ranks
// The result that OpDef::again asks for, or null.
const Value* AgainResult(const Op& op);
bool KeepsZeroPadding(const Op& op);
// Whether the result is another name for the operand's memory on every rank.
bool IsView(const Op& op, const Mesh& mesh);

// Whether the op draws (ir/dropout.h). The step, an integer scalar, is its last operand then; the
// attribute "stream" is another for each such op of a model.
bool IsRandom(const Op& op);
bool Drops(const Op& op);  // elements, by what it draws

// Whether the op's result is cut over the axis by the spec's word (OpDef::constrains).
bool Constrains(const Op& op, int axis, const Mesh& mesh);
// Its attribute "why"; empty without one.
Strings WhyOf(const Op& op);

bool MayRunInPlace(const OpDef& def, int operand, int result);

int64_t Flops(const Op& op);
// Bytes read and written, by the global types: every operand and every result once.
int64_t BytesMoved(const Op& op);

// The same for one rank, by the local shapes.
struct LocalCost {
  int64_t flops = 0, bytes = 0, work_bytes = 0;
  int64_t widened_bytes = 0;  // copies that the CPU makes of bf16 or f16 (CpuHalves)
};
LocalCost CostOnRank(const Op& op, const Mesh& mesh);

// For OpDef::infer: throws Diagnostic E1101 naming the op.
[[noreturn]] void InferError(std::string_view op, const std::string& what);

// Result shape of numpy broadcasting; throws through InferError.
Shape BroadcastShapes(std::string_view op, const Shape& a, const Shape& b);
// Axis in [0, rank) from one that may be negative; throws through InferError.
int NormalizeAxis(std::string_view op, int64_t axis, int rank);
// The attribute "axis" of an op that has been inferred, in [0, rank).
int AxisOf(const Attributes& attrs, int rank);

// Each family registers its ops; called once by the registry.
class OpRegistry;
void RegisterStateOps(OpRegistry&);        // param, state, update, constant
void RegisterElementwiseOps(OpRegistry&);  // unary, binary, compare, where, cast
void RegisterActivationOps(
    OpRegistry&);                     // gelu, silu, relu, sigmoid, tanh, erf and their gradients
void RegisterShapeOps(OpRegistry&);   // reshape, transpose, broadcast_to, slice, pad, concat, split
void RegisterReduceOps(OpRegistry&);  // reduce_sum, reduce_max, ..., cumsum
void RegisterMatmulOps(OpRegistry&);  // matmul, matmul_nt, matmul_tn; the same of chosen rows
void RegisterIndexOps(OpRegistry&);   // embedding, gather, gather_nd
void RegisterNormOps(OpRegistry&);    // layer_norm, rms_norm, softmax
void RegisterAttentionOps(OpRegistry&);  // attention, attention_grad
void RegisterRotaryOps(OpRegistry&);     // rotary
void RegisterLossOps(OpRegistry&);       // cross_entropy and its pieces
void RegisterOptimizerOps(OpRegistry&);  // adamw, sgd
void RegisterDropoutOps(OpRegistry&);    // dropout
void RegisterRandomOps(OpRegistry&);     // random_uniform
void RegisterReshardOps(OpRegistry&);    // reshard, all_reduce, all_gather, ...
void RegisterFusedOps(OpRegistry&);      // what the fuse pass makes

class OpRegistry {
 public:
  void Add(OpDef def);
};

}  // namespace shardc
