// Roles of tables: vocabularies, positions, and those that are neither.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

// Keras' Embedding: an index that counts from the end where it is negative.
TEST(RolesOfTables, ATableMayBeReadFromItsEnd) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, -1, 1}));
    auto number = [&](int64_t n) { return b.Constant(HostTensor::Of<int64_t>({}, {n})); };
    Value* index = b.Make("where", {b.Make("less", {ids, number(0)}), b.Add(ids, number(7)), ids});
    b.Out(b.Make("gather", {b.P("wte", {7, 4}), index}, {{"axis", int64_t{0}}}));
  });
  EXPECT_EQ(RolesOf(g).at("wte"), "TOKEN_EMBEDDING");
}

// An encoder and a decoder, each with a vocabulary of its own; what the decoder reads are the
// labels moved on by one place. Segments and positions, maybe behind a projection, are no
// vocabulary.
TEST(RolesOfTables, ADecoderMayHaveAVocabularyOfItsOwn) {
  for (bool projected : {false, true}) {
    SCOPED_TRACE(projected ? "projected" : "plain");
    Graph g = Recover([&](TestGraph& b) {
      auto ids = [](std::vector<int64_t> at) { return HostTensor::Of<int64_t>({1, 4}, at); };
      auto look_up = [&](const std::string& table, int64_t rows, Value* at) {
        return b.Make("gather", {b.P(table, {rows, 4}), at}, {{"axis", int64_t{0}}});
      };
      Value* labels = b.In("labels", ids({4, 2, 6, 1}));
      Value* kept = b.Make("slice", {labels},
                           {{"starts", Ints{0, 0}}, {"limits", Ints{1, 3}}, {"steps", Ints{1, 1}}});
      Value* start = b.Constant(HostTensor::Of<int64_t>({1, 1}, {0}));
      Value* shifted = b.Make("concat", {start, kept}, {{"axis", int64_t{1}}});
      Value* y = look_up("target", 7, shifted);
      if (projected) y = b.Matmul(y, b.P("project", {4, 4}));
      Value* segments = look_up("segments", 3, b.In("types", ids({0, 1, 2, 0})));
      y = b.Add(b.Add(segments, look_up("positions", 5, b.In("at", ids({0, 1, 2, 3})))), y);
      Value* memory = look_up("source", 9, b.In("source_ids", ids({8, 3, 5, 1})));
      y = b.Add(y, b.Mul(b.Matmul(y, b.P("query", {4, 4})), memory));
      b.Out(b.Matmul(y, b.P("head", {4, 7})));
    });
    auto roles = RolesOf(g);
    EXPECT_EQ(roles.at("source"), "TOKEN_EMBEDDING");
    EXPECT_EQ(roles.at("target"), "TOKEN_EMBEDDING");
    EXPECT_NE(roles.at("segments"), "TOKEN_EMBEDDING");
    EXPECT_NE(roles.at("positions"), "TOKEN_EMBEDDING");
    EXPECT_EQ(roles.at("head"), "LM_HEAD");
  }
}

// What a lookup does not train keeps its mark, and is no slice of which it would be a part.
TEST(RolesOfTables, TheRowOfPaddingStaysUntrained) {
  auto of = [](int64_t padding, int64_t first) {
    return Recover([=](TestGraph& b) {
      Value* at = b.Constant(HostTensor::Of<int64_t>({1, 3}, {first, first + 1, first + 2}));
      Value* rows = b.Make("gather", {b.P("wpe", {7, 4}), at},
                           {{"axis", int64_t{0}}, {"padding_idx", padding}});
      Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 3}, {4, 2, 6, 1, 0, 3}));
      Value* x = b.Make("gather", {b.P("wte", {9, 4}), ids},
                        {{"axis", int64_t{0}}, {"padding_idx", padding}});
      b.Out(b.Add(x, rows));
    });
  };
  const Graph outside = of(1, 2), inside = of(1, 0);
  EXPECT_NE(Find(outside, "slice"), nullptr);
  EXPECT_EQ(Find(inside, "slice"), nullptr);
  EXPECT_EQ(Counts(inside)["embedding"], 2);
  for (const Graph* g : {&outside, &inside}) {
    for (const auto& op : g->ops()) {
      if (op->name() != "embedding") continue;
      EXPECT_EQ(op->attrs.Int("padding_idx", -1), 1);
    }
  }
}

// Nor is it part of what is taken of each stretch of the table.
TEST(RolesOfTables, TheRowOfPaddingIsNoPartOfStretches) {
  for (const int64_t padding : {2, 4}) {
    const Graph g = Recover([&](TestGraph& b) {
      Value* at = b.Constant(HostTensor::Of<int64_t>({4}, {0, 1, 4, 5}));
      b.Out(b.Make("gather", {b.P("wpe", {8, 4}), at},
                   {{"axis", int64_t{0}}, {"padding_idx", padding}}));
    });
    EXPECT_EQ(Counts(g)["embedding"], padding == 4 ? 1 : 0);
  }
}

