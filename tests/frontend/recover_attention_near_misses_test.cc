// What is an attention but for one thing: it computes something else, and must go on doing so.
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

const Shape kHeadsShape = {kB, kHeads, kS, kD};

Value* Scores(TestGraph& b) {
  return b.Mul(b.Make("matmul_nt", {b.In("q", kHeadsShape), b.In("k", kHeadsShape)}), b.C(0.4));
}
Value* Times(TestGraph& b, Value* p) { return b.Matmul(p, b.In("v", kHeadsShape)); }

HostTensor Kept(const Shape& shape, int64_t by) {
  return Mask(shape, DType::kBool, 1, 0, [by](int64_t i, int64_t j) { return (i + j) % by != 0; });
}

Graph Computes(const std::function<Value*(TestGraph&)>& build) {
  return Recover([&](TestGraph& b) { b.Out(build(b)); });
}

// The second query sees no key.
HostTensor KeptButForOneRow(const Shape& shape) {
  return Mask(shape, DType::kBool, 1, 0,
              [](int64_t i, int64_t j) { return i != 1 && (i + j) % 3 != 0; });
}

// Rows that see no key become zeros by another condition than that.
TEST(AttentionNearMisses, OfGuards) {
  enum Form { kAnyHidden, kOfColumns, kOfAllRows, kOfOther, kOtherNumber };
  for (Form form : {kAnyHidden, kOfColumns, kOfAllRows, kOfOther, kOtherNumber}) {
    SCOPED_TRACE(form);
    Computes([form](TestGraph& b) {
      Value* keep = b.In("keep", KeptButForOneRow({kB, 1, kS, kS}));
      Value* scores = b.Where(keep, Scores(b), b.C(-kInf));
      Value* of = scores;
      if (form == kOfOther)
        of = b.Where(b.In("other", Kept({kB, kHeads, kS, kS}, 1)), of, b.C(-kInf));
      Value* hidden = b.Make("equal", {of, b.C(form == kOtherNumber ? -1e4 : -kInf)});
      if (form == kOtherNumber) hidden = b.Op1("not", hidden);
      const Ints axes = form == kOfColumns ? Ints{2} : form == kOfAllRows ? Ints{2, 3} : Ints{3};
      Value* found =
          b.Make(form == kAnyHidden ? "reduce_min" : "reduce_max",
                 {b.Cast(b.Op1("not", hidden), DType::kI64)}, {{"axes", axes}, {"keepdims", true}});
      return Times(b, b.Where(b.Cast(found, DType::kBool), b.Softmax(scores), b.C(0)));
    });
  }
}

TEST(AttentionNearMisses, OfGuardsByOtherProbabilities) {
  Computes([](TestGraph& b) {
    HostTensor numbers(DType::kF64, {kB, kHeads, kS, kS});
    numbers.SetDouble(7, std::numeric_limits<double>::quiet_NaN());
    Value* is_nan = b.Op1("is_nan", b.In("other", numbers));
    Value* keep = b.In("keep", KeptButForOneRow({kB, 1, kS, kS}));
    Value* p = b.Softmax(b.Where(keep, Scores(b), b.C(-kInf)));
    return Times(b, b.Where(is_nan, b.C(0), p));
  });
}

// Probabilities are masked again, by something else.
TEST(AttentionNearMisses, OfMasksBehindTheSoftmax) {
  enum Form { kComputed, kOpposite, kConstants, kRows };
  for (Form form : {kComputed, kOpposite, kConstants, kRows}) {
    SCOPED_TRACE(form);
    Computes([form](TestGraph& b) {
      const Shape shape = {kS, kS};
      const bool constants = form == kConstants || form == kRows;
      Value *keep, *again;
      if (constants) {
        keep = b.Constant(Kept(shape, 3));
        again = b.Constant(Kept(form == kRows ? Shape{1, kS} : shape, form == kRows ? 3 : 4));
      } else {
        keep = b.In("keep", Kept(shape, 3));
        again = form == kOpposite ? keep : b.In("again", Kept(shape, 4));
      }
      Value* p = b.Softmax(b.Where(keep, Scores(b), b.C(-1e9)));
      return Times(b, form == kOpposite ? b.Where(again, b.C(0), p) : b.Where(again, p, b.C(0)));
    });
  }
}

