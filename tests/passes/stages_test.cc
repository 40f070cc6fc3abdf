// The stages of a pipeline: who runs what, and what travels.
#include <gmock/gmock.h>

#include "frontend/gpt_config.h"
#include "ir/op_def.h"
#include "ir/text.h"
#include "passes/assign_stages.h"
#include "passes/emit.h"
#include "passes/heard_back.h"
#include "passes/move_to_readers.h"
#include "passes/param_names.h"
#include "passes/pipeline.h"
#include "passes/place_stages.h"
#include "tests/ir/thrown.h"
#include "tests/passes/check_text.h"

namespace shardc::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Pair;

Graph Model(const std::string& form, const std::string& mesh) {
  Graph graph = BuildGpt(ParseBuiltin("builtin:gpt?hidden=16,heads=2,seq=8,batch=4," + form));
  graph.mesh = Mesh::Parse(mesh);
  return graph;
}

Spec OverPp(const std::string& more = "") {
  return ParseSpec("pipeline_axis: 'pp' " + more, "s.textproto");
}

// Of the products of each layer's MLP, by the name of the site.
std::vector<int> StagesOfLayers(const Graph& graph) {
  std::vector<int> stages;
  for (const auto& op : graph.ops()) {
    if (op->name() == "matmul" && op->site.ends_with("mlp.c_proj")) stages.push_back(op->stage);
  }
  return stages;
}

// The same of their virtual stages.
std::vector<int> VirtualStagesOfLayers(const Graph& graph) {
  std::vector<int> stages;
  for (const auto& op : graph.ops()) {
    if (op->name() == "matmul" && op->site.ends_with("mlp.c_proj")) {
      stages.push_back(op->virtual_stage);
    }
  }
  return stages;
}

int StageAt(const Graph& graph, const std::string& op, const std::string& site) {
  for (const auto& o : graph.ops()) {
    if (o->name() == op && o->site == site) return o->stage;
  }
  ADD_FAILURE() << op << " at " << site;
  return -2;
}