// A recommender's tables of features stand side by side, and a table of domains, whose rows
// examples have and not tokens, is behind a projection: of a few rows each, they are no
// vocabularies.
TEST(RolesOfTables, TablesOfFeaturesAndOfDomainsAreNoVocabularies) {
  for (const std::string joined : {"features", "product", "projected"}) {
    SCOPED_TRACE(joined);
    Graph g = Recover([&](TestGraph& b) {
      auto look_up = [&](const std::string& table, int64_t rows, const HostTensor& at) {
        return b.Make("gather", {b.P(table, {rows, 4}), b.In(table + "_ids", at)},
                      {{"axis", int64_t{0}}});
      };
      Value* items = look_up("items", 9, HostTensor::Of<int64_t>({1, 4}, {8, 3, 5, 1}));
      const auto few = joined == "projected" ? HostTensor::Of<int64_t>({1}, {1})
                                             : HostTensor::Of<int64_t>({1, 4}, {0, 1, 1, 0});
      Value* x = look_up("few", 2, few);
      if (joined == "features") {
        b.Out(b.Make("concat", {x, items}, {{"axis", int64_t{2}}}));
        return;
      }
      if (joined == "projected") x = b.Op1("tanh", b.Matmul(x, b.P("project", {4, 4})));
      b.Out(b.Mul(x, items));
    });
    EXPECT_EQ(RolesOf(g).at("items"), "TOKEN_EMBEDDING");
    EXPECT_NE(RolesOf(g).at("few"), "TOKEN_EMBEDDING");
  }
}

// Of two tables whose tokens stand one behind the other, as of an image and of text, each is one.
TEST(RolesOfTables, TokensOfTwoVocabulariesInOneSequence) {
  Graph g = Recover([&](TestGraph& b) {
    std::vector<Value*> tokens;
    for (const std::string table : {"text", "image"}) {
      Value* ids = b.In(table + "_ids", HostTensor::Of<int64_t>({1, 2}, {0, 3}));
      tokens.push_back(b.Make("gather", {b.P(table, {7, 4}), ids}, {{"axis", int64_t{0}}}));
    }
    b.Out(b.Make("concat", tokens, {{"axis", int64_t{1}}}));
  });
  EXPECT_EQ(RolesOf(g).at("text"), "TOKEN_EMBEDDING");
  EXPECT_EQ(RolesOf(g).at("image"), "TOKEN_EMBEDDING");
}

// Value embeddings, which are looked up first and added to what attention reads, are no tokens.
TEST(RolesOfTables, OfOneSizeTheOneThatOthersAreAddedTo) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
    Value* added = b.Make("gather", {b.P("value_embeds", {7, 4}), ids}, {{"axis", int64_t{0}}});
    Value* x = b.Make("gather", {b.P("wte", {7, 4}), ids}, {{"axis", int64_t{0}}});
    Value* v = b.Matmul(b.Make("tanh", {x}), b.P("v", {4, 4}));
    b.Out(b.Add(x, b.Add(v, b.Mul(added, b.P("lambda", {1})))));
  });
  EXPECT_EQ(RolesOf(g).at("wte"), "TOKEN_EMBEDDING");
  EXPECT_NE(RolesOf(g).at("value_embeds"), "TOKEN_EMBEDDING");
}

// x-transformers': rows of positions are multiplied by a number.
TEST(RolesOfTables, PositionsMayBeScaled) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
    Value* x = b.Make("gather", {b.P("wte", {7, 4}), ids}, {{"axis", int64_t{0}}});
    b.Out(b.Add(x, b.Mul(b.Slice(b.P("wpe", {6, 4}), {0, 0}, {4, 4}), b.C(0.5))));
  });
  EXPECT_EQ(RolesOf(g).at("wpe"), "POSITION_EMBEDDING");
}

// As exporters of hashed n-grams have them, however many ops there are.
TEST(RolesOfTables, AnIndexMayBeComputedByManySteps) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({1, 4}, {0, 3, 6, 1}));
    auto number = [&](int64_t n) { return b.Constant(HostTensor::Of<int64_t>({}, {n})); };
    Value* index = ids;
    for (int64_t i = 0; i < 40; ++i) {
      index = b.Make("mod", {b.Add(b.Mul(index, number(3)), index), number(7)});
    }
    b.Out(b.Make("gather", {b.P("wte", {7, 4}), index}, {{"axis", int64_t{0}}}));
  });
  EXPECT_EQ(RolesOf(g).at("wte"), "TOKEN_EMBEDDING");
}

}  // namespace
}  // namespace shardc::recover_testing