// Replaced scores are raised again, to zero, by the same mask: what they were is gone.
TEST(AttentionNearMisses, OfMasksThatAreTakenOff) {
  for (bool computed : {false, true}) {
    SCOPED_TRACE(computed);
    Computes([computed](TestGraph& b) {
      const Shape shape = {kS, kS};
      auto keep = [](int64_t i, int64_t j) { return (i + j) % 3 != 0; };
      Value* added = b.Constant(Mask(shape, DType::kF64, 0, kMin, keep));
      if (computed) added = b.Where(b.In("keep", Kept(shape, 3)), b.C(0), b.C(kMin));
      Value* kept = b.Where(b.Constant(Kept(shape, 3)), Scores(b), b.C(kMin));
      return Times(b, b.Softmax(b.Sub(kept, added)));
    });
  }
}

// The scores of all keys and one more, of which another part is taken.
TEST(AttentionNearMisses, OfSinks) {
  enum Form { kFirst, kOfMore, kNotTheLast };
  for (Form form : {kFirst, kOfMore, kNotTheLast}) {
    SCOPED_TRACE(form);
    Computes([form](TestGraph& b) {
      Value *scores = Scores(b), *sink = b.In("sink", {kB, kHeads, kS, 1});
      std::vector<Value*> all = {scores, sink};
      if (form == kFirst) all = {sink, scores};
      if (form == kOfMore) {
        Value* few = b.Slice(scores, {0, 0, 0, 0}, {kB, kHeads, kS, kS - 1});
        all = {few, sink, b.In("more", {kB, kHeads, kS, 1})};
      }
      Value* p = b.Softmax(b.Make("concat", std::move(all), {{"axis", int64_t{3}}}));
      const bool second = form != kOfMore;
      const Ints sizes = second ? Ints{1, kS} : Ints{kS, 1};
      p = b.Create("split", {p}, {{"axis", int64_t{3}}, {"sizes", sizes}})->results[second];
      return Times(b, p);
    });
  }
}

TEST(AttentionNearMisses, OfScoresThatAreReadInOtherRows) {
  Computes([](TestGraph& b) {
    Value* scores = b.Make("matmul_nt", {b.In("q", kHeadsShape), b.In("k", {kB, kHeads, 3, kD})});
    Value* p = b.Softmax(b.Reshape(scores, {kB, kHeads, 3, kS}));
    return Times(b, p);
  });
}

// Query head i reads kv head i / times alone.
TEST(AttentionNearMisses, OfGroups) {
  enum Form { kInTurns, kKeysInTurns, kOfOtherNumbers };
  for (Form form : {kInTurns, kKeysInTurns, kOfOtherNumbers}) {
    SCOPED_TRACE(form);
    Computes([form](TestGraph& b) {
      auto heads = [&](const char* name, int64_t n, bool in_turns) {
        Value* x = b.In(name, {kB, n, kS, kD});
        const int64_t times = kHeads / n;
        x = b.Reshape(x, in_turns ? Shape{kB, 1, n, kS, kD} : Shape{kB, n, 1, kS, kD});
        x = b.BroadcastTo(x, in_turns ? Shape{kB, times, n, kS, kD} : Shape{kB, n, times, kS, kD});
        return b.Reshape(x, kHeadsShape);
      };
      Value* k = heads("k", 2, form != kOfOtherNumbers);
      Value* v = heads("v", form == kOfOtherNumbers ? 1 : 2, form == kInTurns);
      Value* p = b.Softmax(b.Make("matmul_nt", {b.In("q", kHeadsShape), k}));
      return b.Matmul(p, v);
    });
  }
}

TEST(AttentionNearMisses, OfOneKeyHeadForAllQueries) {
  Computes([](TestGraph& b) {
    Value* scores = b.Make("matmul_nt", {b.In("q", kHeadsShape), b.In("k", {kB, 1, kS, kD})});
    return Times(b, b.Softmax(scores));
  });
}

}  // namespace
}  // namespace shardc::recover_testing
