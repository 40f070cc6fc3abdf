// Ties, and vectors that exporters merged.
#include "ir/convert.h"
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void TiedModel(TestGraph& b, const HostTensor& head, bool transposed) {
  Value* w = b.P("head", head);  // before the table, whose name wins all the same
  Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 2}, {0, 3, 6, 1}));
  Value* x = b.Make("gather", {b.P("wte", {7, 3}), ids}, {{"axis", int64_t{0}}});
  b.Out(transposed ? b.Matmul(x, w) : b.Make("matmul_nt", {x, w}));
}

TEST(Ties, ATransposedOrPlainCopyOfTheTableIsTheTable) {
  for (bool transposed : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor table = Random("wte", {7, 3});
      TiedModel(b, transposed ? Transposed(table) : table, transposed);
    });
    EXPECT_THAT(Ops(g), ElementsAre("embedding", "matmul_nt"));
    ASSERT_EQ(g.Params().size(), 1u);
    EXPECT_EQ(g.Params()[0]->attrs.String("name"), "wte");
    EXPECT_THAT(g.Params()[0]->attrs.StringList("aliases"), ElementsAre("head"));
    EXPECT_EQ(g.Params()[0]->attrs.Has("transposed_aliases"), transposed);
    EXPECT_EQ(g.Params()[0]->attrs.String("role"), "TOKEN_EMBEDDING");
    EXPECT_THAT(g.notes, ElementsAre(HasSubstr("'head'")));
    EXPECT_FALSE(g.sources.contains("head"));
  }
}

// A name of the copy means what the copy holds; of what an exporter made it of nobody can say.
TEST(Ties, NamesOfTheCopyStayWhatTheyAre) {
  for (bool transposed : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor table = Random("wte", {7, 3});
      TiedModel(b, transposed ? Transposed(table) : table, transposed);
      Op* head = b.graph().Params()[0];
      ASSERT_EQ(head->attrs.String("name"), "head");
      head->attrs.Set("aliases", Strings{"same", "head.weight"});
      head->attrs.Set("source_aliases", Strings{"head.weight"});
    });
    const Attributes& attrs = g.Params()[0]->attrs;
    EXPECT_THAT(attrs.StringList("aliases"), ElementsAre("head", "same", "head.weight"));
    EXPECT_THAT(attrs.StringList("source_aliases"), ElementsAre("head.weight"));
    ASSERT_EQ(attrs.Has("transposed_aliases"), transposed);
    if (!transposed) continue;
    EXPECT_THAT(attrs.StringList("transposed_aliases"), ElementsAre("head", "same"));
  }
}

// The transpose of the transpose is what the table is.
TEST(Ties, NamesOfWhatTheCopyIsTheTransposeOf) {
  for (bool transposed : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor table = Random("wte", {7, 3});
      TiedModel(b, transposed ? Transposed(table) : table, transposed);
      Op* head = b.graph().Params()[0];
      head->attrs.Set("aliases", Strings{"head.weight"});
      head->attrs.Set("source_aliases", Strings{"head.weight"});
      head->attrs.Set("transpose_of", std::string("head.weight"));
    });
    const Attributes& attrs = g.Params()[0]->attrs;
    EXPECT_THAT(attrs.StringList("aliases"), ElementsAre("head", "head.weight"));
    EXPECT_EQ(attrs.Has("transpose_of"), false);
    EXPECT_EQ(attrs.StringList("source_aliases", {}),
              transposed ? Strings{} : Strings{"head.weight"});
    EXPECT_EQ(attrs.StringList("transposed_aliases", {}), transposed ? Strings{"head"} : Strings{});
  }
}

TEST(Ties, OneDifferentElementIsNoTie) {
  for (bool transposed : {true, false}) {
    Graph g = Recover([&](TestGraph& b) {
      HostTensor table = Random("wte", {7, 3});
      table.SetDouble(20, table.AsDouble(20) + 1e-9);
      TiedModel(b, transposed ? Transposed(table) : table, transposed);
    });
    EXPECT_EQ(g.Params().size(), 2u);
  }
}

