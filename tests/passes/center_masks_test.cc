#include "passes/center_masks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/builder.h"
#include "passes/differentiate.h"
#include "tests/ir/interpreter.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

constexpr int64_t kS = 4, kT = 4, kD = 8;

// One that varies from element to element.
HostTensor Data(DType type, Shape shape, int seed) {
  HostTensor data(type, std::move(shape));
  for (int64_t i = 0; i < data.num_elements(); ++i) {
    data.SetDouble(i, static_cast<float>(std::sin(1.7 * static_cast<double>(i) + seed)));
  }
  return data;
}

// `number` for all keys of row 0 and every other key of row 1, nothing for others.
HostTensor Mask(DType type, double number) {
  HostTensor mask(type, {kS, kT});
  for (int64_t j = 0; j < kT; ++j) mask.SetDouble(j, number);
  for (int64_t j = 0; j < kT; j += 2) mask.SetDouble(kT + j, number);
  return mask;
}

enum class Form { kConstant, kChosen, kMultiplied, kDivided, kTwice, kLookedUp, kGiven };

struct Gradients {
  std::vector<HostTensor> of;  // q, k and v
  int64_t attentions = 0, masks = 0;
};

// Those of a sum of two attentions' outputs and log-sum-exps with one mask.
Gradients Differentiated(DType type, double number, Form form, bool causal, const char* layout) {
  Graph graph;
  Builder b(graph);
  std::map<std::string, HostTensor> data;
  auto in = [&](const char* name, HostTensor value) {
    Value* v = graph.AddInput(name, TensorType(value.dtype(), value.shape()));
    data.emplace(name, std::move(value));
    return v;
  };
  const bool heads_first = std::string_view(layout) == "bhsd";
  const Shape shape = heads_first ? Shape{1, 2, kS, kD} : Shape{1, kS, 2, kD};
  std::vector<Value*> qkv;
  for (const char* name : {"q", "k", "v"}) {
    qkv.push_back(in(name, Data(type, shape, static_cast<int>(qkv.size()))));
  }
  Value* mask = nullptr;
  if (form == Form::kConstant) {
    mask = b.Constant(Mask(type, number));
  } else if (form == Form::kChosen) {
    Value* hidden = in("hidden", Mask(DType::kBool, 1));
    mask = b.Make("where", {hidden, b.Scalar(type, number), b.Scalar(type, 0)});
  } else if (form == Form::kMultiplied) {
    mask = b.Mul(in("hidden", Mask(type, 1)), b.Scalar(type, number));
  } else if (form == Form::kDivided) {
    mask = b.Make("div", {in("hidden", Mask(type, 1)), b.Scalar(type, 1 / number)});
  } else if (form == Form::kTwice) {
    Value* some = b.Mul(in("hidden", Mask(type, 1)), b.Scalar(type, number / 1000));
    mask = b.Mul(some, b.Scalar(type, 1000));
  } else if (form == Form::kLookedUp) {
    HostTensor rows(DType::kI64, {kS});
    for (int64_t i = 0; i < kS; ++i) rows.SetDouble(i, static_cast<double>(i));
    mask = b.Make("gather", {b.Constant(Mask(type, number)), in("rows", std::move(rows))},
                  {{"axis", int64_t{0}}});
  } else {
    mask = in("mask", Mask(type, number));
  }
  Value* loss = nullptr;
  for (int i = 0; i < 2; ++i) {
    Op* op = b.Create("attention", {qkv[0], qkv[i == 0 ? 1 : 0], qkv[2], mask},
                      {{"scale", 0.5}, {"causal", causal}, {"layout", std::string(layout)}});
    Value* o = b.Mul(op->results[0], in(i == 0 ? "do0" : "do1", Data(type, shape, 5 + i)));
    Value* lse = b.Mul(op->results[1], in(i == 0 ? "dl0" : "dl1", Data(type, {1, 2, kS}, 7 + i)));
    Value* sum = b.Add(b.ReduceSum(o, {0, 1, 2, 3}), b.ReduceSum(lse, {0, 1, 2}));
    loss = loss ? b.Add(loss, sum) : sum;
  }
  CenterMasks(graph);
  Gradients out;
  std::set<const Value*> masks;
  for (const auto& op : graph.ops()) {
    if (op->name() != "attention") continue;
    ++out.attentions;
    masks.insert(op->operands[3]);
  }
  out.masks = std::ssize(masks);
  if (masks.contains(mask)) out.masks = 0;
  const std::vector<Value*> found = Differentiate(graph, loss, qkv);
  Values values = Interpret(graph, ByName(graph, data));
  for (Value* v : found) out.of.push_back(values.at(v));
  return out;
}

