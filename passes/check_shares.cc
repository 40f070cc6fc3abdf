// What a rank has of an op's operands and results: kernels go by the local shapes, so these must be
// shares of one loop.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "ir/diagnostic.h"
#include "passes/check_context.h"

namespace shardc {
namespace {

// One instruction under its rule: every operand and result has as much of a factor as the others,
// and all of one that the op needs whole.
class Shares {
 public:
  // `added` (or -1) is an operand that the rule knows nothing of: it is as the result.
  Shares(const CheckContext& context, int instruction, const Op& op, int added)
      : context_(context), at_(instruction), rule_(op.def->rule(op)) {
    const Instruction& i = context.instruction(instruction);
    SHARDC_CHECK(
        rule_.operands.size() == op.operands.size() && rule_.results.size() == i.results.size(),
        i.op);
    for (size_t k = 0; k < rule_.operands.size(); ++k) Add(i.operands[k], rule_.operands[k]);
    for (size_t k = 0; k < rule_.results.size(); ++k) Add(i.results[k], rule_.results[k]);
    if (added >= 0) Add(added, rule_.results[0]);
  }

  void Check() {
    for (const Dim& d : dims_) {
      if (d.factors.empty() || (d.alone() && IsWhole(d.factors[0]))) RequireWhole(d);
      if (d.alone()) Learn(d);
    }
    CheckProducts();
    for (const Dim& d : dims_) {
      if (!d.segments.empty()) CheckSegments(d);
    }
  }

 private:
  struct Dim {
    int buffer;
    size_t index;
    int64_t size, local;
    std::vector<int> factors;
    std::vector<int64_t> segments;
    bool alone() const { return factors.size() == 1 && segments.empty(); }
  };
  struct Share {
    int64_t local;
    int buffer;
  };

  void Add(int id, const std::vector<DimFactors>& factors) {
    const Buffer& b = context_.buffer(id);
    for (size_t d = 0; d < b.type.shape.size(); ++d) {
      Dim dim{id, d, b.type.shape[d], b.local_shape[d], {}, {}};
      if (d < factors.size()) {
        dim.factors = factors[d].factors;
        dim.segments = factors[d].segments;
      }
      dims_.push_back(std::move(dim));
    }
  }

  bool IsWhole(int factor) const { return rule_.factors[factor].kind != FactorKind::kPlain; }

  int64_t SizeOf(int factor) const { return rule_.factors[factor].size; }

  [[noreturn]] void Fail(const Dim& d, const std::string& what) const {
    context_.FailAt(
        at_, "E3105",
        StrCat(context_.DescribeBuffer(d.buffer), " is ",
               ShapeToString(context_.buffer(d.buffer).local_shape), " on a rank, ", what));
  }
  [[noreturn]] void FailBeside(const Dim& d, int other) const {
    Fail(d, StrCat("which does not fit ", context_.DescribeBuffer(other), ", there ",
                   ShapeToString(context_.buffer(other).local_shape)));
  }

  void RequireWhole(const Dim& d) const {
    if (d.local != d.size) Fail(d, StrCat("and the op needs dim ", d.index, " whole"));
  }

  // A rank has as much of every dim of one size that is the factor alone.
  void Learn(const Dim& d) {
    const Share share{d.local, d.buffer};
    const Share& first = known_.try_emplace({d.factors[0], d.size}, share).first->second;
    if (first.local != d.local) FailBeside(d, first.buffer);
  }

  std::optional<int64_t> Known(int factor, int64_t size) const {
    auto it = known_.find({factor, size});
    if (it != known_.end()) return it->second.local;
    if (size == 1 || IsWhole(factor)) return size;
    return std::nullopt;
  }

  // A product of which one factor is not known gives it, so that others can be checked.
  void CheckProducts() {
    std::vector<const Dim*> open;
    for (const Dim& d : dims_) {
      if (d.factors.size() > 1) open.push_back(&d);
    }
    while (!open.empty()) {
      const size_t closed = std::erase_if(open, [this](const Dim* d) { return CheckProduct(*d); });
      SHARDC_CHECK(closed > 0, context_.instruction(at_).op, ": its rule leaves factors open");
    }
  }

  // False where more than one factor is not known yet.
  bool CheckProduct(const Dim& d) {
    int64_t product = 1;
    int unknown = -1;
    bool fits = true;
    for (int f : d.factors) {
      auto share = Known(f, SizeOf(f));
      if (!share && unknown >= 0) return false;
      if (!share) unknown = f;
      fits = fits && !__builtin_mul_overflow(product, share.value_or(1), &product);
    }
    fits = fits && (unknown < 0 ? product == d.local : product > 0 && d.local % product == 0);
    if (!fits) Fail(d, StrCat("and the parts of dim ", d.index, " do not give that"));
    if (unknown >= 0) known_[{unknown, SizeOf(unknown)}] = {d.local / product, d.buffer};
    return true;
  }

