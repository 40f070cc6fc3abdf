#include "ir/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <unordered_map>

#include "frontend/gpt_config.h"
#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/verifier.h"
#include "tests/ir/cpu_time.h"
#include "tests/ir/op_samples.h"

namespace shardc {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kMlp = R"(mesh [dp=2, tp=2]
graph @mlp(%x: f32[8@dp, 1024, 768]) -> (loss: %0, %y) {
  %w1 = param "h.0.mlp.c_fc.weight" {aliases=["a", "b \"c\""], role="MLP_UP"} : f32[768, 3072@tp]
  %w2 = param "h.0.mlp.c_proj.weight" : f32[3072@tp, 768]
  %m = state "w1.adamw.m" {dtype="f32", init=0.0, shape=[768, 3072]} : f32[768, 3072@tp]
  %0 = matmul %x, %w1 : f32[8@dp, 1024, 3072@tp]
  %1 = gelu %0 {approximate="tanh", phase="backward", site="h.0.mlp", stage=1, virtual_stage=3, microbatch=2} : f32[8@dp, 1024, 3072@tp]
  %2 = matmul %1, %w2 : f32[8@dp, 1024, 768] partial(tp)
  %y = reshard %2 {for="matmul", why=[]} : f32[8@dp, 1024, 768]
  %3, %4 = all_reduce %2, %2 {axes=["tp"], reduce="sum"} : f32[8@dp, 1024, 768], f32[8@dp, 1024, 768]
  update "w1.adamw.m" %m {phase="optimizer"}
}
)";

std::string AttributeBits(const Attribute& a) {
  std::string bits = std::to_string(a.index()) + ":";
  if (auto* d = std::get_if<double>(&a)) {
    bits += std::to_string(std::bit_cast<uint64_t>(*d));
  } else if (auto* t = std::get_if<TensorPtr>(&a)) {
    const HostTensor& tensor = **t;
    bits += std::string(DTypeName(tensor.dtype())) + ShapeToString(tensor.shape());
    bits.append(reinterpret_cast<const char*>(tensor.raw()), static_cast<size_t>(tensor.bytes()));
  } else if (auto* s = std::get_if<std::string>(&a)) {
    bits += *s;
  } else if (auto* list = std::get_if<Strings>(&a)) {
    for (const std::string& item : *list) bits += std::to_string(item.size()) + ":" + item;
  } else if (auto* ints = std::get_if<Ints>(&a)) {
    bits += ShapeToString(*ints);
  } else if (auto* b = std::get_if<bool>(&a)) {
    bits += *b ? "true" : "false";
  } else {
    bits += std::to_string(std::get<int64_t>(a));
  }
  return bits;
}

// Compares all that the text form keeps. `names`: also the hints of results.
class Comparison {
 public:
  explicit Comparison(bool names) : names_(names) {}

