#include "tests/exec/random_graph.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>

#include "ir/op_def.h"
#include "ir/text.h"
#include "tests/exec/random_ops.h"
#include "tests/ir/data_source.h"

namespace shardc::testing {
namespace {

class Grower : public RandomOps {
 public:
  using RandomOps::RandomOps;

  void Grow() {
    static const std::vector<std::vector<int64_t>> kThemes = {
        {2, 4, 8}, {2, 3, 6}, {3, 5, 7}, {4, 6, 12}, {1, 4, 5}, {2, 5, 10}, {3, 4, 9}};
    sizes_ = dice_.Pick(kThemes);
    batch_ = dice_.Pick<int64_t>({4, 6, 8, 3});
    Input(RandomShape(2, 4));
    for (int64_t n = dice_.Between(1, 3); n > 0; --n) Leaf(RandomShape(1, 3));
    const int64_t ops = dice_.Between(5, options_.most_ops);
    if (options_.layers) {
      Grow("a", ops / 4);
      Layers(dice_.Between(2, 4), std::min<int64_t>(ops, 8));
      Grow("z", ops / 4);
    } else {
      Grow("m", ops);
    }
    Finish();
  }

 private:
  void Grow(const std::string& module, int64_t ops) {
    const int64_t end = made_ + ops;
    for (int64_t tries = 0; made_ < end && tries < 6 * ops; ++tries) {
      b_.site = StrCat(module, tries);
      Step();
    }
  }

  // The first by chance, the others like it with params of their own.
  void Layers(int64_t layers, int64_t ops) {
    Value* in = FloatOfRank(2);
    const Op* before = model_.graph.ops().empty() ? nullptr : model_.graph.ops().back().get();
    std::vector<Value*> pools[] = {{in}, {}, {}};
    auto swap_pools = [&] {
      std::swap(floats_, pools[0]);
      std::swap(ints_, pools[1]);
      std::swap(bools_, pools[2]);
    };
    swap_pools();
    draws_ = false;
    Grow("h.0.m", ops);
    Value* out = Next(in);
    draws_ = true;
    swap_pools();
    Op* first = before ? model_.graph.Next(before) : model_.graph.ops().front().get();
    std::vector<Op*> layer;
    for (Op* op = first; op; op = model_.graph.Next(op)) layer.push_back(op);
    Value* x = out;
    for (int64_t l = 1; l < layers; ++l) {
      Value* next = nullptr;
      for (int tries = 0; tries < 5 && !next; ++tries) next = Repeat(layer, in, out, x, l);
      if (!next) break;
      x = next;
    }
    floats_.push_back(x);
  }

  // What `out` becomes where `in` is `x`; null, and nothing is made, where that is not well
  // conditioned.
  Value* Repeat(const std::vector<Op*>& layer, Value* in, Value* out, Value* x, int64_t number) {
    Values data = {{in, data_.at(x)}};
    for (const Op* op : layer) {
      std::vector<HostTensor> operands;
      for (const Value* v : op->operands) {
        operands.push_back(data.contains(v) ? data.at(v) : data_.at(v));
      }
      if (op->def->is_state) {
        const TensorType& type = op->out();
        data[op->result()] = RandomTensor(dice_, type.dtype, type.shape, -1.2, 1.4);
      } else {
        auto results = Accepted(op->name(), operands, op->attrs);
        if (!results) return nullptr;
        for (size_t i = 0; i < results->size(); ++i) {
          data[op->results[i]] = std::move((*results)[i]);
        }
      }
    }
    std::map<const Value*, Value*> made = {{in, x}};
    for (const Op* op : layer) {
      b_.site = StrCat("h.", number, op->site.substr(op->site.find(".m")));
      if (op->def->is_state) {
        const HostTensor& value = data.at(op->result());
        const std::string name = StrCat("h", number, ".", op->attrs.String("name"));
        made[op->result()] = b_.Param(name, value.dtype(), value.shape());
        model_.graph.sources[name] = std::make_shared<DataSource>(value);
      } else {
        std::vector<Value*> operands;
        for (Value* v : op->operands) operands.push_back(made.contains(v) ? made.at(v) : v);
        const Op* copy = b_.Create(op->name(), operands, op->attrs);
        for (size_t i = 0; i < op->results.size(); ++i) {
          made[op->results[i]] = copy->result(static_cast<int>(i));
        }
      }
    }
    for (const auto& [old, value] : made) {
      if (old == in) continue;
      Know(value, data.at(old), per_example_[old]);
      // What is in a layer is read there alone.
      (IsFloat(value->type.dtype)          ? floats_
       : value->type.dtype == DType::kBool ? bools_
                                           : ints_)
          .pop_back();
    }
    for (const auto& [old, value] : made) {
      for (const Value* o : value->producer ? value->producer->operands : std::vector<Value*>()) {
        reach_[value] |= reach_[o];
      }
    }
    reach_[made.at(out)] |= reach_[out];
    return made.at(out);
  }

