#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

class Adder {
 public:
  explicit Adder(std::vector<OpSample>& samples) : samples_(samples) {}
  void operator()(std::string op, std::string what, std::vector<HostTensor> operands,
                  Attributes attrs = {}) {
    samples_.push_back({std::move(op), std::move(what), std::move(operands), std::move(attrs)});
  }

 private:
  std::vector<OpSample>& samples_;
};

void AddLayout(Adder& add) {
  struct {
    Shape from, to;
  } const reshapes[] = {{{2, 3, 4}, {6, 4}},    {{6, 4}, {2, 3, 4}},       {{4, 6}, {24}},
                        {{24}, {4, 6}},         {{3, 8}, {3, 2, 4}},       {{7, 1, 3}, {7, 3}},
                        {{4, 6}, {3, 8}},       {{2, 15}, {2, 3, 5}},      {{2, 3, 4}, {2, 12}},
                        {{3, 5}, {1, 3, 1, 5}}, {{2, 3, 4, 5}, {6, 4, 5}}, {{1}, {}}};
  for (const auto& r : reshapes) {
    add("reshape", ShapeToString(r.from) + " to " + ShapeToString(r.to),
        {RandomFloats(r.from, 40)}, {{"shape", r.to}});
  }
  add("transpose", "matrix", {RandomFloats({5, 3}, 41)}, {{"perm", Ints{1, 0}}});
  add("transpose", "heads", {RandomFloats({2, 5, 3, 4}, 42)}, {{"perm", Ints{0, 2, 3, 1}}});
  add("transpose", "ints", {RandomInts({5, 3}, 43, 0, 9)}, {{"perm", Ints{1, 0}}});
  add("broadcast_to", "leading", {RandomFloats({5}, 44)}, {{"shape", Ints{3, 5}}});
  add("broadcast_to", "stretch", {RandomFloats({3, 1}, 45)}, {{"shape", Ints{2, 3, 4}}});
  add("broadcast_to", "scalar", {RandomFloats({}, 46)}, {{"shape", Ints{3, 4}}});
}

void AddPieces(Adder& add) {
  HostTensor x = RandomFloats({7, 5}, 47);
  auto slice = [&](std::string what, Ints starts, Ints limits, Ints steps) {
    add("slice", std::move(what), {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
  };
  slice("front", {0, 0}, {3, 5}, {1, 1});
  slice("steps", {1, 0}, {7, 5}, {2, 1});
  slice("both", {2, 1}, {6, 4}, {3, 2});
  slice("reversed", {6, 0}, {-1, 5}, {-1, 1});
  slice("reversed steps", {5, 0}, {0, 5}, {-2, 1});
  slice("empty", {3, 0}, {3, 5}, {1, 1});
  add("pad", "zero", {x}, {{"low", Ints{2, 0}}, {"high", Ints{1, 0}}, {"value", 0.0}});
  add("pad", "value", {x}, {{"low", Ints{0, 1}}, {"high", Ints{0, 2}}, {"value", 2.5}});
  add("concat", "columns", {x, RandomFloats({7, 4}, 48), RandomFloats({7, 6}, 49)},
      {{"axis", int64_t{1}}});
  add("concat", "rows", {x, RandomFloats({3, 5}, 50)}, {{"axis", int64_t{0}}});
  add("concat", "one column", {x, RandomFloats({7, 1}, 51)}, {{"axis", int64_t{1}}});
  add("concat", "single", {x}, {{"axis", int64_t{0}}});
  HostTensor wide = RandomFloats({3, 12}, 52);
  add("split", "equal", {wide}, {{"axis", int64_t{1}}, {"sizes", Ints{4, 4, 4}}});
  add("split", "unequal", {wide}, {{"axis", int64_t{1}}, {"sizes", Ints{6, 3, 3}}});
  add("split", "rows", {wide}, {{"axis", int64_t{0}}, {"sizes", Ints{2, 1}}});
}

void AddReductions(Adder& add) {
  HostTensor x = RandomFloats({3, 5, 4}, 53), y = RandomFloats({2, 7}, 54);
  // All negative: a zero in the padding must not win.
  HostTensor negative = RandomFloats({3, 5}, 55, -3, -1);
  HostTensor positive = RandomFloats({3, 5}, 56, 1, 3);
  for (std::string op : {"reduce_sum", "reduce_mean", "reduce_max", "reduce_min"}) {
    add(op, "middle", {x}, {{"axes", Ints{1}}, {"keepdims", false}});
    add(op, "middle kept", {x}, {{"axes", Ints{1}}, {"keepdims", true}});
    add(op, "two", {x}, {{"axes", Ints{0, 2}}, {"keepdims", false}});
    add(op, "last", {y}, {{"axes", Ints{-1}}, {"keepdims", true}});
    add(op, "all", {y}, {{"axes", Ints{0, 1}}, {"keepdims", false}});
    add(op, "negative", {negative}, {{"axes", Ints{1}}, {"keepdims", false}});
    add(op, "positive", {positive}, {{"axes", Ints{0, 1}}, {"keepdims", false}});
  }
  add("reduce_sum", "ints", {RandomInts({3, 5}, 57, -4, 4)}, {{"axes", Ints{1}}});
  add("sum_squares", "", {y});
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      add("cumsum", StrCat(exclusive ? "exclusive" : "inclusive", reverse ? " reverse" : ""), {y},
          {{"axis", int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}});
    }
  }
}

void AddIndexing(Adder& add) {
  HostTensor table = RandomFloats({7, 3}, 58), ids = RandomInts({2, 5}, 59, 0, 7);
  add("embedding", "", {table, ids});
  add("embedding_grad", "", {RandomFloats({2, 5, 3}, 60), ids}, {{"rows", int64_t{7}}});
  HostTensor signed_ids = RandomInts({4}, 61, -5, 5);
  add("gather", "rows", {RandomFloats({5, 3}, 62), signed_ids}, {{"axis", int64_t{0}}});
  add("gather", "columns", {RandomFloats({3, 5, 2}, 63), RandomInts({2, 3}, 64, 0, 5)},
      {{"axis", int64_t{1}}});
  add("gather", "scalar index", {RandomFloats({3, 5}, 65), RandomInts({}, 66, 0, 5)},
      {{"axis", int64_t{1}}});
  add("gather_grad", "", {RandomFloats({3, 4, 2}, 67), signed_ids},
      {{"axis", int64_t{1}}, {"size", int64_t{5}}});
  add("gather_nd", "", {RandomFloats({3, 4, 5}, 68), RandomInts({6, 2}, 69, 0, 3)},
      {{"batch_dims", int64_t{0}}});
  add("gather_nd", "batch", {RandomFloats({3, 4, 5}, 70), RandomInts({3, 2, 1}, 71, 0, 4)},
      {{"batch_dims", int64_t{1}}});
  add("constant", "", {}, {{"value", std::make_shared<const HostTensor>(table)}});
}

}  // namespace

void AddShapeSamples(std::vector<OpSample>& samples) {
  Adder add(samples);
  AddLayout(add);
  AddPieces(add);
  AddReductions(add);
  AddIndexing(add);
}

}  // namespace shardc::testing
