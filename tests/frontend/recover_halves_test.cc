// Weights in half precision of models that compute in a wider type, and the reverse.
#include "tests/frontend/recover_testing.h"

namespace shardc::recover_testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

HostTensor Rounded(const HostTensor& t, DType to, bool transposed = false) {
  Shape shape = t.shape();
  if (transposed) std::swap(shape[0], shape[1]);
  HostTensor out(to, shape);
  const int64_t columns = t.shape().back(), rows = t.num_elements() / columns;
  for (int64_t i = 0; i < t.num_elements(); ++i)
    out.SetDouble(transposed ? i % columns * rows + i / columns : i, t.AsDouble(i));
  return out;
}

HostTensor Half(const std::string& name, const Shape& shape) {
  return Rounded(Random(name, shape), DType::kF16);
}

const Op* ParamOf(const Graph& g, std::string_view name) {
  for (const Op* param : g.Params()) {
    if (param->attrs.String("name") == name) return param;
  }
  return nullptr;
}

// One cast for two users, a cast for each, pieces and rows before the cast: the table is tied, and
// q, k and v have their roles, as in a model whose file has them wide.
TEST(WideReaders, HalvesBecomeWhatIsReadOfThem) {
  Graph g = Recover([](TestGraph& b) {
    Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 4}, {0, 3, 6, 1, 2, 2, 5, 4}));
    Value* table = b.P("wte", Half("wte", {7, 6}));
    Value* head = b.P("head", Rounded(Half("wte", {7, 6}), DType::kF16, true));
    Value* x = b.Cast(b.Make("gather", {table, ids}, {{"axis", int64_t{0}}}), DType::kF64);
    Value* qkv = b.P("qkv", Half("qkv", {6, 18}));
    std::vector<Value*> parts;
    for (int64_t i = 0; i < 3; ++i) {
      Value* part = b.Cast(b.Slice(qkv, {0, 6 * i}, {6, 6 * i + 6}), DType::kF64);
      parts.push_back(b.Matmul(x, part));
    }
    Value* p = b.Softmax(b.Matmul(parts[0], b.Transpose(parts[1], {0, 2, 1})));
    Value* o = b.P("o", Half("o", {6, 6}));
    x = b.Add(x, b.Matmul(b.Matmul(p, parts[2]), b.Cast(o, DType::kF64)));
    b.Out(b.Matmul(x, b.Cast(head, DType::kF64)));
    b.Out(b.Cast(o, DType::kF64), "o");
  });
  EXPECT_EQ(Counts(g)["cast"], 0);
  for (const Op* param : g.Params()) EXPECT_EQ(param->out().dtype, DType::kF64);
  EXPECT_EQ(g.Params().size(), 3u);
  EXPECT_EQ(ParamOf(g, "wte")->attrs.String("role"), "TOKEN_EMBEDDING");
  EXPECT_EQ(ParamOf(g, "qkv")->attrs.String("role"), "QKV");
  EXPECT_EQ(ParamOf(g, "o")->attrs.String("role"), "ATTENTION_OUT");
  EXPECT_THAT(g.notes, ElementsAre(HasSubstr("4 parameters are f16 in the file and read in f64"),
                                   HasSubstr("'head'")));
}

// What is computed with as it is stays as it is: also when a cast reads it too, or casts differ.
TEST(WideReaders, HalvesThatAreComputedWithStay) {
  const std::function<void(TestGraph&, Value*)> readers[] = {
      [](TestGraph& b, Value* w) {
        Value* x = b.In("x", Half("x", {2, 3}));
        b.Out(b.Add(b.Cast(b.Matmul(x, w), DType::kF64),
                    b.Slice(b.Cast(w, DType::kF64), {0, 0}, {2, 3})));
      },
      [](TestGraph& b, Value* w) {
        b.Out(b.Cast(w, DType::kF64));
        b.Out(b.Cast(w, DType::kF32), "z");
      },
      [](TestGraph& b, Value* w) {
        b.Out(b.Cast(w, DType::kF64));
        b.Out(w, "z");
      },
      [](TestGraph& b, Value* w) { b.Out(b.Cast(w, DType::kBF16)); },
  };
  for (const auto& reads : readers) {
    Graph g = Recover([&](TestGraph& b) { reads(b, b.P("w", Half("w", {3, 3}))); }, 1e-2);
    EXPECT_EQ(g.Params()[0]->out().dtype, DType::kF16);
    EXPECT_THAT(g.notes, ElementsAre());
  }
}

// Autocast: the head is a rounded copy, which is made of the table again; not of another table.
TEST(RoundedTies, ARoundedCopyOfTheTableIsTied) {
  for (bool transposed : {true, false}) {
    for (bool other : {false, true}) {
      SCOPED_TRACE(StrCat(transposed, " ", other));
      Graph g = Recover([&](TestGraph& b) {
        HostTensor head = Rounded(Random("wte", {7, 3}), DType::kBF16, transposed);
        if (other) head.SetDouble(20, head.AsDouble(20) * 1.01);
        Value* w = b.P("head", head);
        Value* ids = b.In("ids", HostTensor::Of<int64_t>({2, 2}, {0, 3, 6, 1}));
        Value* x = b.Make("gather", {b.P("wte", {7, 3}), ids}, {{"axis", int64_t{0}}});
        x = b.Cast(x, DType::kBF16);
        b.Out(transposed ? b.Matmul(x, w) : b.Make("matmul_nt", {x, w}));
      });
      ASSERT_EQ(g.Params().size(), other ? 2u : 1u);
      if (other) continue;
      EXPECT_EQ(g.Params()[0]->attrs.String("name"), "wte");
      EXPECT_EQ(g.Params()[0]->out().dtype, DType::kF64);
      // No name of the table: a file's tensor of that name is another.
      EXPECT_FALSE(g.Params()[0]->attrs.Has("aliases"));
      EXPECT_THAT(g.notes, ElementsAre(HasSubstr("'head' is 'wte' rounded to bf16")));
      EXPECT_FALSE(g.sources.contains("head"));
    }
  }
}

TEST(WideReaders, EachTypeHasItsNote) {
  Graph g = Recover([](TestGraph& b) {
    Value* x = b.In("x", {2, 6});
    for (DType type : {DType::kF16, DType::kBF16}) {
      const std::string name(DTypeName(type));
      x = b.Matmul(x, b.Cast(b.P(name, Rounded(Random(name, {6, 6}), type)), DType::kF64));
    }
    b.Out(x);
  });
  EXPECT_THAT(g.notes, ::testing::UnorderedElementsAre(
                           HasSubstr("1 parameter is f16 in the file and read in f64"),
                           HasSubstr("1 parameter is bf16 in the file and read in f64")));
}

}  // namespace
}  // namespace shardc::recover_testing
