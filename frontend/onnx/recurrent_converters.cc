// RNN, GRU and LSTM, one step after the other: the products of all inputs are one, those of the
// states one for each step.
#include <cmath>
#include <string>

#include "frontend/onnx/activations.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxSteps = 1024;

// An activation with its parameters.
struct Function {
  const Activation* activation;
  double alpha = 0, beta = 0;
};

struct State {
  Value *h, *c;  // [b, hidden]; c is of LSTM alone
};

// What one direction of a node has: x[t, b, gates * hidden], the products of the inputs and all
// biases that may be added there; weight[gates * hidden, hidden] and, of GRU, bias[gates * hidden]
// of the states; of LSTM maybe peepholes[3 * hidden].
struct Direction {
  Value *x, *weight, *bias, *peepholes;
  std::vector<Function> functions;
};

Value* Apply(NodeContext& c, const Function& f, Value* x) {
  return f.activation->apply(c, x, f.alpha, f.beta);
}

// Of a gate, whose input may be clipped.
Value* Activate(NodeContext& c, const Function& f, Value* x) {
  if (!c.HasAttr("clip")) return Apply(c, f, x);
  const double limit = c.Float("clip", 0);
  return Apply(c, f, Clamped(c, x, -limit, limit));
}

std::vector<Value*> Gates(NodeContext& c, Value* x, int64_t n) {
  return Pieces(c, x, x->type.rank() - 1, Ints(n, x->type.shape.back() / n));
}

State RnnStep(NodeContext& c, const Direction& d, Value* x, const State& s) {
  x = Add(c, x, c.Make("matmul_nt", {s.h, d.weight}));
  return {Activate(c, d.functions[0], x), nullptr};
}

State LstmStep(NodeContext& c, const Direction& d, Value* x, const State& s) {
  std::vector<Value*> gates = Gates(c, Add(c, x, c.Make("matmul_nt", {s.h, d.weight})), 4);
  Value *in = gates[0], *out = gates[1], *forget = gates[2];
  std::vector<Value*> peepholes;
  if (d.peepholes) {
    peepholes = Gates(c, d.peepholes, 3);
    in = Add(c, in, Mul(c, s.c, peepholes[0]));
    forget = Add(c, forget, Mul(c, s.c, peepholes[2]));
  }
  in = Activate(c, d.functions[0], in);
  const bool coupled = c.Flag("input_forget", false);
  forget = coupled ? Sub(c, Like(c, in, 1), in) : Activate(c, d.functions[0], forget);
  Value* added = Mul(c, in, Activate(c, d.functions[1], gates[3]));
  Value* cell = Add(c, Mul(c, forget, s.c), added);
  if (d.peepholes) out = Add(c, out, Mul(c, cell, peepholes[1]));
  // What the cell gives is not clipped, in ONNX Runtime either.
  Value* h = Mul(c, Activate(c, d.functions[0], out), Apply(c, d.functions[2], cell));
  return {h, cell};
}

State GruStep(NodeContext& c, const Direction& d, Value* x, const State& s) {
  auto product = [&](Value* h, int64_t from, int64_t to) {
    const int64_t hidden = d.weight->type.shape[1];
    auto part = [&](Value* v) { return SliceDim(c, v, 0, from * hidden, to * hidden); };
    Value* y = c.Make("matmul_nt", {h, part(d.weight)});
    return d.bias ? Add(c, y, part(d.bias)) : y;
  };
  std::vector<Value*> gates = Gates(c, x, 3);
  const bool reset_last = c.Flag("linear_before_reset", false);
  std::vector<Value*> states =
      reset_last ? Gates(c, product(s.h, 0, 3), 3) : Gates(c, product(s.h, 0, 2), 2);
  Value* keep = Activate(c, d.functions[0], Add(c, gates[0], states[0]));
  Value* reset = Activate(c, d.functions[0], Add(c, gates[1], states[1]));
  Value* state = reset_last ? Mul(c, reset, states[2]) : product(Mul(c, reset, s.h), 2, 3);
  Value* candidate = Activate(c, d.functions[1], Add(c, gates[2], state));
  // (1 - keep) * candidate + keep * h
  return {Add(c, candidate, Mul(c, keep, Sub(c, s.h, candidate))), nullptr};
}

struct Kind {
  std::string_view op;
  int64_t gates;
  std::vector<std::string> activations;
  State (*step)(NodeContext&, const Direction&, Value*, const State&);
};