TEST(AssignStages, LayersAreDealtByTheirWork) {
  Graph even = Model("layers=6,vocab=32", "pp=3");
  AssignStages(even, OverPp());
  EXPECT_EQ(even.pipeline_axis, "pp");
  EXPECT_THAT(StagesOfLayers(even), ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_EQ(StageAt(even, "embedding", "transformer.wte"), 0);
  EXPECT_EQ(StageAt(even, "matmul_nt", "lm_head"), 2);
  // A head as dear as several layers leaves fewer of them on the last stage.
  Graph head = Model("layers=6,vocab=2048", "pp=2");
  AssignStages(head, OverPp());
  EXPECT_THAT(StagesOfLayers(head), ElementsAre(0, 0, 0, 0, 0, 1));
  Graph given = Model("layers=4,vocab=32", "pp=2,dp=2");
  AssignStages(given, OverPp("stage_layers: [1, 3]"));
  EXPECT_THAT(StagesOfLayers(given), ElementsAre(0, 1, 1, 1));
}

TEST(AssignStages, VirtualStagesTakeTurns) {
  Graph even = Model("layers=8,vocab=32", "pp=2");
  AssignStages(even, OverPp("virtual_stages: 2"));
  EXPECT_THAT(StagesOfLayers(even), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(VirtualStagesOfLayers(even), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_EQ(StageAt(even, "matmul_nt", "lm_head"), 1);
  // Each stage has as much as the other, though runs differ.
  Graph uneven = Model("layers=6,vocab=32", "pp=2");
  AssignStages(uneven, OverPp("virtual_stages: 2"));
  const std::vector<int> stages = StagesOfLayers(uneven);
  EXPECT_EQ(std::count(stages.begin(), stages.end(), 0), 3) << ::testing::PrintToString(stages);
  Graph given = Model("layers=5,vocab=32", "pp=2");
  AssignStages(given, OverPp("virtual_stages: 2 stage_layers: [1, 1, 2, 1]"));
  EXPECT_THAT(StagesOfLayers(given), ElementsAre(0, 1, 0, 0, 1));
}

// Each layer of a decoder makes keys of what the encoder gives, which alone travels.
TEST(AssignStages, WeightsAreWithTheLayersThatUseThem) {
  constexpr std::string_view kEncoder = R"(
  %we$ = param "encoder.$.weight" : f32[8, 8]
  %me$ = matmul %xe$, %we$ {site="encoder.$"} : f32[4, 8]
  %te$ = tanh %me$ {site="encoder.$"} : f32[4, 8]
  %xe+ = add %xe$, %te$ {site="encoder.$"} : f32[4, 8])",
                             kDecoder = R"(
  %wd$ = param "decoder.$.weight" : f32[8, 8]
  %kd$ = matmul %xe2, %wd$ {site="decoder.$.key"} : f32[4, 8]
  %sd$ = tanh %kd$ {site="decoder.$.key"} : f32[4, 8]
  %vd$ = param "decoder.$.value" : f32[8, 8]
  %pd$ = mul %xd$, %sd$ {site="decoder.$"} : f32[4, 8]
  %od$ = matmul %pd$, %vd$ {site="decoder.$"} : f32[4, 8]
  %xd+ = add %xd$, %od$ {site="decoder.$"} : f32[4, 8])";
  std::string text = "mesh [pp=4]\ngraph @g(%xe0: f32[4, 8], %xd0: f32[4, 8]) -> (loss: %loss) {";
  for (std::string_view layers : {kEncoder, kDecoder}) {
    for (int l = 0; l < 2; ++l) {
      for (char c : layers)
        text += c == '$' ? StrCat(l) : c == '+' ? StrCat(l + 1) : std::string(1, c);
    }
  }
  text += "\n  %loss = reduce_mean %xd2 {axes=[0, 1]} : f32[]\n}";
  Graph graph = ParseAndVerify(text);
  AssignStages(graph, OverPp());
  for (int l = 0; l < 2; ++l) {
    EXPECT_EQ(StageAt(graph, "tanh", StrCat("encoder.", l)), l);
    EXPECT_EQ(StageAt(graph, "matmul", StrCat("decoder.", l, ".key")), 2 + l);
    EXPECT_EQ(StageAt(graph, "tanh", StrCat("decoder.", l, ".key")), 2 + l);
    EXPECT_EQ(StageAt(graph, "mul", StrCat("decoder.", l)), 2 + l);
  }
}

// A layer that runs for two inputs is where its weights are; one that follows itself is another.
TEST(AssignStages, PassesThroughOneLayerAreTogether) {
  auto stages = [](const std::string& second) {
    std::string text = "mesh [pp=2]\ngraph @g(%a0: f32[4, 8], %b0: f32[4, 8]) -> (loss: %loss) {\n";
    for (int l = 0; l < 4; ++l) text += StrCat("%w", l, " = param \"w", l, "\" : f32[8, 8]\n");
    for (const std::string& pass : {std::string("a"), std::string("b")}) {
      std::string in = pass == "a" ? "a0" : second;
      for (int l = 0; l < 4; ++l) {
        const std::string at = StrCat(pass, l), site = StrCat(" {site=\"", at, "\"}");
        text += StrCat("%p", at, " = matmul %", in, ", %w", l, site, " : f32[4, 8]\n");
        text += StrCat("%t", at, " = tanh %p", at, site, " : f32[4, 8]\n");
        text += StrCat("%o", at, " = add %", in, ", %t", at, site, " : f32[4, 8]\n");
        in = StrCat("o", at);
      }
    }
    text +=
        "%d = sub %oa3, %ob3 : f32[4, 8]\n"
        "%loss = reduce_mean %d {axes=[0, 1]} : f32[]\n}";
    Graph graph = ParseAndVerify(text);
    AssignStages(graph, OverPp());
    std::vector<int> stages;
    for (const auto& op : graph.ops()) {
      if (op->name() == "tanh") stages.push_back(op->stage);
    }
    return stages;
  };
  EXPECT_THAT(stages("b0"), ElementsAre(0, 0, 1, 1, 0, 0, 1, 1));
  EXPECT_THAT(stages("oa3"), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
}

// What is frozen, and gets no gradients, takes a third of the time of what is trained.
TEST(AssignStages, GradientsAreWork) {
  auto stages = [](bool trains) {
    Graph graph = Model("layers=8,vocab=32", "pp=2");
    FreezeParams(graph, {"*.wpe.*", "*.wte.*", "*.h.0.*", "*.h.1.*", "*.h.2.*", "*.h.3.*"}, {});
    AssignStages(graph, OverPp(), trains);
    return StagesOfLayers(graph);
  };
  EXPECT_THAT(stages(false), ElementsAre(0, 0, 0, 0, 1, 1, 1, 1));
  EXPECT_THAT(stages(true), ElementsAre(0, 0, 0, 0, 0, 1, 1, 1));
}

TEST(AssignStages, WithoutTheAxisThereIsNoPipeline) {
  for (const char* mesh : {"dp=2", "pp=1,dp=2"}) {
    Graph graph = Model("layers=2,vocab=32", mesh);
    AssignStages(graph, OverPp());
    EXPECT_EQ(graph.pipeline_axis, "");
    EXPECT_THAT(StagesOfLayers(graph), ElementsAre(-1, -1));
  }
}

// Gradients of f16 are made f32 and unscaled by ops that are of no stage, and so are the sums over
// ranks behind them: those of two stages do not become one.
TEST(PlaceStages, SumsOfTwoStagesAreNotOne) {
  auto transfers = [](const std::string& form, const std::string& mesh,
                      const std::string& precision) {
    Graph graph = BuildGpt(ParseBuiltin("builtin:gpt?hidden=48,vocab=64,seq=8,batch=8," + form));
    Spec spec = LoadSpec("megatron");
    PipelineOptions options;
    options.loss = "lm";
    options.precision.compute = precision;
    options.optimizer.kind = "adamw";
    CompileGraph(graph, spec, Mesh::Parse(mesh), options);
    EmitStages(graph);
    return std::count_if(graph.ops().begin(), graph.ops().end(),
                         [](const auto& op) { return op->name() == "send_recv"; });
  };
  for (const char* mesh : {"pp=2,dp=2", "pp=4,dp=2"}) {
    const std::string form = "layers=4,heads=6";
    EXPECT_LE(transfers(form, mesh, "f16"), transfers(form, mesh, "bf16") + 2) << mesh;
  }
  // Pieces of a gradient are where their parameter is.
  transfers("layers=2,heads=6,kv_heads=2", "pp=2,tp=4", "f16");
}

// The update reads a factor, the number of the step, the rate and, in f16, the loss scale: all are
// made of the norm, or of states, on each stage.
TEST(PlaceStages, OneScalarOfTheUpdateTravels) {
  for (const char* precision : {"f32", "f16"}) {
    Graph graph = BuildGpt(ParseBuiltin("builtin:gpt?layers=4,hidden=48,vocab=64,seq=8,batch=8"));
    PipelineOptions options;
    options.precision.compute = precision;
    options.optimizer.kind = "adamw";
    options.optimizer.rate.warmup_steps = 5;
    CompileGraph(graph, LoadSpec("megatron"), Mesh::Parse("pp=4,dp=2"), options);
    std::vector<int64_t> to(4);
    for (const auto& op : graph.ops()) {
      if (op->name() == "send_recv" && op->out().rank() == 0) ++to[op->attrs.Int("to")];
    }
    EXPECT_THAT(to, ElementsAre(3, 1, 1, 1)) << precision;  // stage 0 adds up the norm
  }
}

// More stages than layers: attention is on one, the MLP on the next.
TEST(AssignStages, DividesLayers) {
  Graph graph = Model("layers=2,vocab=32", "pp=4");
  AssignStages(graph, OverPp());
  std::map<std::string, std::set<int>> stages;  // by module
  for (const auto& op : graph.ops()) {
    if (op->name() == "matmul") stages[op->site].insert(op->stage);
  }
  EXPECT_THAT(stages, IsSupersetOf({Pair("transformer.h.0.attn.c_proj", ElementsAre(0)),
                                    Pair("transformer.h.0.mlp.c_fc", ElementsAre(1)),
                                    Pair("transformer.h.1.attn.c_attn", ElementsAre(2)),
                                    Pair("transformer.h.1.mlp.c_proj", ElementsAre(3))}));
  EXPECT_THAT(graph.notes, ElementsAre(HasSubstr("2 layers: it is cut between parts of layers")));
}

TEST(AssignStages, RefusesWhatDoesNotFit) {
  Graph graph = Model("layers=2,vocab=32", "pp=5");
  ExpectThrown([&] { AssignStages(graph, OverPp()); }, "E2120", "use pp=4 or less");
  ExpectThrown([&] { AssignStages(graph, OverPp("stage_layers: [1, 1]")); }, "E2120", "s.text");
  ExpectThrown([&] { AssignStages(graph, OverPp()); }, "E2120",
               "the model has 2 layers, of 4 parts");
  Graph nothing = ParseAndVerify(R"(mesh [pp=2]
    graph @g(%x: f32[4, 4]) -> (%y) {
      %w = param "w" : f32[4, 2]
      %y = matmul %x, %w : f32[4, 2]
    })");
  ExpectThrown([&] { AssignStages(nothing, OverPp()); }, "E2120", "has no layer that repeats");
  Graph one = ParseAndVerify(R"(mesh [pp=2]
    graph @g(%x: f32[4, 4]) -> (%y) {
      %w = param "w" : f32[4, 4]
      %p = matmul %x, %w : f32[4, 4]
      %y = add %x, %p : f32[4, 4]
    })");
  ExpectThrown([&] { AssignStages(one, OverPp()); }, "E2120",
               "has no layer that repeats, and 1 part; use pp=1");
  graph.mesh = Mesh::Parse("pp=2");
  ExpectThrown([&] { AssignStages(graph, OverPp("stage_layers: [1, 2]")); }, "E2121",
               "deals 3 layers to 2 stages");
  graph.mesh = Mesh::Parse("pp=4");
  ExpectThrown([&] { AssignStages(graph, OverPp("stage_layers: [1, 1, 1, 2]")); }, "E2121",
               "deals 5 parts to 4 stages; the model has 4 parts");
  graph.mesh = Mesh::Parse("pp=2");
  const std::string interleaved = "virtual_stages: 3";
  ExpectThrown([&] { AssignStages(graph, OverPp(interleaved)); }, "E2120",
               "has 2 stages of 3 virtual ones each, and the model has 2 layers, of 4 parts; use 2 "
               "virtual stages or less");
  graph.mesh = Mesh::Parse("dp=2");
  ExpectThrown([&] { AssignStages(graph, OverPp(interleaved)); }, "E2121", "use a mesh with pp=2");
  ExpectThrown([&] { AssignStages(graph, ParseSpec(interleaved, "s")); }, "E2121", "pipeline_axis");
  const std::string given = "stage_layers: [1, 1]";
  graph.mesh = Mesh::Parse("pp=1,dp=2");
  ExpectThrown([&] { AssignStages(graph, OverPp(given)); }, "E2121", "the mesh has pp=1");
  EXPECT_NO_THROW(AssignStages(graph, OverPp("stage_layers: [2]")));  // all on the one stage
  graph.mesh = Mesh::Parse("dp=2");
  ExpectThrown([&] { AssignStages(graph, OverPp(given)); }, "E2121", "the mesh has no axis 'pp'");
  ExpectThrown(
      [&] {
        Graph cut = Model("layers=2,vocab=32", "");
        CompileGraph(cut, OverPp("input { match: '*' shard_spec { dims: 0 axes: 'pp' } }"),
                     Mesh::Parse("pp=2"), {});
      },
      "E2122", "input input_ids is cut over it");
  ExpectThrown(
      [&] {
        Graph cut = Model("layers=2,vocab=32", "");
        CompileGraph(cut, OverPp("param { match: '*.weight' shard_spec { dims: 0 axes: 'pp' } }"),
                     Mesh::Parse("pp=2"), {});
      },
      "E2122", "is cut over it");
}

// A mask is made where it is needed, a value travels once, and a scalar's user stays with the large
// operand.
TEST(PlaceStages, MovesWhatOthersMake) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4], %n: f32[]) -> (%y, %z) {
    %w = param "w" : f32[4]
    %m = exp %n : f32[]
    %a = mul %x, %w {stage=0} : f32[4]
    %b = mul %a, %m {stage=0} : f32[4]
    %c = mul %b, %m {stage=1} : f32[4]
    %y = mul %b, %c {stage=1} : f32[4]
    %t = reduce_sum %y {axes=[0], keepdims=false, stage=1} : f32[]
    %z = mul %a, %t : f32[4]
  })");
  PlaceStages(graph);
  CheckGraph(graph, R"(
    CHECK: = exp %n {stage=0}
    CHECK: %b = mul %a, %_ {stage=0}
    CHECK: send_recv %b {axes=["pp"], for="mul", from=0, to=1, why=["mul is on stage 0", "mul reads it on stage 1"], stage=1}
    CHECK: send_recv %t {axes=["pp"]
    CHECK: %z = mul %a, %_ {stage=0}
    CHECK-NOT: send_recv)");
  const StagePrograms set = EmitStages(graph);
  ASSERT_EQ(set.stages.size(), 2u);
  EXPECT_EQ(set.stages[0].states.size(), 1u);
  EXPECT_EQ(set.stages[1].states.size(), 0u);
  EXPECT_EQ(set.stages[0].inputs.size(), 2u);
  EXPECT_EQ(set.stages[1].inputs.size(), 1u);
  EXPECT_EQ(set.stages[0].outputs[0].name, "z");
  EXPECT_EQ(set.stages[1].outputs[0].name, "y");
  EXPECT_EQ(set.StageOf(1), 1u);
}