  void Run(const Graph& a, const Graph& b) {
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.mesh, b.mesh);
    ASSERT_EQ(a.inputs().size(), b.inputs().size());
    for (size_t i = 0; i < a.inputs().size(); ++i) {
      EXPECT_EQ(a.inputs()[i]->name, b.inputs()[i]->name);
      SameValue(*a.inputs()[i], *b.inputs()[i]);
    }
    ASSERT_EQ(a.num_ops(), b.num_ops());
    auto it = b.ops().begin();
    for (const auto& op : a.ops()) SameOp(*op, **it++);
    ASSERT_EQ(a.outputs.size(), b.outputs.size());
    for (size_t i = 0; i < a.outputs.size(); ++i) {
      EXPECT_EQ(a.outputs[i].name, b.outputs[i].name);
      EXPECT_EQ(pair_.at(a.outputs[i].value), b.outputs[i].value);
    }
  }

 private:
  void SameValue(const Value& a, const Value& b) {
    pair_[&a] = &b;
    EXPECT_EQ(a.type, b.type);
    EXPECT_EQ(a.users.size(), b.users.size());
    if (names_) {
      EXPECT_EQ(a.name, b.name);
    }
  }

  void SameOp(const Op& a, const Op& b) {
    EXPECT_EQ(a.def, b.def);
    EXPECT_EQ(a.phase, b.phase);
    EXPECT_EQ(a.site, b.site);
    EXPECT_EQ(a.stage, b.stage);
    EXPECT_EQ(a.virtual_stage, b.virtual_stage);
    EXPECT_EQ(a.microbatch, b.microbatch);
    ASSERT_EQ(a.attrs.entries().size(), b.attrs.entries().size()) << a.name();
    for (size_t i = 0; i < a.attrs.entries().size(); ++i) {
      EXPECT_EQ(a.attrs.entries()[i].first, b.attrs.entries()[i].first);
      EXPECT_TRUE(AttributeBits(a.attrs.entries()[i].second) ==
                  AttributeBits(b.attrs.entries()[i].second))
          << a.name() << " " << a.attrs.entries()[i].first;
    }
    ASSERT_EQ(a.operands.size(), b.operands.size());
    for (size_t i = 0; i < a.operands.size(); ++i) {
      EXPECT_EQ(pair_.at(a.operands[i]), b.operands[i]);
    }
    ASSERT_EQ(a.results.size(), b.results.size());
    for (size_t i = 0; i < a.results.size(); ++i) SameValue(*a.results[i], *b.results[i]);
  }

  bool names_;
  std::unordered_map<const Value*, const Value*> pair_;
};

void ExpectRoundTrip(const Graph& graph, bool names = true) {
  std::string text = PrintGraph(graph);
  SCOPED_TRACE(text.substr(0, 4000));
  Graph again = ParseGraph(text, "t");
  Comparison(names).Run(graph, again);
  EXPECT_TRUE(PrintGraph(again) == text) << PrintGraph(again);
}

TEST(Text, PrintsWhatItParsed) {
  Graph graph = ParseGraph(kMlp, "mlp");
  VerifyGraph(graph);
  EXPECT_EQ(PrintGraph(graph), kMlp);
  EXPECT_EQ(graph.mesh.ToString(), "dp=2,tp=2");
  EXPECT_EQ(graph.outputs[0].name, "loss");
  EXPECT_EQ(graph.outputs[1].name, "y");
  EXPECT_EQ(graph.outputs[1].value->name, "y");
  EXPECT_EQ(graph.outputs[0].value->name, "");
  Op* w1 = graph.Params()[0];
  EXPECT_EQ(w1->attrs.StringList("aliases"), (Strings{"a", "b \"c\""}));
  EXPECT_EQ(w1->out().sharding.dims[1].axes, AxisList{1});
  const Op* gelu = graph.outputs[0].value->users[0];
  EXPECT_EQ(gelu->phase, Phase::kBackward);
  EXPECT_EQ(gelu->site, "h.0.mlp");
  EXPECT_EQ(gelu->stage, 1);
  EXPECT_EQ(gelu->virtual_stage, 3);
  EXPECT_EQ(gelu->microbatch, 2);
  EXPECT_TRUE(gelu->result()->users[0]->result()->type.sharding.partial());
  ExpectRoundTrip(graph);
}

TEST(Text, SkipsCommentsAndSpace) {
  EXPECT_EQ(
      PrintGraph(ParseGraph("// a\n mesh[ ] graph\n@g(%a:f32[2]) // b %x\n->(%a){\n}// end", "t")),
      "graph @g(%a: f32[2]) -> (%a) {\n}\n");
}