Kind KindOf(NodeContext& c) {
  if (c.op_type() == "LSTM") return {"LSTM", 4, {"Sigmoid", "Tanh", "Tanh"}, LstmStep};
  if (c.op_type() == "GRU") return {"GRU", 3, {"Sigmoid", "Tanh"}, GruStep};
  return {"RNN", 1, {"Tanh"}, RnnStep};
}

// Those of each direction, one behind the other. Parameters are listed for those that have any.
std::vector<Function> FunctionsOf(NodeContext& c, const Kind& kind, int64_t ways) {
  std::vector<std::string> names;
  for (int64_t w = 0; w < ways; ++w) {
    names.insert(names.end(), kind.activations.begin(), kind.activations.end());
  }
  const auto given = c.StringList("activations");
  if (given && given->size() != names.size()) {
    c.Fail("E1303",
           StrCat(kind.op, " needs ", names.size(), " activations and has ", given->size()));
  }
  std::vector<Function> functions;
  for (const std::string& name : given.value_or(names)) {
    const Activation* f = FindActivation(name);
    if (!f) c.Fail("E1303", StrCat(kind.op, " has no activation \"", name, "\""));
    functions.push_back({f});
  }
  auto set = [&](std::string_view attribute, auto otherwise, auto to) {
    const std::vector<double> values = c.FloatList(attribute).value_or(std::vector<double>());
    size_t next = 0;
    for (Function& f : functions) {
      if (!(f.activation->*otherwise)) continue;
      f.*to = next < values.size() ? values[next] : *(f.activation->*otherwise);
      if (std::isnan(f.*to)) {
        c.Fail("E1303", StrCat(kind.op, " needs an ", attribute, " for ", f.activation->name));
      }
      ++next;
    }
    if (values.size() > next) {
      c.Fail("E1303", StrCat(attribute, " of ", kind.op, " has ", values.size(), " values for ",
                             next, " activations that have one"));
    }
  };
  set("activation_alpha", &Activation::alpha, &Function::alpha);
  set("activation_beta", &Activation::beta, &Function::beta);
  return functions;
}

// Input i, null where it is absent; E1303 unless it has this shape.
Value* InputOf(NodeContext& c, int i, const Shape& shape) {
  if (!c.has_input(i)) return nullptr;
  if (c.input(i)->type.shape != shape) {
    c.Fail("E1303",
           StrCat("input ", i, " of ", c.op_type(), " has shape ",
                  ShapeToString(c.input(i)->type.shape), " instead of ", ShapeToString(shape)));
  }
  return c.input(i);
}

// Element i of the first dim.
Value* Item(NodeContext& c, Value* v, int64_t i) {
  Shape rest(v->type.shape.begin() + 1, v->type.shape.end());
  return c.Reshape(SliceDim(c, v, 0, i, i + 1), std::move(rest));
}

// [n, ...] of n values; `axis`: where the new dim lies.
Value* Stack(NodeContext& c, const std::vector<Value*>& values, int64_t axis) {
  std::vector<Value*> pieces;
  for (Value* v : values) {
    Shape shape = v->type.shape;
    shape.insert(shape.begin() + axis, 1);
    pieces.push_back(c.Reshape(v, std::move(shape)));
  }
  return Joined(c, std::move(pieces), axis);
}

// One direction of a node from the state `s` on: y[t, b, hidden], and the last state. `lengths` (or
// null) of the sequences: behind its end a sequence keeps its state, and gives `nothing`, zeros.
struct Outcome {
  Value* y;
  State last;
};
Outcome RunSteps(NodeContext& c, const Kind& kind, const Direction& d, State s, bool reverse,
                 Value* lengths, Value* nothing) {
  const int64_t steps = d.x->type.shape[0], batch = d.x->type.shape[1];
  std::vector<Value*> of_steps(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = reverse ? steps - 1 - i : i;
    State next = kind.step(c, d, Item(c, d.x, t), s);
    Value*& h = of_steps[t] = next.h;
    if (lengths) {
      Value* here = c.Reshape(c.Make("less", {Like(c, lengths, static_cast<double>(t)), lengths}),
                              {batch, 1});
      h = Where(c, here, next.h, nothing);
      next.h = Where(c, here, next.h, s.h);
      if (next.c) next.c = Where(c, here, next.c, s.c);
    }
    s = next;
  }
  return {Stack(c, of_steps, 0), s};
}