// Two identity matrices are what many modules begin with.
TEST(Ties, IdentityMatricesAreNoTie) {
  HostTensor identity(DType::kF64, {3, 3});
  for (int64_t i = 0; i < 3; ++i) identity.SetDouble(i * 4, 1);
  for (bool others : {false, true}) {
    if (others) identity.SetDouble(8, 2);
    Graph g = Recover([&](TestGraph& b) {
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 2}, {0, 2, 2, 1}));
      Value* x = b.Make("gather", {b.P("wte", identity), ids}, {{"axis", int64_t{0}}});
      b.Out(b.Matmul(x, b.P("head", identity)));
    });
    EXPECT_EQ(g.Params().size(), others ? 1u : 2u);
  }
}

TEST(SharedVectors, BecomeOneParameterPerSite) {
  Graph g = Recover([](TestGraph& b) {
    Value* w = b.P("w", HostTensor::Of<double>({6}, {1, 1, 1, 1, 1, 1}));
    Value *x = b.In("x", {4, 6}), *m = b.P("m", {6, 6});
    b.site = "h.0.norm";
    x = b.Create("rms_norm", {x, w}, {{"eps", 1e-5}})->result();
    b.site = "h.1.norm";
    x = b.Create("rms_norm", {b.Matmul(b.Matmul(x, m), m), w}, {{"eps", 1e-5}})->result();
    b.site = "";
    b.Out(b.Add(x, w));
  });
  std::vector<std::string> names;
  for (Op* p : g.Params()) {
    names.push_back(p->attrs.String("name") + " " + p->attrs.String("role", ""));
    EXPECT_TRUE(g.sources.contains(p->attrs.String("name")));
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("w NORM", "w@h.1.norm NORM", "w@2 ", "m "));
  EXPECT_THAT(g.notes, ElementsAre("vector 'w' is used at 3 sites, and each has a parameter of its "
                                   "own with these values, one of them 'w@h.1.norm'"));
}

// Parameters that the exporter merged because they were equal are equal fills.
TEST(SharedVectors, AreOneIfTheirElementsDiffer) {
  Graph g = Recover([](TestGraph& b) {
    Value *u = b.P("u", HostTensor::Of<double>({3}, {1, 1, 2})), *x = b.In("x", {4, 3});
    for (const char* site : {"h.0", "h.0", "h.1"}) {
      b.site = site;
      x = b.Make("mul", {b.Add(x, u), x});
    }
    b.Out(x);
  });
  ASSERT_EQ(g.Params().size(), 1u);
  EXPECT_EQ(g.Params()[0]->result()->users.size(), 3u);
  EXPECT_THAT(g.notes, ElementsAre(HasSubstr("read at 3 places")));
}

// An exporter makes one matrix of LoRA's zeros; which it was of, nothing says.
TEST(SharedVectors, AMatrixOfOneValueIsNoted) {
  for (const bool fill : {true, false}) {
    TestGraph b;
    HostTensor data(DType::kF32, {4, 4});
    if (!fill) data.SetDouble(5, 1);
    b.g.sources["w"] = std::make_shared<DataSource>(data);
    Value* w = b.Param("w", DType::kF32, {4, 4});
    Value* x = b.g.AddInput("x", TensorType(DType::kF32, {2, 4}));
    for (const char* site : {"a", "b"}) {
      x = b.Matmul(x, w);
      x->producer->site = site;
    }
    b.Out(x, "y");
    RecoverPatterns(b.g);
    EXPECT_EQ(b.g.Params().size(), 1u);
    EXPECT_EQ(b.g.notes.size(), fill ? 1u : 0u);
  }
}

TEST(SharedVectors, GetTheirLostNamesBack) {
  Graph g = Recover([](TestGraph& b) {
    Value *w = b.P("h.0.norm.weight", {6}), *x = b.In("x", {4, 6});
    w->producer->attrs.Set("aliases", Strings{"h.1.norm.weight", "norm.weight"});
    for (int i = 0; i < 3; ++i) x = b.Create("rms_norm", {x, w}, {{"eps", 1e-5}})->result();
    b.Out(x);
  });
  std::vector<std::string> names;
  for (Op* p : g.Params()) {
    names.push_back(p->attrs.String("name"));
    EXPECT_FALSE(p->attrs.Has("aliases"));
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("h.0.norm.weight", "h.1.norm.weight", "norm.weight"));
}