// By a model's own update a state is where it is read, or else on the first stage.
TEST(PlaceStages, StatesAreUpdatedWhereTheyAre) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4], %n: f32[4]) -> (%z) {
    %w = param "w" : f32[4]
    %v = param "v" : f32[4]
    %s = param "s" : f32[4]
    %y = mul %x, %w {stage=0} : f32[4]
    %z = mul %y, %v {stage=1} : f32[4]
    update "v" %n
    update "s" %z
  })");
  PlaceStages(graph);
  CheckGraph(graph, R"(
    CHECK-NOT: update "v" %n {stage=0}
    CHECK: update "v" %n {stage=1}
    CHECK: update "s" %_ {stage=0})");
  const StagePrograms set = EmitStages(graph);
  auto states = [&](size_t stage) {
    std::vector<std::string> names;
    for (const auto& state : set.stages[stage].states) names.push_back(state.name);
    return names;
  };
  EXPECT_THAT(states(0), ElementsAre("w", "s"));
  EXPECT_THAT(states(1), ElementsAre("v"));
}

TEST(PlaceStages, RefusesWhatWasPlaced) {
  ExpectThrown(
      [] {
        Graph graph = ParseAndVerify(R"(mesh [pp=2]
          pipeline pp
          graph @g(%x: f32[4]) -> (%b) {
          %a = exp %x {stage=0} : f32[4]
          %b = send_recv %a {axes=["pp"], from=0, to=1, stage=1} : f32[4]
        })");
        PlaceStages(graph);
      },
      "E2123", "placed already");
}