  void CheckSegments(const Dim& d) const {
    int64_t sum = 0;
    for (int64_t size : d.segments) sum += Known(d.factors[0], size).value();
    if (sum != d.local) Fail(d, StrCat("and the pieces of dim ", d.index, " make ", sum));
  }

  const CheckContext& context_;
  const int at_;
  const ShardingRule rule_;
  std::vector<Dim> dims_;
  std::map<std::pair<int, int64_t>, Share> known_;  // by factor and size of the dim
};

class ShareChecker {
 public:
  explicit ShareChecker(const CheckContext& context) : context_(context) {}

  void Run() {
    for (size_t k = 0; k < context_.program.instructions.size(); ++k) {
      const int i = static_cast<int>(k);
      const OpDef* def = context_.defs[k];
      // What collectives move is counted in elements: check_collectives.cc.
      if (!def || def->communicates) continue;
      if (!def->rule) {
        CheckMove(i, *def);
      } else if (!LikeBefore(i)) {
        CheckRule(i, *def);
      }
    }
  }

 private:
  // Layers repeat, and rules take time. One instruction is remembered per hash.
  bool LikeBefore(int i) {
    const Instruction& now = context_.instruction(i);
    size_t hash = std::hash<const void*>()(context_.defs[i]);
    for (const std::vector<int>* list : {&now.operands, &now.results}) {
      for (int b : *list) {
        for (int64_t n : context_.buffer(b).local_shape) {
          hash = (hash ^ static_cast<size_t>(n)) * 0x9e3779b97f4a7c15 + (hash >> 29);
        }
      }
    }
    auto [it, fresh] = checked_.try_emplace(hash, i);
    const Instruction& before = context_.instruction(std::exchange(it->second, i));
    return !fresh && before.op == now.op && before.attrs == now.attrs &&
           SameShapes(before.operands, now.operands) && SameShapes(before.results, now.results);
  }

  // In all that shares depend on.
  bool SameShapes(const std::vector<int>& a, const std::vector<int>& b) const {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](int x, int y) {
      const Buffer &s = context_.buffer(x), &t = context_.buffer(y);
      return s.type.SameTensor(t.type) && s.local_shape == t.local_shape;
    });
  }

  void CheckRule(int i, const OpDef& def) const {
    const Instruction& instruction = context_.instruction(i);
    Op op;
    op.def = &def;
    op.attrs = instruction.attrs;
    size_t operands = instruction.operands.size();
    // With the operand to which the op adds its result, a rule is about more than memory: what is
    // summed over would have to be whole for the sum to be.
    const bool adds = def.adds_to >= 0 && static_cast<int>(operands) == def.adds_to + 1;
    if (adds) --operands;
    std::vector<Value> values(operands + instruction.results.size());
    for (size_t k = 0; k < values.size(); ++k) {
      const bool result = k >= operands;
      const int b = result ? instruction.results[k - operands] : instruction.operands[k];
      values[k].type = context_.buffer(b).type;
      (result ? op.results : op.operands).push_back(&values[k]);
    }
    Shares(context_, i, op, adds ? instruction.operands.back() : -1).Check();
  }

  // What only moves elements within a rank may change the cut of the dim that it names.
  void CheckMove(int i, const OpDef& def) const {
    const Instruction& instruction = context_.instruction(i);
    const bool names = std::any_of(def.attrs.begin(), def.attrs.end(),
                                   [](const AttrSpec& a) { return a.name == "dim"; });
    const int64_t moved = names ? instruction.attrs.Int("dim") : -1;
    const int in = instruction.operands[0], out = instruction.results[0];
    const Shape &from = context_.buffer(in).local_shape, &to = context_.buffer(out).local_shape;
    for (size_t d = 0; d < to.size(); ++d) {
      if (from[d] == to[d] || static_cast<int64_t>(d) == moved) continue;
      context_.FailAt(i, "E3105",
                      StrCat(context_.DescribeBuffer(in), " is ", ShapeToString(from),
                             " on a rank, which does not fit ", context_.DescribeBuffer(out),
                             ", there ", ShapeToString(to)));
    }
  }

  const CheckContext& context_;
  std::unordered_map<size_t, int> checked_;
};

}  // namespace

void CheckShares(const CheckContext& context) { ShareChecker(context).Run(); }

}  // namespace shardc