TEST(Text, TypesAreTheInverseOfTypeToString) {
  Mesh mesh({{"dp", 2}, {"tp", 3}, {"p.0", 1}, {"4x", 2}});
  auto cut = [](AxisList axes, int64_t granule = 1, std::vector<int64_t> segments = {}) {
    return DimSharding{axes, granule, std::move(segments)};
  };
  std::vector<TensorType> types;
  for (int d = 0; d < kNumDTypes; ++d) types.emplace_back(static_cast<DType>(d), Shape{2, 0, 7});
  types.emplace_back(DType::kF32, Shape{});
  auto add = [&](Shape shape, std::vector<DimSharding> dims, AxisList sum, AxisList max) {
    TensorType t(DType::kBF16, std::move(shape));
    t.sharding.dims = std::move(dims);
    t.sharding.partial_sum = sum;
    t.sharding.partial_max = max;
    types.push_back(t);
  };
  add({2304}, {cut({1}, 1, {768, 768, 768})}, {}, {});
  add({1280, 5}, {cut({1}, 64, {768, 512}), {}}, {0}, {});
  add({1600, 6}, {cut({1}, 64), cut({0, 3})}, {}, {2});
  add({8, 9}, {cut({0, 3, 2}, 2, {4, 4}), {}}, {}, {1});
  add({8}, {cut({0}, 1, {8})}, {}, {});
  add({4}, {cut({3})}, {1, 0}, {2});
  for (const TensorType& type : types) {
    Graph graph;
    graph.mesh = mesh;
    graph.outputs.push_back({"x", graph.AddInput("x", type)});
    ExpectRoundTrip(graph);
    EXPECT_THAT(PrintGraph(graph), HasSubstr(TypeToString(type, mesh)));
  }
}

TEST(Text, KeepsFloatAttributesBitExact) {
  std::mt19937_64 random(1);
  using Limits = std::numeric_limits<double>;
  std::vector<double> values = {0.0,
                                -0.0,
                                1,
                                -3,
                                0.1,
                                1e20,
                                1e-5,
                                Limits::infinity(),
                                -Limits::infinity(),
                                Limits::quiet_NaN(),
                                -Limits::quiet_NaN(),
                                Limits::denorm_min(),
                                Limits::max(),
                                Limits::signaling_NaN()};
  for (int i = 0; i < 500; ++i) values.push_back(std::bit_cast<double>(random()));
  Graph graph;
  Builder b(graph);
  for (size_t i = 0; i < values.size(); ++i) {
    b.Create("state", {},
             {{"name", StrCat("s", i)},
              {"dtype", std::string("f32")},
              {"shape", Ints{}},
              {"init", values[i]}});
  }
  ExpectRoundTrip(graph);
  std::string text = PrintGraph(graph);
  for (const char* init :
       {"init=0.0,", "init=-0.0,", "init=1.0,", "init=-3.0,", "init=1e+20,", "init=1e-05,",
        "init=inf,", "init=-inf,", "init=nan,", "init=nan(0xfff8000000000000),"}) {
    EXPECT_THAT(text, HasSubstr(init));
  }
}

TEST(Text, KeepsConstantsBitExact) {
  std::mt19937_64 random(2);
  Graph graph;
  Builder b(graph);
  for (int d = 0; d < kNumDTypes; ++d) {
    for (const Shape& shape : {Shape{}, Shape{0}, Shape{1}, Shape{2, 3}, Shape{64}, Shape{65},
                               Shape{4, 0, 2}, Shape{7, 11}}) {
      for (bool splat : {false, true}) {
        HostTensor t(static_cast<DType>(d), shape);
        size_t size = static_cast<size_t>(DTypeSize(t.dtype()));
        for (int64_t i = 0; i < t.bytes(); ++i) {
          uint64_t byte = t.dtype() == DType::kBool ? random() & 1 : random() & 255;
          // Exponents of all ones: infinities and NaNs of all kinds.
          if (IsFloat(t.dtype()) && random() % 2 && i % size == size - 1) byte = 0x7f;
          bool first = i < static_cast<int64_t>(size);
          t.raw()[i] = splat && !first ? t.raw()[i - static_cast<int64_t>(size)]
                                       : static_cast<std::byte>(byte);
        }
        b.Constant(std::move(t));
      }
    }
  }
  // Every value of the 16-bit types.
  for (DType d : {DType::kF16, DType::kBF16}) {
    for (uint32_t base = 0; base < 0x10000; base += 64) {
      HostTensor t(d, {64});
      for (uint32_t i = 0; i < 64; ++i) {
        uint16_t bits = static_cast<uint16_t>(base + i);
        std::memcpy(t.raw() + 2 * i, &bits, 2);
      }
      b.Constant(std::move(t));
    }
  }
  ExpectRoundTrip(graph);
}

