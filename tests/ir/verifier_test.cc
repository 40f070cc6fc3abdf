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
      {"E7003 line 5: matmul in h.0: operand 1 is used before it is made",
       [](Graph& g) { g.MoveBefore(Find(g, "param"), nullptr); }},
      {"E7003 line 6: gelu: has 2 operands",
       [](Graph& g) { g.AppendOperand(Find(g, "gelu"), g.inputs()[0].get()); }},
      {"E7003 line 8: all_reduce: the mesh has no axis 'ep'",
       [](Graph& g) {
         Find(g, "all_reduce")->attrs.Set("axes", Strings{"dp", "ep"});
       }},
      {"E7003 line 6: gelu: lacks its attribute 'approximate'",
       [](Graph& g) { Find(g, "gelu")->attrs.Erase("approximate"); }},
      {"E7003 line 6: gelu: attribute 'approximate' is not a string",
       [](Graph& g) { Find(g, "gelu")->attrs.Set("approximate", true); }},
      {"E7003 line 6: gelu: has an unknown attribute 'speed'",
       [](Graph& g) { Find(g, "gelu")->attrs.Set("speed", 1.5); }},
      {"E7003 line 7: reduce_sum: axis 2 is out of range",
       [](Graph& g) { Find(g, "reduce_sum")->attrs.Set("axes", Ints{2}); }},
      {"E7003 line 7: reduce_sum: result 0 is f32[8], not f32[] partial(dp,tp)",
       [](Graph& g) { Find(g, "reduce_sum")->attrs.Set("axes", Ints{0}); }},
      {"E7003 line 6: gelu: result 0 is f32[4, 8], not f64[4@dp, 8@tp]",
       [](Graph& g) { Find(g, "gelu")->result()->type.dtype = DType::kF64; }},
      {"E7003 line 6: gelu: result 0 does not know where it comes from",
       [](Graph& g) { Find(g, "gelu")->result()->index = 1; }},
      {"E7003 gelu: a value lists 2 uses but has 1",
       [](Graph& g) { Find(g, "gelu")->result()->users.push_back(Find(g, "mul")); }},
      {"E7003 line 4: state \"w\": another parameter or state has this name",
       [](Graph& g) { Find(g, "state")->attrs.Set("name", std::string("w")); }},
      {"E7003 line 4: state \"\xe9\": the name is not UTF-8",
       [](Graph& g) { Find(g, "state")->attrs.Set("name", std::string("\xe9")); }},
      {"E7003 line 4: state \"w.m\": result 0 is f32[8, 6], not f32[6, 8@tp]",
       [](Graph& g) {
         Find(g, "state")->attrs.Set("shape", Ints{8, 6});
       }},
      {"E7003 line 10: update \"v\": there is no parameter or state of this name",
       [](Graph& g) { Find(g, "update")->attrs.Set("name", std::string("v")); }},
      {"E7003 line 11: update \"w.m\": it is updated twice",
       [](Graph& g) { Find(g, "update")->attrs.Set("name", std::string("w.m")); }},
      {"E7003 line 10: update \"w\": the value is f32[4@dp, 6] but the state is f32[6, 8@tp]",
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
      {"E7003 line 6: gelu: f32[4@dp, 8@tp%9]: granule 9 does not fit into dim 1",
       [](Graph& g) { Find(g, "gelu")->result()->type.sharding.dims[1].granule = 9; }},
      {"E7003 line 3: param \"w\": f32[6, 8@tp/[5,2]]: the segments of dim 1 add up to 7",
       [](Graph& g) {
         Find(g, "param")->result()->type.sharding.dims[1].segments = {5, 2};
       }},
      {"E7003 line 3: param \"w\": f32[6, 8@tp/[9223372036854775807,9223372036854775807,10]]: the "
       "segments of dim 1 add up to 9223372036854775807",  // they wrap around to 8
       [](Graph& g) {
         const int64_t most = std::numeric_limits<int64_t>::max();
         Find(g, "param")->result()->type.sharding.dims[1].segments = {most, most, 10};
       }},
      {"E7003 line 3: param \"w\": attribute 'rows' has to name dims of 2",
       [](Graph& g) { Find(g, "param")->attrs.Set("rows", Ints{2}); }},
      {"E7003 line 3: param \"w\": attribute 'columns' has to name dims of 2",
       [](Graph& g) { Find(g, "param")->attrs.Set("columns", Ints{}); }},
      {"E7003 line 3: param \"w\": attribute 'stacked' has to name a dim and a number that divides "
       "it",
       [](Graph& g) {
         Find(g, "param")->attrs.Set("stacked", Ints{0, 4});
       }},
      {"E7003 op 0: param \"v\": attribute 'transpose_of' is for a matrix",
       [](Graph& g) {
         Value* v = Builder(g, g.ops().front().get()).Param("v", DType::kF32, {6});
         v->producer->attrs.Set("transpose_of", std::string("v.weight"));
       }},
      {"E7003 line 3: param \"w\": lacks its attribute 'whole_size'",
       [](Graph& g) {
         for (const char* name : {"piece_dim", "piece_start"}) {
           Find(g, "param")->attrs.Set(name, int64_t{0});
         }
         Find(g, "param")->attrs.Set("piece_of", std::string("v"));
       }},
      {"E7003 line 3: param \"w\": is no piece from 3 of 10 along dim 1",
       [](Graph& g) {
         for (auto [name, n] :
              {std::pair("piece_dim", 1), {"piece_start", 3}, {"whole_size", 10}}) {
           Find(g, "param")->attrs.Set(name, int64_t{n});
         }
         Find(g, "param")->attrs.Set("piece_of", std::string("v"));
       }},
      {"E7003 line 6: gelu: is on stage 2 of a pipeline of 2",
       [](Graph& g) {
         g.pipeline_axis = "dp";
         Find(g, "gelu")->stage = 2;
       }},
      {"E7003 line 6: gelu: is on virtual stage 9: there are fewer ops",
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
      // Of a dim of several factors the one that is cut: major, minor, both, in blocks.
      {"%a: f32[24@tp], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4@tp, 6]", true},
      {"%a: f32[24@tp], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4, 6@tp]", false},
      {"%a: f32[24@tp/4], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4, 6@tp]", true},
      {"%a: f32[24@tp/4], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4@tp, 6]", false},
      {"%a: f32[24@tp/2], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4, 6@tp]", false},
      {"%a: f32[24@(dp,tp)], %b: f32[1]", "reshape %a {shape=[2, 12]} : f32[2@dp, 12@tp]", true},
      {"%a: f32[24@(dp,tp)], %b: f32[1]", "reshape %a {shape=[2, 12]} : f32[2@tp, 12@dp]", false},
      {"%a: f32[24@(dp,tp)], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4@dp, 6@tp]", false},
      {"%a: f32[15@tp%5], %b: f32[1]", "reshape %a {shape=[3, 5]} : f32[3@tp, 5]", true},
      {"%a: f32[15@tp], %b: f32[1]", "reshape %a {shape=[3, 5]} : f32[3@tp, 5]", false},
      {"%a: f32[15@tp/3], %b: f32[1]", "reshape %a {shape=[3, 5]} : f32[3, 5@tp]", true},
      {"%a: f32[6@tp, 4], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4@tp, 6]", true},
      {"%a: f32[6, 4@tp], %b: f32[1]", "reshape %a {shape=[4, 6]} : f32[4@tp, 6]", false},
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
    EXPECT_THAT(closed, c.good ? HasSubstr("good") : HasSubstr("E7003 line 3: ")) << text;
  }
}

