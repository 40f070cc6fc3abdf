// rotary: what it refuses, costs and lets through; its values and gradients are checked by machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/builder.h"
#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "tests/ir/interpreter.h"
#include "tests/ir/thrown.h"

namespace shardc {
namespace {

using ::testing::HasSubstr;

Op* Make(Graph& g, const std::vector<TensorType>& types, Attributes attrs = {}) {
  std::vector<Value*> operands;
  for (size_t i = 0; i < types.size(); ++i)
    operands.push_back(g.AddInput("x" + std::to_string(i), types[i]));
  return Builder(g).Create("rotary", std::move(operands), std::move(attrs));
}

std::string Refusal(const std::vector<TensorType>& types) {
  Graph g;
  return testing::TextThrownBy([&] { Make(g, types); });
}

TensorType F32(Shape shape) { return {DType::kF32, std::move(shape)}; }
TensorType Bf16(Shape shape) { return {DType::kBF16, std::move(shape)}; }

TEST(Rotary, WhatDoesNotFitIsE1101) {
  const TensorType x = F32({2, 3, 4, 8}), table = F32({3, 1, 4});
  EXPECT_EQ(Refusal({x, table, table}), "none");
  EXPECT_THAT(Refusal({TensorType(DType::kI32, {8}), table, table}), HasSubstr("E1101"));
  EXPECT_THAT(Refusal({F32({}), table, table}), HasSubstr("E1101 op 'rotary': turns the last dim"));
  EXPECT_THAT(Refusal({x, F32({}), F32({})}), HasSubstr("E1101 op 'rotary': cos of shape []"));
  EXPECT_THAT(Refusal({x, F32({2, 1, 4}), table}), HasSubstr("has no row for each row of x"));
  EXPECT_THAT(Refusal({x, table, F32({1, 2, 3, 1, 4})}),
              HasSubstr("E1101 op 'rotary': sin of shape"));
  EXPECT_THAT(Refusal({x, table, F32({3, 1, 3})}), HasSubstr("cos and sin are not alike"));
  EXPECT_THAT(Refusal({x, F32({5}), F32({5})}), HasSubstr("tables for 5 pairs do not fit"));
  // A table larger than x would make the result larger.
  EXPECT_THAT(Refusal({F32({1, 8}), F32({3, 4}), F32({3, 4})}), HasSubstr("has no row"));
}

TEST(Rotary, TablesAreOfTheTypeOfXOrF32) {
  const TensorType x = Bf16({2, 8});
  EXPECT_EQ(Refusal({x, F32({4}), F32({4})}), "none");
  EXPECT_EQ(Refusal({x, Bf16({4}), Bf16({4})}), "none");
  EXPECT_THAT(Refusal({x, F32({4}), Bf16({4})}), HasSubstr("cos and sin are not alike"));
  const TensorType f16(DType::kF16, {4}), f64(DType::kF64, {4});
  EXPECT_THAT(Refusal({x, f16, f16}), HasSubstr("cos is f16 but must be f32 or of the type of x"));
  EXPECT_THAT(Refusal({F32({2, 8}), f64, f64}), HasSubstr("cos is f64"));
  EXPECT_THAT(Refusal({F32({2, 8}), Bf16({4}), Bf16({4})}), HasSubstr("cos is bf16"));
}

TEST(Rotary, TheResultMayHaveAnotherTypeWithTablesInF32) {
  Graph g;
  const Attributes bf16 = {{"out", std::string("bf16")}}, f32 = {{"out", std::string("f32")}};
  const TensorType table = F32({4});
  EXPECT_EQ(Make(g, {F32({2, 8}), table, table}, bf16)->out().dtype, DType::kBF16);
  EXPECT_EQ(Make(g, {Bf16({2, 8}), table, table}, f32)->out().dtype, DType::kF32);
  EXPECT_THAT(
      [&] {
        Make(g, {Bf16({2, 8}), Bf16({4}), Bf16({4})}, f32);
      },
      ::testing::ThrowsMessage<Diagnostic>(HasSubstr("only with tables in f32, not bf16")));
}

TEST(Rotary, OnlyWhatIsTurnedCosts) {
  Graph g;
  const Op* op = Make(g, {Bf16({2, 3, 4, 10}), F32({3, 1, 4}), F32({3, 1, 4})});
  EXPECT_EQ(Flops(*op), 2 * 3 * 4 * 4 * 6);
  EXPECT_EQ(BytesMoved(*op), 2 * 2 * 240 + 2 * 4 * 12);
}

// (3, 4) by a quarter turn, by hand: as halves, as neighbours, back, and the rest as it is.
TEST(Rotary, TurnsByHand) {
  const HostTensor x = HostTensor::Of<double>({5}, {3, 5, 4, 6, 7});
  const HostTensor cos = HostTensor::Of<double>({2}, {0, 1}),
                   sin = HostTensor::Of<double>({2}, {1, 0});
  auto turned = [&](const Attributes& attrs) {
    const HostTensor operands[] = {x, cos, sin};
    return testing::RunOp("rotary", operands, attrs)[0];
  };
  EXPECT_TRUE(turned({}) == HostTensor::Of<double>({5}, {-4, 5, 3, 6, 7}));
  EXPECT_TRUE(turned({{"inverse", true}}) == HostTensor::Of<double>({5}, {4, 5, -3, 6, 7}));
  EXPECT_TRUE(turned({{"interleaved", true}}) == HostTensor::Of<double>({5}, {-5, 3, 4, 6, 7}));
}

TEST(Rotary, WithoutPairsItIsItsOperand) {
  Graph g;
  Op* op = Make(g, {F32({2, 3}), F32({2, 0}), F32({2, 0})});
  Builder b(g);
  EXPECT_EQ(op->def->simplify(b, *op), op->operands[0]);
  op = Make(g, {F32({2, 3}), F32({2, 1}), F32({2, 1})});
  EXPECT_EQ(op->def->simplify(b, *op), nullptr);
}

}  // namespace
}  // namespace shardc
