#include "passes/lower.h"

#include <algorithm>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/op_def.h"

namespace shardc {
namespace {

// What the pass has made of each value, in the order of the graph.
using Made = std::unordered_map<const Value*, std::vector<Op*>>;

class ReshardLowering {
 public:
  ReshardLowering(Graph& graph, Op* reshard, Made& made)
      : graph_(graph),
        mesh_(graph.mesh),
        made_(made),
        op_(reshard),
        value_(reshard->operands[0]),
        to_(reshard->out().sharding) {}

  void Run() {
    for (int d = 0; d < rank(); ++d) SliceFreshAxes(d);
    for (int d = 0; d < rank(); ++d) ReduceInto(d);
    for (bool max : {false, true}) Reduce(max);
    for (int d = 0; d < rank(); ++d) Move(d);
    for (int d = 0; d < rank(); ++d) Gather(d);
    for (int d = 0; d < rank(); ++d) SliceRest(d);
    SHARDC_CHECK(value_->type.sharding == to_, TypeToString(op_->in(0), mesh_), " -> ",
                 TypeToString(op_->out(), mesh_), " gave ", TypeToString(value_->type, mesh_));
    graph_.ReplaceAllUses(op_->result(), value_);
    graph_.Erase(op_);
  }

 private:
  int rank() const { return value_->type.rank(); }
  const DimSharding& Now(int d) const { return value_->type.sharding.dims[d]; }

  void Make(std::string_view name, Sharding to, Attributes attrs) {
    for (const char* key : {"why", "for"}) {
      const Attribute* a = op_->attrs.Find(key);
      if (a && name != "local_slice") attrs.Set(key, *a);
    }
    TensorType type(value_->type.dtype, value_->type.shape, std::move(to));
    type.sharding = Canonical(type, mesh_);
    std::vector<Op*>& of_value = made_[value_];
    for (Op* other : of_value) {
      if (!Equal(*other, name, type, attrs)) continue;
      value_ = other->result();
      return;
    }
    Op* made = graph_.AddOp(GetOpDef(name), {value_}, {type}, std::move(attrs), op_, *op_);
    of_value.push_back(made);
    value_ = made->result();
  }

  // Whether another reshard has done this, at the same time: nothing is kept for a later phase.
  bool Equal(const Op& other, std::string_view name, const TensorType& type,
             Attributes attrs) const {
    if (other.name() != name || other.out() != type || other.phase != op_->phase) return false;
    if (!other.RunsWith(*op_)) return false;
    Attributes others = other.attrs;
    for (Attributes* a : {&attrs, &others}) a->Erase("why"), a->Erase("for");
    return attrs == others;
  }

  // The axes that the dim shall have beyond its present ones when these are the first of those in
  // the same layout.
  std::optional<AxisList> Beyond(int d) const {
    const DimSharding &from = Now(d), &to = to_.dims[d];
    const int shared = from.axes.size();
    if (shared > to.axes.size() || from != First(to, d, shared)) return std::nullopt;
    AxisList rest;
    for (int i = shared; i < to.axes.size(); ++i) rest.push_back(to.axes[i]);
    return rest;
  }

  DimSharding First(const DimSharding& dim, int d, int count) const {
    return FirstAxes(value_->type.shape[d], dim, count, mesh_);
  }

  // By the next axes that the dim shall have.
  void Slice(int d, const AxisList& axes) {
    Sharding to = value_->type.sharding;
    to.dims[d] = First(to_.dims[d], d, Now(d).axes.size() + axes.size());
    Make("local_slice", std::move(to), {{"axes", mesh_.Names(axes)}, {"dim", int64_t{d}}});
  }

  void SliceFreshAxes(int d) {
    auto rest = Beyond(d);
    if (!rest) return;
    AxisList fresh;
    for (int a : *rest) {
      if (value_->type.sharding.Uses(a)) break;
      fresh.push_back(a);
    }
    if (!fresh.empty()) Slice(d, fresh);
  }

  void SliceRest(int d) {
    auto rest = Beyond(d);
    SHARDC_CHECK(rest, "dim ", d);
    if (!rest->empty()) Slice(d, *rest);
  }

  // Partial axes that shall cut the dim in the end, from the major side: reduce and cut in one.
  void ReduceInto(int d) {
    auto rest = Beyond(d);
    if (!rest) return;
    Sharding to = value_->type.sharding;
    AxisList axes;
    for (int a : *rest) {
      if (!to.partial_sum.contains(a)) break;
      to.partial_sum.erase(a);
      axes.push_back(a);
    }
    if (axes.empty()) return;
    to.dims[d] = First(to_.dims[d], d, Now(d).axes.size() + axes.size());
    Make("reduce_scatter", std::move(to), {{"axes", mesh_.Names(axes)}, {"dim", int64_t{d}}});
  }

  void Reduce(bool max) {
    auto list = [&](Sharding& s) -> AxisList& { return max ? s.partial_max : s.partial_sum; };
    AxisList reduce;
    for (int a : list(value_->type.sharding)) {
      if (!list(to_).contains(a)) reduce.push_back(a);
    }
    if (reduce.empty()) return;
    Sharding to = value_->type.sharding;
    for (int a : reduce) list(to).erase(a);
    Make("all_reduce", std::move(to),
         {{"axes", mesh_.Names(reduce)}, {"reduce", std::string(max ? "max" : "sum")}});
  }

  // The minor-most axis of dim d moves to the dim that shall have it.
  void Move(int d) {
    if (!Now(d).cut()) return;
    int axis = Now(d).axes.back();
    if (to_.dims[d].axes.contains(axis)) return;
    DimSharding left = First(Now(d), d, Now(d).axes.size() - 1);
    for (int e = 0; e < rank(); ++e) {
      if (e == d) continue;
      auto rest = Beyond(e);
      if (!rest || rest->size() != 1 || (*rest)[0] != axis) continue;
      Sharding to = value_->type.sharding;
      to.dims[d] = left;
      to.dims[e] = to_.dims[e];
      Make("all_to_all", std::move(to),
           {{"axes", Strings{mesh_.axes()[axis].name}},
            {"concat_dim", int64_t{d}},
            {"split_dim", int64_t{e}}});
      return;
    }
  }

  void Gather(int d) {
    if (!Now(d).cut() || Beyond(d)) return;
    // Keep what both have.
    const DimSharding &now = Now(d), &want = to_.dims[d];
    int keep = std::min(now.axes.size(), want.axes.size());
    while (First(now, d, keep) != First(want, d, keep)) --keep;
    AxisList gather;
    for (int i = keep; i < now.axes.size(); ++i) gather.push_back(now.axes[i]);
    Sharding to = value_->type.sharding;
    to.dims[d] = First(now, d, keep);
    Make("all_gather", std::move(to), {{"axes", mesh_.Names(gather)}, {"dim", int64_t{d}}});
  }

  Graph& graph_;
  const Mesh& mesh_;
  Made& made_;
  Op* op_;
  Value* value_;
  Sharding to_;
};

}  // namespace

void LowerReshards(Graph& graph) {
  Made made;
  for (auto it = graph.ops().begin(); it != graph.ops().end();) {
    Op* op = (it++)->get();
    if (op->name() == "reshard") ReshardLowering(graph, op, made).Run();
  }
}

}  // namespace shardc