TEST(PlaceStages, RefusesStagesWithoutWork) {
  auto place = [](const std::string& ops) {
    Graph graph = ParseAndVerify(StrCat(R"(mesh [pp=2]
      pipeline pp
      graph @g(%x: f32[4, 4]) -> (%a, %b) {
      %v = param "v" : f32[4, 4]
      %w = param "w" : f32[4, 4]
)",
                                        ops, "}"));
    PlaceStages(graph);
  };
  ExpectThrown(
      [&] {
        place(R"(
      %a = matmul %x, %x {stage=0} : f32[4, 4]
      %b = matmul %a, %w {stage=1} : f32[4, 4]
)");
      },
      "E2125", "nothing is left for stage 0");
  ExpectThrown(
      [&] {
        place(R"(
      %a = matmul %x, %v {stage=0} : f32[4, 4]
      %b = matmul %x, %w {stage=1} : f32[4, 4]
)");
      },
      "E2125", "no stage needs");
}

// What is needed late is sent when it is made, and then received at once where the sender could
// otherwise not go on.
TEST(PlaceStages, NoStageWaitsForEver) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4, 4]) -> (%z) {
    %w = param "w" : f32[4, 4]
    %a = matmul %x, %w {stage=1} : f32[4, 4]
    %b = matmul %a, %w {stage=1} : f32[4, 4]
    %c = matmul %b, %w {stage=0} : f32[4, 4]
    %d = matmul %c, %b {stage=1} : f32[4, 4]
    %e = matmul %d, %w {stage=0} : f32[4, 4]
    %z = matmul %e, %a {stage=0} : f32[4, 4]
  })");
  PlaceStages(graph);
  CheckGraph(graph, R"(
    CHECK: %a = matmul
    CHECK-NEXT: send_recv %a
    CHECK-NEXT: %b = matmul
    CHECK-NEXT: send_recv %b
    CHECK: %z = matmul)");
}