// Against f64, whose log-sum-exps lose nothing beside such numbers.
TEST(CenterMasks, LogSumExpsLoseNothing) {
  for (Form form : {Form::kConstant, Form::kChosen, Form::kMultiplied, Form::kDivided, Form::kTwice,
                    Form::kLookedUp, Form::kGiven}) {
    for (bool causal : {false, true}) {
      for (const char* layout : {"bhsd", "bshd"}) {
        for (double number : {-1e5, -1e6, -1e7, -1e8, 1e5, 1e7}) {
          SCOPED_TRACE(StrCat(static_cast<int>(form), causal, layout, number));
          const Gradients f32 = Differentiated(DType::kF32, number, form, causal, layout);
          const Gradients f64 = Differentiated(DType::kF64, number, form, causal, layout);
          EXPECT_EQ(f32.attentions, 2);
          EXPECT_EQ(f32.masks, 1);
          EXPECT_EQ(f64.masks, form == Form::kGiven ? 1 : 0);
          for (size_t i = 0; i < f32.of.size(); ++i) {
            for (int64_t k = 0; k < f32.of[i].num_elements(); ++k) {
              ASSERT_NEAR(f32.of[i].AsDouble(k), f64.of[i].AsDouble(k), 2e-6);
            }
          }
        }
      }
    }
  }
}

// Of a mask that two share, what is taken is what each sees of it; an output has it again.
TEST(CenterMasks, EachTakesWhatItSees) {
  Graph graph = ParseAndVerify(R"(graph @g(%x: f32[1, 2, 4, 8], %h: f32[4, 4]) -> (%o, %l, %p, %k) {
    %c = constant {value=tensor<f32[]: -100000>} : f32[]
    %m = mul %h, %c : f32[4, 4]
    %o, %l = attention %x, %x, %x, %m {causal=false, layout="bhsd", scale=1.0} : f32[1, 2, 4, 8], f32[1, 2, 4]
    %p, %k = attention %x, %x, %x, %m {causal=true, layout="bhsd", scale=1.0} : f32[1, 2, 4, 8], f32[1, 2, 4]
  })");
  RunPasses(graph, "center_masks");
  const auto maker = [&](const char* output) { return graph.FindOutput(output)->producer; };
  EXPECT_NE(maker("o")->operands[3], maker("p")->operands[3]);
  for (const auto& [output, attention] : {std::pair("l", "o"), {"k", "p"}}) {
    EXPECT_EQ(maker(output)->name(), "add");
    EXPECT_EQ(maker(output)->operands[0], maker(attention)->result(1));
  }
}

TEST(CenterMasks, LeavesWhatIsSmallOrAbsorbs) {
  for (Form form :
       {Form::kConstant, Form::kChosen, Form::kMultiplied, Form::kDivided, Form::kLookedUp}) {
    for (double number : {-1e4, -1e9, -3.4e38, 0.5, 1e30}) {
      EXPECT_EQ(Differentiated(DType::kF32, number, form, false, "bhsd").masks, 0) << number;
    }
  }
}

// Of a constant it is known that each row sees a key beside which nothing was added.
TEST(CenterMasks, LeavesConstantsThatHideNoRow) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {1, 2, kS, kD}));
  HostTensor mask(DType::kF32, {kS, kT});
  for (int64_t i = 0; i < kS; ++i) mask.SetDouble(i * kT + kT - 1 - i, -1e6);
  Value* constant = b.Constant(std::move(mask));
  Op* op = b.Create("attention", {x, x, x, constant}, {{"scale", 1.0}});
  CenterMasks(graph);
  EXPECT_EQ(op->operands[3], constant);
}

}  // namespace
}  // namespace shardc::testing