// x[t, b, in], or with the batch first where `layout` is 1, as are then initial states and results.
void Recurrent(NodeContext& c) {
  const Kind kind = KindOf(c);
  const bool batch_first = c.Flag("layout", false);
  auto swapped = [&](Value* v) { return v && batch_first ? c.Transpose(v, {1, 0, 2}) : v; };
  const std::string way = c.String("direction", "forward");
  if (way != "forward" && way != "reverse" && way != "bidirectional") {
    c.Fail("E1303", StrCat("there is no direction \"", way, "\""));
  }
  for (int i : {0, 1, 2}) {
    if (c.input(i)->type.rank() == 3) continue;
    c.Fail("E1303", StrCat("the input and the weights of ", kind.op, " need three dims"));
  }
  Value* x = swapped(c.input(0));
  const int64_t steps = x->type.shape[0], batch = x->type.shape[1], in = x->type.shape[2];
  const int64_t ways = way == "bidirectional" ? 2 : 1, hidden = c.input(2)->type.shape[2];
  const int64_t all = kind.gates * hidden;
  if (steps < 1 || steps > kMaxSteps) {
    c.Fail("E1301", StrCat(kind.op, " of ", steps, " steps is not supported: 1 to ", kMaxSteps,
                           " are written out"));
  }
  if (c.Int("hidden_size", hidden) != hidden) {
    c.Fail("E1303", StrCat("the hidden_size of ", kind.op, " is not that of its weights"));
  }
  Value *weights = InputOf(c, 1, {ways, all, in}), *recurrent = InputOf(c, 2, {ways, all, hidden});
  Value* biases = InputOf(c, 3, {ways, 2 * all});
  Value* lengths = InputOf(c, 4, {batch});
  const Shape state = batch_first ? Shape{batch, ways, hidden} : Shape{ways, batch, hidden};
  const bool lstm = kind.op == "LSTM";
  Value *h0 = swapped(InputOf(c, 5, state)), *c0 = lstm ? swapped(InputOf(c, 6, state)) : nullptr;
  Value* peepholes = lstm ? InputOf(c, 7, {ways, 3 * hidden}) : nullptr;
  if (c.Float("clip", 1) <= 0) c.Fail("E1303", StrCat("the clip of ", kind.op, " is not positive"));
  const std::vector<Function> functions = FunctionsOf(c, kind, ways);
  Value* nothing = c.Constant(HostTensor(x->type.dtype, {batch, hidden}));
  std::vector<Value*> ys, hs, cs;
  for (int64_t w = 0; w < ways; ++w) {
    Value* inputs = c.Make("matmul_nt", {x, Item(c, weights, w)});
    Value* bias = nullptr;
    if (biases) {
      std::vector<Value*> both = Gates(c, Item(c, biases, w), 2);
      // What GRU adds to its states may be scaled before it meets the inputs.
      if (kind.op == "GRU") bias = both[1];
      inputs = Add(c, inputs, bias ? both[0] : Add(c, both[0], both[1]));
    }
    const auto first = functions.begin() + w * static_cast<int64_t>(kind.activations.size());
    const Direction d = {inputs,
                         Item(c, recurrent, w),
                         bias,
                         peepholes ? Item(c, peepholes, w) : nullptr,
                         {first, first + static_cast<int64_t>(kind.activations.size())}};
    const State initial = {h0 ? Item(c, h0, w) : nothing, c0 ? Item(c, c0, w) : nothing};
    const bool reverse = way == "reverse" || w == 1;
    const Outcome run = RunSteps(c, kind, d, initial, reverse, lengths, nothing);
    ys.push_back(run.y);
    hs.push_back(run.last.h);
    cs.push_back(run.last.c);
  }
  Value* y = Stack(c, ys, 1);
  c.SetOutput(0, batch_first ? c.Transpose(y, {2, 0, 1, 3}) : y);
  if (c.OutputWanted(1)) c.SetOutput(1, swapped(Stack(c, hs, 0)));
  if (lstm && c.OutputWanted(2)) c.SetOutput(2, swapped(Stack(c, cs, 0)));
}

}  // namespace

void AddRecurrentConverters(ConverterTable& table) {
  table.insert({{"RNN", Recurrent}, {"GRU", Recurrent}, {"LSTM", Recurrent}});
}

}  // namespace shardc::onnx_import