// By the next message from the receiver, or from another stage that had one from it.
TEST(HeardBack, TellsWhenASendWasReceived) {
  Graph graph = ParseAndVerify(R"(mesh [pp=3]
    pipeline pp
    graph @g(%x: f32[4]) -> (%h, %i) {
    %a = exp %x {stage=0} : f32[4]
    %b = send_recv %a {axes=["pp"], from=0, to=1, stage=1} : f32[4]
    %c = send_recv %a {axes=["pp"], from=0, to=2, stage=2} : f32[4]
    %d = exp %b {stage=1} : f32[4]
    %e = send_recv %d {axes=["pp"], from=1, to=2, stage=2} : f32[4]
    %f = mul %c, %e {stage=2} : f32[4]
    %g = send_recv %f {axes=["pp"], from=2, to=0, stage=0} : f32[4]
    %h = exp %g {stage=0} : f32[4]
    %i = send_recv %h {axes=["pp"], from=0, to=1, stage=1} : f32[4]
  })");
  std::map<std::string, std::string> heard;
  for (const auto& [sent, tells] : HeardBack(graph)) {
    heard[sent->result()->name] = tells->result()->name;
  }
  const std::map<std::string, std::string> want = {{"b", "g"}, {"c", "g"}, {"e", "i"}};
  EXPECT_THAT(heard, want);
}

