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
    // What moves may be where a reduction belongs after it.
    for (int d = 0; d < rank(); ++d) {
      while (Move(d)) {
        for (int e = 0; e < rank(); ++e) ReduceInto(e);
      }
    }
    for (bool max : {false, true}) Reduce(max);
    for (int d = 0; d < rank(); ++d) Regroup(d);
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
    MakeOp(name, value_->type.shape, std::move(to), std::move(attrs));
  }

  void MakeOp(std::string_view name, Shape shape, Sharding to, Attributes attrs) {
    TensorType type(value_->type.dtype, std::move(shape), std::move(to));
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

  // The next axes that another dim shall have are moved there, once those minor to them are
  // gathered. Whether there are such.
  bool Move(int d) {
    const AxisList now = Now(d).axes;
    auto wanted = [&](int axis) { return to_.dims[d].axes.contains(axis); };
    for (int e = 0; e < rank(); ++e) {
      const auto rest = e == d ? std::nullopt : Beyond(e);
      if (!rest || rest->empty()) continue;
      const auto* const first = std::find(now.begin(), now.end(), (*rest)[0]);
      const auto* const last = std::mismatch(first, now.end(), rest->begin(), rest->end()).first;
      if (first == last || std::any_of(first, now.end(), wanted)) continue;
      if (std::any_of(last, now.end(), [&](int a) { return to_.Uses(a); })) continue;
      auto part = [&](const uint8_t* from, const uint8_t* to) {
        AxisList axes;
        for (; from != to; ++from) axes.push_back(*from);
        return axes;
      };
      Sharding to = value_->type.sharding;
      if (last != now.end()) {
        to.dims[d] = First(Now(d), d, static_cast<int>(last - now.begin()));
        Make("all_gather", to, {{"axes", mesh_.Names(part(last, now.end()))}, {"dim", int64_t{d}}});
      }
      const AxisList moved = part(first, last);
      to.dims[d] = First(Now(d), d, static_cast<int>(first - now.begin()));
      to.dims[e] = First(to_.dims[e], e, Now(e).axes.size() + moved.size());
      Make("all_to_all", std::move(to),
           {{"axes", mesh_.Names(moved)}, {"concat_dim", int64_t{d}}, {"split_dim", int64_t{e}}});
      return true;
    }
    return false;
  }

  // How many segments a dim has that is cut within each of `segments`, and shall be, over the same
  // axes, between them; else 0.
  int64_t CutBetween(int d, const DimSharding& within, const DimSharding& between) const {
    const auto& segments = within.segments;
    if (segments.size() < 2 || within.axes != between.axes || !between.segments.empty()) return 0;
    const int64_t size = value_->type.shape[d];
    const bool equal = std::ranges::all_of(segments, [&](int64_t n) { return n == segments[0]; });
    const DimSharding whole_ones{within.axes, segments[0], {}};
    const bool fits = Canonical(size, whole_ones, mesh_) == between;
    return equal && fits ? static_cast<int64_t>(segments.size()) : 0;
  }

  // Between 12@tp/4 and 12@tp%3, which are [4, 3@tp] and [4@tp, 3]: axes move from one dim of these
  // to the other.
  void Regroup(int d) {
    const DimSharding now = Now(d), want = to_.dims[d];
    int64_t count = CutBetween(d, now, want);
    const bool gathers = count > 0;  // what is within a segment
    if (!gathers) count = CutBetween(d, want, now);
    if (count == 0) return;
    const Shape shape = value_->type.shape;
    const Sharding cut = value_->type.sharding;
    const DimSharding major{now.axes, 1, {}};
    const DimSharding minor{now.axes, (gathers ? now : want).granule, {}};
    Shape in_two = shape;
    in_two[d] = count;
    in_two.insert(in_two.begin() + d + 1, shape[d] / count);
    Sharding to = cut;
    to.dims[d] = gathers ? DimSharding() : major;
    to.dims.insert(to.dims.begin() + d + 1, gathers ? minor : DimSharding());
    MakeOp("reshape", in_two, to, {{"shape", in_two}});
    const int64_t from_dim = gathers ? d + 1 : d, to_dim = gathers ? d : d + 1;
    to.dims[from_dim] = DimSharding();
    to.dims[to_dim] = gathers ? major : minor;
    Make("all_to_all", to,
         {{"axes", mesh_.Names(now.axes)}, {"concat_dim", from_dim}, {"split_dim", to_dim}});
    to = cut;
    to.dims[d] = want;
    MakeOp("reshape", shape, to, {{"shape", shape}});
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