TEST(Text, PrintsConstantsCompactly) {
  auto print = [](HostTensor t) {
    Graph graph;
    Builder(graph).Constant(std::move(t));
    return PrintGraph(graph);
  };
  EXPECT_THAT(print(HostTensor::Of<float>({2, 2}, {1, 2.5, -0.0f, 1e-5f})),
              HasSubstr("{value=tensor<f32[2, 2]: 1, 2.5, -0, 1e-05>}"));
  EXPECT_THAT(print(HostTensor::Of<bool>({2}, {true, false})),
              HasSubstr("tensor<bool[2]: true, false>"));
  EXPECT_THAT(print(HostTensor(DType::kI64, {1024})), HasSubstr("tensor<i64[1024]: splat(0)>"));
  HostTensor large(DType::kI32, {65});
  large.data<int32_t>()[0] = 0x01abcdef;
  EXPECT_THAT(print(large), HasSubstr("tensor<i32[65]: 0xefcdab0100000000"));
}

TEST(Text, KeepsNames) {
  Graph graph("weird \"name\" \xc3\xa9");
  Builder b(graph);
  Value* input = graph.AddInput("/a/b c%", TensorType(DType::kF32, {2}));
  Value* number = graph.AddInput("0", TensorType(DType::kF32, {2}));
  std::vector<std::string> names = {"plain.name_1",
                                    "17",
                                    "a\nb\t\\\"",
                                    "",
                                    "",
                                    "1",
                                    "\x01\x7f",
                                    "%",
                                    "// no comment",
                                    std::string("nul\0!", 5),
                                    "x y",
                                    ""};
  Value* v = number;
  for (const std::string& name : names) {
    v = b.Add(v, input);
    v->name = name;
    v->producer->site = name;
    v->producer->stage = 0;
    graph.outputs.push_back({"out " + name + std::to_string(graph.outputs.size()), v});
    if (!name.empty()) graph.outputs.push_back({name, v});
  }
  ExpectRoundTrip(graph);
  EXPECT_THAT(PrintGraph(graph), HasSubstr("%\"17\" = add"));
  EXPECT_THAT(PrintGraph(graph), HasSubstr("%2 = add"));  // 0 and 1 are names of others
}

TEST(Text, ASecondValueOfANameGetsANumber) {
  Graph graph;
  Builder b(graph);
  Value* x = graph.AddInput("x", TensorType(DType::kF32, {2}));
  Value* y = b.Neg(x);
  y->name = "x";
  graph.outputs = {{"x", y}, {"y", x}};
  EXPECT_EQ(PrintGraph(graph),
            "graph @main(%x: f32[2]) -> (x: %0, y: %x) {\n  %0 = neg %x : f32[2]\n}\n");
  ExpectRoundTrip(graph, /*names=*/false);
}

TEST(Text, EveryOpRoundTrips) {
  ASSERT_GT(testing::OpSamples().size(), 50u);
  for (const testing::OpSample& sample : testing::OpSamples()) {
    SCOPED_TRACE(sample.Name());
    ExpectRoundTrip(testing::BuildSample(sample).graph);
  }
}

TEST(Text, AGptRoundTrips) {
  ExpectRoundTrip(
      BuildGpt(ParseBuiltin("builtin:gpt?layers=2,hidden=48,heads=4,vocab=131,seq=16")));
}

// A quadratic step anywhere would take minutes.
TEST(Text, LargeGraphsTakeLittleTime) {
  Graph graph;
  Builder b(graph);
  Value* v = graph.AddInput("x", TensorType(DType::kF32, {2}));
  for (int i = 0; i < 100000; ++i) {
    v = b.Neg(v);
    if (i % 2) v->name = "v" + std::to_string(i / 4);
  }
  graph.outputs.push_back({"y", v});
  const double start = testing::CpuSeconds();
  std::string text = PrintGraph(graph);
  Graph again = ParseGraph(text, "t");
  VerifyGraph(again, true);
  EXPECT_LT(testing::CpuSeconds() - start, 20);
  EXPECT_TRUE(PrintGraph(again) == text);
}

}  // namespace
}  // namespace shardc
