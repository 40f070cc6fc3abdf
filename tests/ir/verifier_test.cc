#include "ir/verifier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <type_traits>

#include "frontend/gpt_config.h"
#include "ir/builder.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "passes/pipeline.h"
#include "specs/spec.h"

namespace shardc {
namespace {

// Of a copy values would not know.
static_assert(!std::is_copy_constructible_v<Outputs> && !std::is_move_assignable_v<Outputs>);
static_assert(std::is_move_assignable_v<Graph>);

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kStep = R"(mesh [dp=2, tp=2]
graph @step(%x: f32[4@dp, 6], %g: f32[]) -> (loss: %3, %x) {
  %w = param "w" {role="MLP_UP"} : f32[6, 8@tp]
  %m = state "w.m" {dtype="f32", init=0.0, shape=[6, 8]} : f32[6, 8@tp]
  %0 = matmul %x, %w {site="h.0"} : f32[4@dp, 8@tp]
  %1 = gelu %0 {approximate="tanh"} : f32[4@dp, 8@tp]
  %2 = reduce_sum %1 {axes=[0, 1], keepdims=false} : f32[] partial(dp,tp)
  %3 = all_reduce %2 {axes=["dp", "tp"], reduce="sum"} : f32[]
  %4 = mul %w, %g : f32[6, 8@tp]
  update "w" %4
  update "w.m" %m
}
)";

std::string Verify(const Graph& graph, bool closed = false) {
  try {
    VerifyGraph(graph, closed);
    return "good";
  } catch (const Diagnostic& d) {
    return d.id() + " " + d.where() + ": " + d.message();
  }
}

Op* Find(const Graph& graph, std::string_view name) {
  for (const auto& op : graph.ops()) {
    if (op->name() == name) return op.get();
  }
  return nullptr;
}

// What the verifier says of kStep after a change.
std::string After(const std::function<void(Graph&)>& change, bool closed = false) {
  Graph graph = ParseGraph(kStep, "step");
  change(graph);
  return Verify(graph, closed);
}

TEST(Verifier, AcceptsAGoodGraph) {
  EXPECT_EQ(After([](Graph&) {}), "good");
  EXPECT_EQ(After([](Graph&) {}, true), "good");
}

TEST(Verifier, NamesTheOpThatIsWrong) {
  struct Case {
    const char* error;
    std::function<void(Graph&)> change;
  };
  const std::vector<Case> cases = {
      {"E7003 op 1: matmul in h.0: operand 1 is used before it is made",
       [](Graph& g) { g.MoveBefore(Find(g, "param"), nullptr); }},
      {"E7003 op 3: gelu: has 2 operands",
       [](Graph& g) { g.AppendOperand(Find(g, "gelu"), g.inputs()[0].get()); }},
      {"E7003 op 5: all_reduce: the mesh has no axis 'ep'",
       [](Graph& g) {
         Find(g, "all_reduce")->attrs.Set("axes", Strings{"dp", "ep"});
       }},
      {"E7003 op 3: gelu: lacks its attribute 'approximate'",
       [](Graph& g) { Find(g, "gelu")->attrs.Erase("approximate"); }},
      {"E7003 op 3: gelu: attribute 'approximate' is not a string",
       [](Graph& g) { Find(g, "gelu")->attrs.Set("approximate", true); }},
      {"E7003 op 3: gelu: has an unknown attribute 'speed'",
       [](Graph& g) { Find(g, "gelu")->attrs.Set("speed", 1.5); }},
      {"E7003 op 4: reduce_sum: axis 2 is out of range",
       [](Graph& g) { Find(g, "reduce_sum")->attrs.Set("axes", Ints{2}); }},
      {"E7003 op 4: reduce_sum: result 0 is f32[8], not f32[] partial(dp,tp)",
       [](Graph& g) { Find(g, "reduce_sum")->attrs.Set("axes", Ints{0}); }},
      {"E7003 op 3: gelu: result 0 is f32[4, 8], not f64[4@dp, 8@tp]",
       [](Graph& g) { Find(g, "gelu")->result()->type.dtype = DType::kF64; }},
      {"E7003 op 3: gelu: result 0 does not know where it comes from",
       [](Graph& g) { Find(g, "gelu")->result()->index = 1; }},
      {"E7003 gelu: a value lists 2 uses but has 1",
       [](Graph& g) { Find(g, "gelu")->result()->users.push_back(Find(g, "mul")); }},
      {"E7003 op 1: state \"w\": another parameter or state has this name",
       [](Graph& g) { Find(g, "state")->attrs.Set("name", std::string("w")); }},
      {"E7003 op 1: state \"w.m\": result 0 is f32[8, 6], not f32[6, 8@tp]",
       [](Graph& g) {
         Find(g, "state")->attrs.Set("shape", Ints{8, 6});
       }},
      {"E7003 op 7: update \"v\": there is no parameter or state of this name",
       [](Graph& g) { Find(g, "update")->attrs.Set("name", std::string("v")); }},
      {"E7003 op 8: update \"w.m\": it is updated twice",
       [](Graph& g) { Find(g, "update")->attrs.Set("name", std::string("w.m")); }},
      {"E7003 op 7: update \"w\": the value is f32[4@dp, 6] but the state is f32[6, 8@tp]",
       [](Graph& g) { g.SetOperand(Find(g, "update"), 0, g.inputs()[0].get()); }},
      {"E7003 input 'x': two inputs have this name", [](Graph& g) { g.inputs()[1]->name = "x"; }},
      {"E7003 output 'loss': two outputs have this name",
       [](Graph& g) {
         g.outputs.push_back({"loss", g.outputs[0].value});
       }},
      {"E7003 output 'x': its value is not in the graph",
       [](Graph& g) { g.outputs.Set(g.outputs.begin() + 1, nullptr); }},
      {"E7003 input 'x': a sharding names an axis that the mesh does not have",
       [](Graph& g) { g.mesh = Mesh(); }},
      {"E7003 input 'x': a tensor of 2 dims has shardings for 1",
       [](Graph& g) { g.inputs()[0]->type.sharding.dims.pop_back(); }},
      {"E7003 input 'x': f32[4@dp, 6@dp]: axis 'dp' cuts the tensor twice",
       [](Graph& g) { g.inputs()[0]->type.sharding.dims[1].axes.push_back(0); }},
      {"E7003 op 3: gelu: f32[4@dp, 8@tp%9]: granule 9 does not fit into dim 1",
       [](Graph& g) { Find(g, "gelu")->result()->type.sharding.dims[1].granule = 9; }},
      {"E7003 op 0: param \"w\": f32[6, 8@tp/[5,2]]: the segments of dim 1 add up to 7",
       [](Graph& g) {
         Find(g, "param")->result()->type.sharding.dims[1].segments = {5, 2};
       }},
      {"E7003 op 0: param \"w\": f32[6, 8@tp/[9223372036854775807,9223372036854775807,10]]: the "
       "segments of dim 1 add up to 9223372036854775807",  // they wrap around to 8
       [](Graph& g) {
         const int64_t most = std::numeric_limits<int64_t>::max();
         Find(g, "param")->result()->type.sharding.dims[1].segments = {most, most, 10};
       }},
      {"E7003 op 0: param \"w\": attribute 'rows' has to name dims of 2",
       [](Graph& g) { Find(g, "param")->attrs.Set("rows", Ints{2}); }},
      {"E7003 op 0: param \"w\": attribute 'columns' has to name dims of 2",
       [](Graph& g) { Find(g, "param")->attrs.Set("columns", Ints{}); }},
      {"E7003 op 0: param \"v\": attribute 'transpose_of' is for a matrix",
       [](Graph& g) {
         Value* v = Builder(g, g.ops().front().get()).Param("v", DType::kF32, {6});
         v->producer->attrs.Set("transpose_of", std::string("v.weight"));
       }},
      {"E7003 op 0: param \"w\": lacks its attribute 'whole_size'",
       [](Graph& g) {
         for (const char* name : {"piece_dim", "piece_start"}) {
           Find(g, "param")->attrs.Set(name, int64_t{0});
         }
         Find(g, "param")->attrs.Set("piece_of", std::string("v"));
       }},
      {"E7003 op 0: param \"w\": is no piece from 3 of 10 along dim 1",
       [](Graph& g) {
         for (auto [name, n] :
              {std::pair("piece_dim", 1), {"piece_start", 3}, {"whole_size", 10}}) {
           Find(g, "param")->attrs.Set(name, int64_t{n});
         }
         Find(g, "param")->attrs.Set("piece_of", std::string("v"));
       }},
      {"E7003 op 3: gelu: is on stage 2 of a pipeline of 2",
       [](Graph& g) {
         g.pipeline_axis = "dp";
         Find(g, "gelu")->stage = 2;
       }},
      {"E7003 op 3: gelu: is on virtual stage 9: there are fewer ops",
       [](Graph& g) {
         g.pipeline_axis = "dp";
         Find(g, "gelu")->virtual_stage = 9;
       }},
  };
  for (const Case& c : cases) EXPECT_THAT(After(c.change), StartsWith(c.error));
}

TEST(Verifier, UpdatesHaveTheStatesShardingOnceClosed) {
  auto change = [](Graph& g) {
    g.SetOperand(Find(g, "update"), 0,
                 Builder(g, Find(g, "update")).Param("v", DType::kF32, {6, 8}));
  };
  EXPECT_EQ(After(change), "good");
  EXPECT_THAT(After(change, true),
              HasSubstr("the value is f32[6, 8] but the state is f32[6, 8@tp]"));
}

struct RuleCase {
  const char* inputs;
  const char* op;
  bool good;
};

TEST(Verifier, ClosedShardingsAgreeWithTheRule) {
  const RuleCase kCases[] = {
      // Whole, cut along a free factor, contracted: sums.
      {"%a: f32[4, 6], %b: f32[6, 8]", "matmul %a, %b : f32[4, 8]", true},
      {"%a: f32[4, 6], %b: f32[6, 8@tp]", "matmul %a, %b : f32[4, 8@tp]", true},
      {"%a: f32[4@dp, 6], %b: f32[6, 8@tp]", "matmul %a, %b : f32[4@dp, 8@tp]", true},
      {"%a: f32[4, 6@tp], %b: f32[6@tp, 8]", "matmul %a, %b : f32[4, 8] partial(tp)", true},
      {"%a: f32[4, 6@tp%3], %b: f32[6@tp, 8]", "matmul %a, %b : f32[4, 8] partial(tp)", true},
      {"%a: f32[4, 6], %b: f32[6, 8@tp]", "matmul %a, %b : f32[4, 8]", false},
      {"%a: f32[4, 6], %b: f32[6, 8]", "matmul %a, %b : f32[4, 8@tp]", false},
      {"%a: f32[4, 6@tp], %b: f32[6, 8]", "matmul %a, %b : f32[4, 8] partial(tp)", false},
      {"%a: f32[4, 6@tp], %b: f32[6@tp, 8]", "matmul %a, %b : f32[4, 8]", false},
      {"%a: f32[4, 6@tp], %b: f32[6@tp, 8]", "matmul %a, %b : f32[4, 8] partial_max(tp)", false},
      {"%a: f32[4, 6@tp], %b: f32[6@dp, 8]", "matmul %a, %b : f32[4, 8] partial(tp)", false},
      {"%a: f32[4@tp, 6], %b: f32[6, 8@tp]", "matmul %a, %b : f32[4@tp, 8]", false},
      // Other layouts of the same factor.
      {"%a: f32[4, 6], %b: f32[6, 8@tp/2]", "matmul %a, %b : f32[4, 8@tp/2]", true},
      {"%a: f32[4, 6], %b: f32[6, 8@tp/2]", "matmul %a, %b : f32[4, 8@tp]", false},
      {"%a: f32[4, 9@tp], %b: f32[9@tp%3, 8]", "matmul %a, %b : f32[4, 8] partial(tp)", false},
      // Partial sums pass linear ops: one operand of a product, both of a sum.
      {"%a: f32[4] partial(tp), %b: f32[4]", "mul %a, %b : f32[4] partial(tp)", true},
      {"%a: f32[4] partial(tp), %b: f32[4] partial(tp)", "mul %a, %b : f32[4] partial(tp)", false},
      {"%a: f32[4] partial(tp), %b: f32[4] partial(tp)", "add %a, %b : f32[4] partial(tp)", true},
      {"%a: f32[4] partial(tp), %b: f32[4]", "add %a, %b : f32[4] partial(tp)", false},
      {"%a: f32[4] partial(tp), %b: f32[4]", "neg %a : f32[4] partial(tp)", true},
      {"%a: f32[4] partial(tp), %b: f32[4]", "exp %a : f32[4] partial(tp)", false},
      {"%a: f32[4] partial(tp), %b: f32[4]", "neg %a : f32[4]", false},
      // Products of factors, segments, maxima, whole factors.
      {"%a: f32[4, 6@tp], %b: f32[1]", "reshape %a {shape=[24]} : f32[24@tp/4]", true},
      {"%a: f32[4, 6@tp], %b: f32[1]", "reshape %a {shape=[24]} : f32[24]", false},
      {"%a: f32[8@tp/2], %b: f32[1]", "reduce_max %a {axes=[0]} : f32[] partial_max(tp)", true},
      {"%a: f32[8@tp/2], %b: f32[1]", "reduce_max %a {axes=[0]} : f32[] partial(tp)", false},
      {"%a: f32[4@tp, 6], %b: f32[1]", "softmax %a {axis=1} : f32[4@tp, 6]", true},
      {"%a: f32[4, 6@tp], %b: f32[1]", "softmax %a {axis=1} : f32[4, 6@tp]", false},
      // Broadcast dims, axes of size 1, and ops that are placed by hand.
      {"%a: f32[4@dp, 6@tp], %b: f32[6@tp]", "add %a, %b : f32[4@dp, 6@tp]", true},
      {"%a: f32[4@dp, 6@tp], %b: f32[6]", "add %a, %b : f32[4@dp, 6@tp]", false},
      {"%a: f32[4@one], %b: f32[4]", "add %a, %b : f32[4]", true},
      {"%a: f32[4@tp], %b: f32[1]", "reshard %a : f32[4@dp]", true},
  };
  for (const RuleCase& c : kCases) {
    std::string text = StrCat("mesh [dp=2, tp=2, one=1]\ngraph @g(", c.inputs,
                              ") -> (%y) {\n  %y = ", c.op, "\n}\n");
    Graph graph = ParseGraph(text, "t");
    EXPECT_EQ(Verify(graph), "good") << text;
    std::string closed = Verify(graph, true);
    EXPECT_THAT(closed, c.good ? HasSubstr("good") : HasSubstr("E7003 op 0: ")) << text;
  }
}

// Splits know where their pieces are.
TEST(Verifier, ClosedSplitsKeepTheirSegments) {
  auto verify = [](std::string_view in, std::string_view out) {
    return Verify(ParseGraph(StrCat("mesh [tp=2]\ngraph @g(%a: ", in, ") -> () {\n",
                                    "  %x, %y = split %a {axis=0, sizes=[8, 4]} : f32[8", out,
                                    "], f32[4", out, "]\n}\n"),
                             "t"),
                  true);
  };
  EXPECT_EQ(verify("f32[12@tp/[8,4]]", "@tp"), "good");
  EXPECT_EQ(verify("f32[12]", ""), "good");
  EXPECT_THAT(verify("f32[12@tp/[8,4]]", ""), HasSubstr("sharding rule over axis 'tp'"));
}

Graph Compile(const char* model, const char* spec_name, const char* mesh, const char* optimizer) {
  Graph graph = BuildGpt(ParseBuiltin(model, {{"batch", 4}, {"seq", 16}}));
  Spec spec = LoadSpec(spec_name);
  PipelineOptions options;
  options.optimizer.kind = optimizer;
  options.verify_each = true;
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(mesh)), options);
  return graph;
}