// The gradient is read as it is and in bf16: it travels once, and is cast where it arrives. What is
// only read in bf16 travels so.
TEST(MoveToReaders, CastsAreMadeWhereThatIsLess) {
  Graph graph = ParseAndVerify(R"(mesh [pp=2]
    pipeline pp
    graph @g(%x: f32[4, 4]) -> (%y, %z) {
    %w = param "w" : f32[4, 4]
    %a = matmul %x, %w {stage=1} : f32[4, 4]
    %b = matmul %a, %w {stage=1} : f32[4, 4]
    %c = cast %a {to="bf16", stage=1} : bf16[4, 4]
    %d = cast %b {to="bf16", stage=1} : bf16[4, 4]
    %y = matmul %c, %d {out="f32", stage=0} : f32[4, 4]
    %z = matmul %y, %a {stage=0} : f32[4, 4]
  })");
  MoveToReaders(graph);
  CheckGraph(graph, R"(
    CHECK: %c = cast %a {to="bf16", stage=0}
    CHECK: %d = cast %b {to="bf16", stage=1})");
}

// --- a whole model

struct Sent {
  int64_t forward = 0, backward = 0, optimizer = 0;  // values of more than one element
  bool operator==(const Sent&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Sent& s) {
  return out << s.forward << ", " << s.backward << ", " << s.optimizer;
}

struct Compiled {
  Graph graph;
  StagePrograms set;

  // Over the border between two stages, both ways.
  Sent Between(int a, int b) const {
    Sent sent;
    for (const auto& op : graph.ops()) {
      if (op->name() != "send_recv" || op->out().num_elements() < 2) continue;
      const auto from = static_cast<int>(op->attrs.Int("from")), to = op->stage;
      if (std::minmax(from, to) != std::minmax(a, b)) continue;
      ++(op->phase == Phase::kForward    ? sent.forward
         : op->phase == Phase::kBackward ? sent.backward
                                         : sent.optimizer);
    }
    return sent;
  }