  // Of the shape of x, made of x and what is there.
  Value* Next(Value* x) {
    const std::vector<Value*> known = floats_;
    for (auto v = known.rbegin(); v != known.rend(); ++v) {
      const bool made = (*v)->producer && !(*v)->producer->operands.empty();
      if (!made || *v == x || reach_[*v] != kBoth) continue;
      Value* y = *v;
      Shape lead(ShapeOf(x).begin(), ShapeOf(x).end() - 1), mine = ShapeOf(y);
      if (mine.size() >= 2) mine.pop_back();
      if (mine == lead && (ShapeOf(y) != ShapeOf(x) || dice_.Chance(60))) y = LinearOf(y, Last(x));
      if (!y || ShapeOf(y) != ShapeOf(x)) continue;
      if (dice_.Chance(50)) y = Make("tanh", {y});
      if (Value* sum = Make("add", {x, y})) return sum;
    }
    Value* y = Make("tanh", {LinearOf(x, Last(x))});
    return y ? y : x;
  }

  // A scalar that depends on each element of v.
  Value* Term(Value* v) {
    if (v->type.rank() == 0) return v;
    Ints all(ShapeOf(v).size());
    std::iota(all.begin(), all.end(), 0);
    if (dice_.Chance(15)) return b_.Make("sum_squares", {v});
    HostTensor weight = RandomTensor(dice_, options_.dtype, ShapeOf(v), -1, 1);
    if (options_.batched && per_example_[v]) weight = HostTensor();
    if (weight.num_elements() > 0) {
      v = b_.Mul(v, b_.Constant(weight));
    } else {
      Shape row(ShapeOf(v).begin() + 1, ShapeOf(v).end());
      v = b_.Mul(v, b_.Constant(RandomTensor(dice_, options_.dtype, row, -1, 1)));
    }
    const bool mean = dice_.Chance(30);
    return b_.Make(mean ? "reduce_mean" : "reduce_sum", {v}, {{"axes", all}});
  }

  // A value that depends on inputs and params.
  Value* OfBoth() {
    for (auto v = floats_.rbegin(); v != floats_.rend(); ++v) {
      if (reach_[*v] == kBoth && (!options_.batched || per_example_[*v])) return *v;
    }
    Value* x = model_.graph.FindInput("x0");
    Value* w = Param({Last(x)});
    Value* y = b_.Mul(x, w);
    const HostTensor operands[] = {data_.at(x), data_.at(w)};
    Know(y, RunOp("mul", operands, {})[0], per_example_[x]);
    return y;
  }

  void Finish() {
    b_.site = "loss";
    std::vector<Value*> terms;
    for (Value* v : floats_) {
      const bool leaf = !v->producer || v->producer->operands.empty();
      const bool unused = v->users.empty();
      if (leaf || !dice_.Chance(unused ? 80 : 8)) continue;
      if (options_.batched && !per_example_[v]) continue;
      terms.push_back(v);
    }
    while (terms.size() > 7) {
      terms.erase(terms.begin() + dice_.Between(0, static_cast<int64_t>(terms.size()) - 1));
    }
    if (std::none_of(terms.begin(), terms.end(), [&](Value* v) { return reach_[v] == kBoth; })) {
      terms.push_back(OfBoth());
    }
    Value* loss = nullptr;
    for (Value* v : terms) {
      Value* term = Term(v);
      loss = loss ? b_.Add(loss, term) : term;
    }
    Graph& g = model_.graph;
    // A name and a value of its own.
    g.outputs.push_back({"loss", b_.Mul(loss, b_.Scalar(options_.dtype, 0.5))});
    int outputs = 0;
    for (const auto* values : {&floats_, &ints_, &bools_}) {
      for (Value* v : *values) {
        if (v->producer && dice_.Chance(v->users.empty() ? 25 : 8)) {
          g.outputs.push_back({StrCat("y", outputs++), v});
        }
      }
    }
    // One value under two names, and an input as it came.
    if (outputs > 0 && dice_.Chance(10)) g.outputs.push_back({"again", g.outputs.back().value});
    if (dice_.Chance(5)) g.outputs.push_back({"same", g.inputs()[0].get()});
    g.EraseDead();
  }
};

}  // namespace

RandomModelGraph MakeRandomGraph(Dice& dice, const RandomGraphOptions& options) {
  RandomModelGraph model;
  Grower(dice, options, model).Grow();
  return model;
}

Graph CopyOf(const Graph& graph) {
  Graph copy = ParseGraph(PrintGraph(graph), "copy");
  copy.sources = graph.sources;
  return copy;
}

void AddRandomData(Graph& graph, uint64_t seed) {
  Dice dice(seed);
  for (const Op* param : graph.Params()) {
    auto& source = graph.sources[param->attrs.String("name")];
    const TensorType& type = param->out();
    if (!source) {
      source = std::make_shared<DataSource>(RandomTensor(dice, type.dtype, type.shape, -1.2, 1.4));
    }
  }
}

Tensors DataOf(const RandomModelGraph& model) {
  Tensors data = model.inputs;
  for (const Op* param : model.graph.Params()) {
    const std::string& name = param->attrs.String("name");
    HostTensor t(param->out().dtype, param->out().shape);
    model.graph.sources.at(name)->Read(Shape(t.shape().size(), 0), t.shape(), t.raw());
    data[name] = std::move(t);
  }
  return data;
}

}  // namespace shardc::testing