// Also of ops that are alike but for an attribute.
TEST(Verifier, EachOfSeveralOpsAgreesWithItsRule) {
  Graph graph = ParseGraph(R"(mesh [tp=2]
graph @g(%a: f32[4, 6@tp]) -> () {
  %x = softmax %a {axis=0} : f32[4, 6@tp]
  %y = softmax %a {axis=1} : f32[4, 6@tp]
})",
                           "t");
  EXPECT_THAT(Verify(graph, true), HasSubstr("E7003 line 4: softmax"));
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

// What each kind makes of how its operand lies, and nothing else.
TEST(Verifier, CollectivesDoWhatTheirTypesSay) {
  auto verify = [](const std::string& from, const std::string& op, const std::string& to) {
    const std::string text = "mesh [a=2, b=2, one=1]\ngraph @g(%x: f32" + from +
                             ") -> (%y) {\n  %y = " + op + " : f32" + to + "\n}\n";
    return Verify(ParseGraph(text, "t"));
  };
  const std::string gather = "all_gather %x {axes=[\"a\"], dim=0}";
  const std::string gather_b = "all_gather %x {axes=[\"b\"], dim=0}";
  const std::string scatter = "reduce_scatter %x {axes=[\"b\"], dim=0}";
  const std::string exchange = "all_to_all %x {axes=[\"a\"], concat_dim=0, split_dim=1}";
  const std::string sum = "all_reduce %x {axes=[\"a\"]}";
  const std::string max = "all_reduce %x {axes=[\"a\"], reduce=\"max\"}";
  const std::string slice = "local_slice %x {axes=[\"a\"], dim=0}";
  const std::string send = "send_recv %x {axes=[\"a\"], from=0, to=1}";
  EXPECT_EQ(verify("[8@(a,b), 4]", gather_b, "[8@a, 4]"), "good");
  EXPECT_EQ(verify("[8@(a,b), 4]", "all_gather %x {axes=[\"a\", \"b\"], dim=0}", "[8, 4]"), "good");
  EXPECT_EQ(verify("[8, 4]", "all_gather %x {axes=[\"one\"], dim=0}", "[8, 4]"), "good");
  EXPECT_EQ(verify("[5@(a,b)%2, 4]", gather_b, "[5@a%2, 4]"), "good");
  EXPECT_EQ(verify("[8@a, 4] partial(b)", scatter, "[8@(a,b), 4]"), "good");
  EXPECT_EQ(verify("[8@a, 4] partial(b)", exchange, "[8, 4@a] partial(b)"), "good");
  EXPECT_EQ(verify("[8, 4@b] partial(a)", sum, "[8, 4@b]"), "good");
  EXPECT_EQ(verify("[8, 4] partial_max(a)", max, "[8, 4]"), "good");
  EXPECT_EQ(verify("[8, 4@b]", slice, "[8@a, 4@b]"), "good");
  EXPECT_EQ(verify("[8, 4@b]", send, "[8, 4@b]"), "good");

  auto operand = [](const std::string& op, const std::string& want, const std::string& is) {
    return "E7003 line 3: " + op + ": its operand has to " + want + ", and is f32" + is;
  };
  const std::string cut = "have dim 0 cut, behind other axes, by ";
  EXPECT_EQ(verify("[8, 4]", gather, "[8, 4]"), operand("all_gather", cut + "a", "[8, 4]"));
  EXPECT_EQ(verify("[8, 4@a]", gather, "[8, 4]"), operand("all_gather", cut + "a", "[8, 4@a]"));
  EXPECT_EQ(verify("[8@(a,b), 4]", gather, "[8@b, 4]"),
            operand("all_gather", cut + "a", "[8@(a,b), 4]"));
  EXPECT_EQ(verify("[8, 4@a]", exchange, "[8@a, 4]"), operand("all_to_all", cut + "a", "[8, 4@a]"));
  EXPECT_EQ(verify("[8@a, 4]", scatter, "[8@(a,b), 4]"),
            operand("reduce_scatter", "be a partial sum over b", "[8@a, 4]"));
  EXPECT_EQ(verify("[8, 4]", sum, "[8, 4]"),
            operand("all_reduce", "be a partial sum over a", "[8, 4]"));
  EXPECT_EQ(verify("[8, 4] partial(a)", max, "[8, 4]"),
            operand("all_reduce", "be a partial maximum over a", "[8, 4] partial(a)"));
  EXPECT_EQ(verify("[8@a, 4]", slice, "[8@a, 4]"),
            operand("local_slice", "be whole over a", "[8@a, 4]"));
  EXPECT_EQ(verify("[8, 4@a]", send, "[8, 4@a]"),
            operand("send_recv", "be whole over a", "[8, 4@a]"));
  EXPECT_EQ(verify("[8@a, 4]", gather, "[8@a, 4]"),
            "E7003 line 3: all_gather: its result has to be whole over a, and is f32[8@a, 4]");
  EXPECT_EQ(verify("[8@a, 4]", exchange, "[8@a, 4]"),
            "E7003 line 3: all_to_all: its result has to have dim 1 cut, behind other axes, by a, "
            "and is f32[8@a, 4]");
  EXPECT_EQ(
      verify("[8@a, 4@b]", gather, "[8, 4]"),
      "E7003 line 3: all_gather: its operand f32[8@a, 4@b] and its result f32[8, 4] differ in "
      "more than a");
  EXPECT_EQ(verify("[8@a, 4]", "all_gather %x {axes=[\"a\", \"a\"], dim=0}", "[8, 4]"),
            "E7003 line 3: all_gather: names axis 'a' twice");
}

}  // namespace
}  // namespace shardc