  int64_t WeightBytes(size_t stage) const {
    int64_t bytes = 0;
    for (const NamedBuffer& s : set.stages[stage].states) {
      if (graph.FindState(s.name)->name() == "param") {
        bytes += set.stages[stage].buffers[s.buffer].bytes;
      }
    }
    return bytes;
  }
};

Compiled CompileFor(const std::string& form, const std::string& mesh, PipelineOptions options,
                    int microbatches = 1, int virtual_stages = 1) {
  Compiled c{Model(form, ""), {}};
  options.optimizer.kind = "adamw";
  options.optimizer.clip_norm = 1;
  options.verify_each = true;
  Spec spec = LoadSpec("megatron");
  spec.microbatches.count = microbatches;
  spec.pipeline.virtual_stages = virtual_stages;
  CompileGraph(c.graph, spec, Mesh::Parse(mesh), options);
  c.set = EmitStages(c.graph);
  return c;
}

TEST(Stages, WhatTravels) {
  for (const char* more : {"none", "full", "bf16"}) {
    PipelineOptions options;
    options.recompute = more == std::string("full") ? "full" : "none";
    options.precision.compute = more == std::string("bf16") ? "bf16" : "f32";
    for (const char* mesh : {"pp=4", "pp=4,tp=2", "pp=4,dp=2"}) {
      for (int n : {1, 2}) {
        SCOPED_TRACE(StrCat(more, " ", mesh, ", ", n, " microbatches"));
        const Compiled untied = CompileFor("layers=4,vocab=32,tied=false", mesh, options, n);
        for (int s = 0; s < 3; ++s) EXPECT_EQ(untied.Between(s, s + 1), (Sent{n, n, 0}));
        for (auto [a, b] : {std::pair(0, 2), {0, 3}, {1, 3}}) {
          EXPECT_EQ(untied.Between(a, b), Sent());
        }
        // The table's gradient to the first stage, and back what the step makes of it.
        const Compiled tied = CompileFor("layers=4,vocab=32", mesh, options, n);
        for (int s = 0; s < 3; ++s) EXPECT_EQ(tied.Between(s, s + 1), (Sent{n, n, 0}));
        EXPECT_EQ(tied.Between(0, 3), (Sent{0, 1, 1}));
      }
    }
  }
}

// Each border between runs of layers is crossed as those of stages are; a tied table is on the same
// two stages.
TEST(Stages, WhatTravelsBetweenVirtualStages) {
  for (const char* recompute : {"none", "full"}) {
    for (int n : {1, 2, 4}) {
      SCOPED_TRACE(StrCat(recompute, ", ", n, " microbatches"));
      PipelineOptions options;
      options.recompute = recompute;
      const Compiled untied =
          CompileFor("layers=6,vocab=32,tied=false", "pp=3,tp=2", options, n, 2);
      EXPECT_EQ(untied.Between(0, 1), (Sent{2 * n, 2 * n, 0}));
      EXPECT_EQ(untied.Between(1, 2), (Sent{2 * n, 2 * n, 0}));
      EXPECT_EQ(untied.Between(0, 2), (Sent{n, n, 0}));
      const Compiled tied = CompileFor("layers=6,vocab=32", "pp=3,tp=2", options, n, 2);
      EXPECT_EQ(tied.Between(0, 1), (Sent{2 * n, 2 * n, 0}));
      EXPECT_EQ(tied.Between(0, 2), (Sent{n, n + 1, 1}));
    }
  }
}

// Rotary tables and masks are made by each stage for itself.
TEST(Stages, TablesDoNotTravel) {
  const Compiled c =
      CompileFor("layers=4,vocab=32,tied=false,positions=rope,norm=rms_norm,activation=swiglu",
                 "pp=2,tp=2", {});
  EXPECT_EQ(c.Between(0, 1), (Sent{1, 1, 0}));
}

TEST(Stages, EachHoldsItsOwn) {
  const Compiled one = CompileFor("layers=8,vocab=32,tied=false", "", {});
  const Compiled four = CompileFor("layers=8,vocab=32,tied=false", "pp=4", {});
  int64_t sum = 0;
  for (size_t s = 0; s < 4; ++s) {
    sum += four.WeightBytes(s);
    EXPECT_LT(four.WeightBytes(s), one.WeightBytes(0) / 3);
    EXPECT_LT(four.set.stages[s].arena_bytes, one.set.stages[0].arena_bytes / 2);
  }
  EXPECT_EQ(sum, one.WeightBytes(0));
}

}  // namespace
}  // namespace shardc::testing