constexpr const char* kGpt = "builtin:gpt?layers=2,hidden=48,heads=4,vocab=131,seq=16";

TEST(Verifier, AcceptsWhatThePassesMake) {
  const std::string llama =
      StrCat(kGpt, ",kv_heads=2,norm=rms_norm,activation=swiglu,qkv=separate");
  const std::pair<std::string, const char*> kModels[] = {
      {kGpt, "megatron"}, {kGpt, "dp"},        {kGpt, "colotensor_tutorial"},
      {kGpt, "serial"},   {llama, "megatron"}, {llama, "dp"},
      {llama, "serial"}};
  for (const auto& [model, spec] : kModels) {
    for (const char* mesh : {"tp=2", "dp=2,tp=2", "tp=3", "dp=2,tp=3"}) {
      for (const char* optimizer : {"", "adamw"}) {
        SCOPED_TRACE(StrCat(model, " ", spec, " ", mesh, " ", optimizer));
        std::string text;
        EXPECT_NO_THROW(text = PrintGraph(Compile(model.c_str(), spec, mesh, optimizer)));
        EXPECT_TRUE(PrintGraph(ParseGraph(text, "t")) == text);
      }
    }
  }
}

// In a compiled graph, no result of a rule can lose its sharding without the verifier's notice.
TEST(Verifier, FindsEveryShardingThatIsDropped) {
  Graph graph = Compile(kGpt, "megatron", "dp=2,tp=2", "adamw");
  int dropped = 0;
  for (const auto& op : graph.ops()) {
    if (!op->def->rule) continue;
    for (Value* r : op->results) {
      if (r->type.sharding.replicated()) continue;
      Sharding kept = std::exchange(r->type.sharding, Sharding(r->type.shape.size()));
      EXPECT_THAT(Verify(graph, true), StartsWith("E7003 op ")) << op->name();
      r->type.sharding = kept;
      ++dropped;
    }
  }
  EXPECT_GT(dropped, 100);
  EXPECT_EQ(Verify(graph, true), "good");
}

}  // namespace
}  // namespace shardc