// The name that was kept is that of the first parameter, which may be read last.
TEST(SharedVectors, AreCalledAsInTheModuleThatReadsThem) {
  Graph g = Recover([](TestGraph& b) {
    Value *w = b.P("scale", HostTensor(DType::kF64, {6})), *x = b.In("x", {4, 6});
    w->producer->attrs.Set("aliases", Strings{"h.1.bias", "h.0.bias"});
    for (const char* site : {"h.0", "h.1", "/Mul"}) {
      Op* mul = b.Create("mul", {x, w}, {});
      mul->site = site;
      x = mul->result();
    }
    b.Out(x);
  });
  std::vector<std::string> read;
  for (const auto& op : g.ops()) {
    if (op->name() == "mul") {
      read.push_back(op->site + " " + op->operands[1]->producer->attrs.String("name"));
    }
  }
  EXPECT_THAT(read, ElementsAre("h.0 h.0.bias", "h.1 h.1.bias", "/Mul scale"));
}

// OPTForCausalLM runs its model's decoder, and TorchScript knows no "model.".
TEST(SharedVectors, AreCalledAsInTheModuleWhoseOuterOneIsNotCalled) {
  Graph g = Recover([](TestGraph& b) {
    Value *w = b.P("model.last.bias", HostTensor(DType::kF64, {6})), *x = b.In("x", {4, 6});
    w->producer->attrs.Set("aliases", Strings{"model.h.1.bias", "model.h.0.bias", "h.0.up.bias"});
    for (const char* site : {"h.0", "h.0.up", "h.1", "last"}) {
      b.site = site;
      x = b.Mul(x, w);
    }
    b.Out(x);
  });
  std::vector<std::string> read;
  for (const auto& op : g.ops()) {
    if (op->name() == "mul") read.push_back(op->operands[1]->producer->attrs.String("name"));
  }
  EXPECT_THAT(read,
              ElementsAre("model.h.0.bias", "h.0.up.bias", "model.h.1.bias", "model.last.bias"));
}

// One norm for q and k is one parameter, whose gradient is the sum of both.
TEST(SharedVectors, AreOneWhereAModuleIsCalledTwice) {
  Graph g = Recover([](TestGraph& b) {
    Value* w = b.P("h.0.norm.weight", HostTensor::Of<double>({6}, {1, 1, 1, 1, 1, 1}));
    Value* x = b.In("x", {4, 6});
    for (const char* site : {"h.0.norm", "h.0.norm", "h.1.norm", "h.1.norm", "", ""}) {
      b.site = site;
      x = b.Create("rms_norm", {x, w}, {{"eps", 1e-5}})->result();
    }
    b.Out(x);
  });
  std::vector<std::string> uses;
  for (Op* p : g.Params()) {
    uses.push_back(StrCat(p->attrs.String("name"), " ", p->result()->users.size()));
  }
  EXPECT_THAT(uses,
              ::testing::UnorderedElementsAre("h.0.norm.weight 2", "h.0.norm.weight@h.1.norm 2",
                                              "h.0.norm.weight@2 1", "h.0.norm.weight@3 1"));
}

// As TorchScript writes it. A module may have such a name itself.
TEST(SharedVectors, AreOneWhereTorchScriptCountsTheCalls) {
  for (bool own : {false, true}) {
    Graph g = Recover([&](TestGraph& b) {
      Value *w = b.P("h.0.norm.weight", HostTensor::Of<double>({3}, {1, 1, 1})),
            *x = b.In("x", {4, 3});
      Strings lost = {"h.1.norm.weight"};
      if (own) lost.insert(lost.begin(), "h.0.norm_1.weight");
      w->producer->attrs.Set("aliases", lost);
      for (const char* site : {"h.0.norm", "h.0.norm_1", "h.1.norm", "h.1.norm_1"}) {
        b.site = site;
        x = b.Create("rms_norm", {x, w}, {{"eps", 1e-5}})->result();
      }
      b.Out(x);
    });
    std::map<std::string, size_t> uses;
    for (Op* p : g.Params()) uses[p->attrs.String("name")] = p->result()->users.size();
    std::map<std::string, size_t> expected = {{"h.0.norm.weight", 2}, {"h.1.norm.weight", 2}};
    if (own) expected = {{"h.0.norm.weight", 1}, {"h.0.norm_1.weight", 1}, {"h.1.norm.weight", 2}};
    EXPECT_EQ(uses, expected);
  }
}

}  // namespace
}  // namespace shardc::recover_testing
