#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

void AddReductions(SampleAdder& add) {
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
    add(op, "even", {RandomFloats({8, 4, 2}, 57)}, {{"axes", Ints{0}}, {"keepdims", true}});
    add(op, "even last", {RandomFloats({4, 8}, 58)}, {{"axes", Ints{-1}}, {"keepdims", false}});
    add(op, "none", {y}, {{"axes", Ints{}}});
    add(op, "positive", {positive}, {{"axes", Ints{0, 1}}, {"keepdims", false}});
  }
  for (std::string op : {"reduce_sum", "reduce_max", "reduce_min"}) {
    add(op, "ints", {RandomInts({3, 5}, 57, -9, -1)}, {{"axes", Ints{1}}});
  }
  add("sum_squares", "", {y});
  add("sum_squares", "even", {RandomFloats({4, 8, 3}, 57)});
  add("sum_squares", "scalar", {RandomFloats({}, 57)});
  add("cumsum", "even", {RandomFloats({8, 3, 4}, 57)}, {{"axis", int64_t{-2}}});
  add("cumsum", "ints", {RandomInts({3, 5}, 57, -4, 4)}, {{"axis", int64_t{0}}});
  for (bool exclusive : {false, true}) {
    for (bool reverse : {false, true}) {
      add("cumsum", StrCat(exclusive ? "exclusive" : "inclusive", reverse ? " reverse" : ""), {y},
          {{"axis", int64_t{1}}, {"exclusive", exclusive}, {"reverse", reverse}});
    }
  }
}

void AddIndexing(SampleAdder& add) {
  HostTensor table = RandomFloats({7, 3}, 58), ids = RandomInts({2, 5}, 59, 0, 7);
  add("embedding", "", {table, ids});
  add("embedding_grad", "", {RandomFloats({2, 5, 3}, 60), ids}, {{"rows", int64_t{7}}});
  add("embedding", "even", {RandomFloats({8, 4, 2}, 58), RandomInts({4, 6}, 59, 0, 8)});
  add("embedding", "i32", {RandomFloats({5}, 58), As(RandomInts({7}, 59, 0, 5), DType::kI32)});
  add("embedding", "one id", {table, RandomInts({}, 59, 0, 7)});
  add("embedding_grad", "to a sum", {RandomFloats({2, 5, 3}, 60), ids, RandomFloats({7, 3}, 61)},
      {{"rows", int64_t{7}}});
  add("embedding_grad", "even", {RandomFloats({4, 6, 4, 2}, 60), RandomInts({4, 6}, 59, 0, 8)},
      {{"rows", int64_t{8}}});
  add("embedding_grad", "i32", {RandomFloats({7}, 60), As(RandomInts({7}, 59, 0, 5), DType::kI32)},
      {{"rows", int64_t{5}}});
  HostTensor signed_ids = RandomInts({4}, 61, -5, 5);
  add("gather", "rows", {RandomFloats({5, 3}, 62), signed_ids}, {{"axis", int64_t{0}}});
  add("gather", "columns", {RandomFloats({3, 5, 2}, 63), RandomInts({2, 3}, 64, 0, 5)},
      {{"axis", int64_t{1}}});
  add("gather", "scalar index", {RandomFloats({3, 5}, 65), RandomInts({}, 66, 0, 5)},
      {{"axis", int64_t{1}}});
  add("gather_grad", "", {RandomFloats({3, 4, 2}, 67), signed_ids},
      {{"axis", int64_t{1}}, {"size", int64_t{5}}});
  add("gather", "even", {RandomFloats({4, 5, 8}, 63), RandomInts({8}, 64, -5, 5)},
      {{"axis", int64_t{-2}}});
  add("gather_grad", "matrix of rows", {RandomFloats({2, 5, 3}, 67), RandomInts({2, 5}, 64, 0, 4)},
      {{"axis", int64_t{0}}, {"size", int64_t{4}}});
  add("gather_nd", "", {RandomFloats({3, 4, 5}, 68), RandomInts({6, 2}, 69, 0, 3)},
      {{"batch_dims", int64_t{0}}});
  add("gather_nd", "batch", {RandomFloats({3, 4, 5}, 70), RandomInts({3, 2, 1}, 71, 0, 4)},
      {{"batch_dims", int64_t{1}}});
  add("gather_nd", "even", {RandomFloats({4, 8, 3, 2}, 70), RandomInts({4, 8, 1}, 71, -3, 3)},
      {{"batch_dims", int64_t{2}}});
  add("gather_nd_grad", "", {RandomFloats({6, 5}, 72), RandomInts({6, 2}, 69, -3, 3)},
      {{"batch_dims", int64_t{0}}, {"sizes", Ints{3, 4}}});
  add("gather_nd_grad", "batch", {RandomFloats({3, 9, 5}, 73), RandomInts({3, 9, 1}, 71, 0, 4)},
      {{"batch_dims", int64_t{1}}, {"sizes", Ints{4}}});
  add("gather_nd_grad", "even", {RandomFloats({4, 8, 2}, 74), RandomInts({4, 8, 1}, 71, -3, 3)},
      {{"batch_dims", int64_t{2}}, {"sizes", Ints{3}}});
  add("top_k", "", {RandomFloats({4, 6}, 75)}, {{"axis", int64_t{-1}}, {"k", int64_t{2}}});
  add("top_k", "even", {RandomFloats({4, 6, 8}, 76)},
      {{"axis", int64_t{1}}, {"k", int64_t{4}}, {"largest", false}});
  // Most are equal.
  add("top_k", "integers", {RandomInts({3, 40}, 77, 0, 3)},
      {{"axis", int64_t{1}}, {"k", int64_t{40}}, {"largest", true}});
  add("constant", "", {}, {{"value", std::make_shared<const HostTensor>(table)}});
}

}  // namespace

void AddReduceSamples(std::vector<OpSample>& samples) {
  SampleAdder add(samples);
  AddReductions(add);
  AddIndexing(add);
}

}  // namespace shardc::testing
