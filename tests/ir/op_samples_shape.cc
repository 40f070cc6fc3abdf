#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

void AddLayout(SampleAdder& add) {
  struct {
    Shape from, to;
  } const reshapes[] = {{{2, 3, 4}, {6, 4}},
                        {{6, 4}, {2, 3, 4}},
                        {{4, 6}, {24}},
                        {{24}, {4, 6}},
                        {{3, 8}, {3, 2, 4}},
                        {{7, 1, 3}, {7, 3}},
                        {{4, 6}, {3, 8}},
                        {{2, 15}, {2, 3, 5}},
                        {{2, 3, 4}, {2, 12}},
                        {{3, 5}, {1, 3, 1, 5}},
                        {{2, 3, 4, 5}, {6, 4, 5}},
                        {{1}, {}},
                        {{4, 36}, {4, 3, 4, 3}},
                        {{4, 3, 4, 3}, {4, 36}},
                        {{8, 6}, {48}},
                        {{6, 4, 5}, {4, 2, 3, 5}},
                        {{5, 12}, {5, 12, 1}},
                        {{0, 3}, {3, 0, 2}},
                        {{2, 2, 8}, {4, 8}},
                        {{4, 8}, {2, 2, 4, 2}},
                        {{1600}, {25, 64}}};
  for (const auto& r : reshapes) {
    add("reshape", ShapeToString(r.from) + " to " + ShapeToString(r.to), {RandomFloats(r.from, 40)},
        {{"shape", r.to}});
  }
  add("transpose", "matrix", {RandomFloats({5, 3}, 41)}, {{"perm", Ints{1, 0}}});
  add("transpose", "heads", {RandomFloats({2, 5, 3, 4}, 42)}, {{"perm", Ints{0, 2, 3, 1}}});
  add("transpose", "ints", {RandomInts({5, 3}, 43, 0, 9)}, {{"perm", Ints{1, 0}}});
  add("broadcast_to", "leading", {RandomFloats({5}, 44)}, {{"shape", Ints{3, 5}}});
  add("broadcast_to", "stretch", {RandomFloats({3, 1}, 45)}, {{"shape", Ints{2, 3, 4}}});
  add("transpose", "even", {RandomFloats({4, 8, 6}, 42)}, {{"perm", Ints{2, 0, 1}}});
  add("broadcast_to", "even", {RandomFloats({4, 1, 6}, 45)}, {{"shape", Ints{4, 8, 6}}});
  add("broadcast_to", "scalar", {RandomFloats({}, 46)}, {{"shape", Ints{3, 4}}});
}

void AddPieces(SampleAdder& add) {
  HostTensor x = RandomFloats({7, 5}, 47);
  auto slice = [&](std::string what, Ints starts, Ints limits, Ints steps) {
    add("slice", std::move(what), {x}, {{"starts", starts}, {"limits", limits}, {"steps", steps}});
  };
  slice("front", {0, 0}, {3, 5}, {1, 1});
  slice("steps", {1, 0}, {7, 5}, {2, 1});
  slice("both", {2, 1}, {6, 4}, {3, 2});
  slice("reversed", {6, 0}, {-1, 5}, {-1, 1});
  slice("reversed steps", {5, 0}, {0, 5}, {-2, 1});
  slice("rows", {2, 0}, {3, 5}, {1, 1});
  add("slice", "even", {RandomFloats({8, 3, 4}, 47)},
      {{"starts", Ints{0, 1, 0}}, {"limits", Ints{8, 3, 4}}, {"steps", Ints{1, 1, 1}}});
  slice("empty", {3, 0}, {3, 5}, {1, 1});
  add("pad", "zero", {x}, {{"low", Ints{2, 0}}, {"high", Ints{1, 0}}, {"value", 0.0}});
  add("pad", "value", {x}, {{"low", Ints{0, 1}}, {"high", Ints{0, 2}}, {"value", 2.5}});
  add("pad", "even", {RandomFloats({8, 3, 4}, 47)},
      {{"low", Ints{0, 1, 0}}, {"high", Ints{0, 1, 0}}, {"value", -0.5}});
  add("pad", "ints", {RandomInts({3, 5}, 47, 1, 9)},
      {{"low", Ints{0, 1}}, {"high", Ints{0, 0}}, {"value", 4.0}});
  add("concat", "columns", {x, RandomFloats({7, 4}, 48), RandomFloats({7, 6}, 49)},
      {{"axis", int64_t{1}}});
  add("concat", "rows", {x, RandomFloats({3, 5}, 50)}, {{"axis", int64_t{0}}});
  add("concat", "one column", {x, RandomFloats({7, 1}, 51)}, {{"axis", int64_t{1}}});
  add("concat", "even",
      {RandomFloats({4, 8}, 48), RandomFloats({4, 4}, 49), RandomFloats({4, 8}, 50)},
      {{"axis", int64_t{-1}}});
  add("concat", "ints", {RandomInts({5, 3}, 48, 0, 9), RandomInts({7, 3}, 49, 0, 9)},
      {{"axis", int64_t{0}}});
  add("concat", "single", {x}, {{"axis", int64_t{0}}});
  add("concat", "last", {x, RandomFloats({7, 2}, 51)}, {{"axis", int64_t{-1}}});
  HostTensor wide = RandomFloats({3, 12}, 52);
  add("split", "equal", {wide}, {{"axis", int64_t{1}}, {"sizes", Ints{4, 4, 4}}});
  add("split", "last", {wide}, {{"axis", int64_t{-1}}, {"sizes", Ints{5, 7}}});
  add("split", "unequal", {wide}, {{"axis", int64_t{1}}, {"sizes", Ints{6, 3, 3}}});
  add("split", "even", {RandomFloats({4, 24, 2}, 52)},
      {{"axis", int64_t{-2}}, {"sizes", Ints{8, 8, 8}}});
  add("split", "even unequal", {RandomFloats({4, 20}, 52)},
      {{"axis", int64_t{1}}, {"sizes", Ints{8, 4, 8}}});
  add("split", "ones", {wide}, {{"axis", int64_t{0}}, {"sizes", Ints{1, 1, 1}}});
  add("split", "single", {wide}, {{"axis", int64_t{0}}, {"sizes", Ints{3}}});
  add("split", "rows", {wide}, {{"axis", int64_t{0}}, {"sizes", Ints{2, 1}}});
}

}  // namespace

void AddShapeSamples(std::vector<OpSample>& samples) {
  SampleAdder add(samples);
  AddLayout(add);
  AddPieces(add);
}

}  // namespace shardc::testing
