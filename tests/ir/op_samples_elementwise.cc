#include <limits>

#include "tests/ir/op_samples.h"

namespace shardc::testing {

void AddElementwiseSamples(std::vector<OpSample>& samples) {
  SampleAdder add(samples);
  auto floats = [](Shape shape, uint64_t seed) { return RandomFloats(std::move(shape), seed); };
  // Away from zero, for what is singular there.
  auto positive = [](Shape shape, uint64_t seed) {
    return RandomFloats(std::move(shape), seed, 0.3, 2.5);
  };

  for (std::string op :
       {"neg", "abs", "exp", "floor", "ceil", "round", "sign", "sin", "cos", "atan", "sinh", "cosh",
        "asinh", "relu", "tanh", "sigmoid", "erf", "silu"}) {
    add(op, "", {floats({3, 5}, 1)});
    add(op, "scalar", {floats({}, 2)});
    add(op, "even", {floats({8, 6}, 2)});
  }
  for (std::string op : {"abs", "sign"}) add(op, "ints", {RandomInts({3, 5}, 6, -9, 9)});
  for (std::string op : {"log", "log1p", "sqrt", "rsqrt", "reciprocal"}) {
    add(op, "", {positive({3, 5}, 3)});
    add(op, "even", {positive({8, 6}, 3)});
  }
  for (std::string op : {"asin", "acos", "atanh", "acosh"}) {
    const double least = op == "acosh" ? 1.2 : -0.9, most = op == "acosh" ? 4 : 0.9;
    add(op, "", {RandomFloats({3, 5}, 4, least, most)});
    add(op, "even", {RandomFloats({8, 6}, 4, least, most)});
  }
  HostTensor special = floats({3, 5}, 4);
  special.SetDouble(2, std::numeric_limits<double>::quiet_NaN());
  special.SetDouble(7, std::numeric_limits<double>::infinity());
  for (std::string op : {"is_nan", "is_inf"}) add(op, "", {special});
  add("not", "", {RandomBools({3, 5}, 5)});
  add("not", "even", {RandomBools({8, 6}, 5)});
  add("neg", "ints", {RandomInts({3, 5}, 6, -9, 9)});
  for (std::string to : {"f64", "i64", "bool"}) {
    add("cast", "to " + to, {floats({3, 5}, 7)}, {{"to", to}});
  }
  add("cast", "ints", {RandomInts({3, 5}, 8, -9, 9)}, {{"to", std::string("f64")}});

  for (std::string op : {"add", "sub", "mul", "div", "pow", "max", "min", "mod"}) {
    auto left = [&](Shape s) { return op == "pow" ? positive(s, 11) : floats(s, 11); };
    auto right = [&](Shape s) {
      return op == "div" || op == "mod" ? positive(s, 12) : floats(s, 12);
    };
    add(op, "", {left({3, 5}), right({3, 5})});
    add(op, "broadcast both", {left({2, 3, 1}), right({3, 5})});
    add(op, "vector", {left({2, 3, 5}), right({5})});
    add(op, "scalar", {left({3, 5}), right({})});
    add(op, "scalar left", {left({}), right({3, 5})});
    add(op, "even", {left({8, 6}), right({8, 1})});
    add(op, "three dims", {left({4, 1, 5}), right({4, 2, 5})});
  }
  for (std::string op : {"add", "sub", "mul", "div", "max", "min", "mod"}) {
    add(op, "ints", {RandomInts({3, 5}, 13, -9, 9), RandomInts({5}, 14, 1, 5)});
  }
  for (std::string op : {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}) {
    add(op, "", {floats({3, 5}, 15), floats({5}, 16)});
    add(op, "ints", {RandomInts({3, 5}, 17, 0, 3), RandomInts({3, 1}, 18, 0, 3)});
    add(op, "even", {floats({8, 6}, 15), floats({8, 6}, 16)});
  }
  for (std::string op : {"and", "or", "xor"}) {
    add(op, "", {RandomBools({3, 5}, 19), RandomBools({5}, 20)});
    add(op, "even", {RandomBools({8, 6}, 19), RandomBools({8, 1}, 20)});
  }
  for (std::string op : {"bitwise_and", "bitwise_or", "bitwise_xor"}) {
    add(op, "", {RandomInts({3, 5}, 19, -99, 99), RandomInts({5}, 20, -99, 99)});
    add(op, "even", {RandomInts({8, 6}, 19, 0, 1000), RandomInts({8, 1}, 20, 0, 1000)});
    add(op, "i32",
        {As(RandomInts({3, 5}, 19, -99, 99), DType::kI32),
         As(RandomInts({5}, 20, -99, 99), DType::kI32)});
  }
  add("where", "", {RandomBools({3, 5}, 21), floats({3, 5}, 22), floats({3, 5}, 23)});
  add("where", "broadcast", {RandomBools({3, 1}, 24), floats({2, 1, 5}, 25), floats({5}, 26)});
  add("where", "even", {RandomBools({8, 6}, 24), floats({8, 6}, 25), floats({6}, 26)});
  add("where", "ints",
      {RandomBools({3, 5}, 24), RandomInts({3, 5}, 25, 0, 9), RandomInts({5}, 26, 0, 9)});
  add("where", "scalar", {RandomBools({3, 5}, 27), floats({3, 5}, 28), floats({}, 29)});

  for (std::string approximate : {"tanh", "none"}) {
    add("gelu", approximate, {floats({3, 5}, 30)}, {{"approximate", approximate}});
    add("gelu", approximate + " even", {floats({8, 6}, 30)}, {{"approximate", approximate}});
    add("gelu_grad", approximate, {floats({3, 5}, 31), floats({3, 5}, 32)},
        {{"approximate", approximate}});
  }
  for (std::string op : {"relu_grad", "silu_grad", "tanh_grad", "sigmoid_grad"}) {
    add(op, "", {floats({3, 5}, 33), floats({3, 5}, 34)});
    add(op, "even", {floats({8, 6}, 33), floats({8, 6}, 34)});
  }

  auto fused = [&](std::string what, std::vector<HostTensor> operands, Strings steps,
                   Ints results) {
    add("fused_elementwise", std::move(what), std::move(operands),
        {{"steps", std::move(steps)}, {"results", std::move(results)}});
  };
  fused("", {floats({3, 5}, 31), floats({3, 5}, 32)}, {"silu 0", "mul 2 1"}, {3});
  fused("two results", {floats({3, 5}, 31), floats({5}, 32)}, {"mul 0 1", "tanh 2", "add 3 0"},
        {2, 4});
  fused("an operand is a result", {floats({3, 5}, 31), floats({3, 1}, 32)}, {"sub 1 0"}, {2, 0, 1});
  fused("broadcast", {floats({2, 1, 4}, 31), floats({3, 1}, 32), floats({}, 33)},
        {"mul 0 1", "add 3 2", "gelu_tanh 4", "gelu_erf 4", "max 5 6"}, {7});
  fused("even", {floats({8, 6}, 31), floats({8, 1}, 32), floats({6}, 33)},
        {"mul 0 1", "add 3 2", "sigmoid 4", "min 5 0"}, {6, 4});
  fused("one operand", {floats({3, 5}, 31)}, {"exp 0", "neg 1"}, {2});
  std::vector<HostTensor> twelve;
  for (uint64_t i = 0; i < 12; ++i)
    twelve.push_back(floats(i % 2 ? Shape{5} : Shape{3, 5}, 31 + i));
  Strings sums = {"add 0 1"};
  for (int i = 2; i < 12; ++i) sums.push_back(StrCat("add ", i + 10, " ", i));
  fused("twelve operands", twelve, sums, {22});
  fused("gradients", {floats({4, 6}, 31), floats({4, 6}, 32)},
        {"relu_grad 0 1", "silu_grad 2 1", "gelu_tanh_grad 3 1", "gelu_erf_grad 4 1",
         "sigmoid_grad 5 1", "tanh_grad 6 1"},
        {7});
  fused("choices", {floats({4, 6}, 31), floats({6}, 32), floats({4, 1}, 33)},
        {"less 0 1", "where 3 0 2", "greater_equal 0 2", "where 5 1 4", "equal 6 0", "where 7 2 6",
         "less_equal 4 1", "not_equal 9 3", "greater 0 10", "where 11 8 0"},
        {12, 8});
  fused("functions", {positive({4, 6}, 31), positive({4, 6}, 32)},
        {"neg 0", "abs 2", "sqrt 3", "rsqrt 4", "reciprocal 5", "exp 6", "log 7", "sin 8", "cos 9",
         "tanh 10", "erf 11", "relu 12", "div 13 1", "pow 14 1"},
        {15});
}

}  // namespace shardc::testing
