// What exporters computed from a module's parameters: functions, other numbers, other dims.
#include "tests/frontend/restore_testing.h"

namespace shardc {
namespace {

using import_testing::AddFoldedFrom;
using import_testing::Data;
using import_testing::ListParameters;
using import_testing::Map;
using import_testing::Reshaped;
using import_testing::RestoreTest;
using import_testing::Turned;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class RestoreComputed : public RestoreTest {};

// What state spaces and the like read of a parameter is computed from it: trained in its place it
// would go another way, out of the function's range.
TEST_F(RestoreComputed, FunctionsThatTheExporterNames) {
  const auto minus_exp = [](double x) { return -std::exp(x); };
  const auto one_minus = [](double x) { return 1 - x; };
  const auto softplus = [](double x) { return std::log1p(std::exp(x)); };
  const auto of = [&](const std::string& name, const HostTensor& t, const std::string& from) {
    InFile(name, t, "Mul");
    AddFoldedFrom(model_, name, from);
  };
  const HostTensor number = Data({1}), half = Converted(Data({4}, 7), DType::kBF16);
  InModule("a.A_log", Data({2, 4}));
  InModule("mix", Data({4}, 2));
  InModule("number", number);
  InModule("half", half);
  InModule("other", Data({3}, 4));
  InModule("p", Data({5}, 5));
  InModule("q", Data({5}, 6));
  of("neg", Map(Reshaped(Data({2, 4}), {1, 2, 1, 4}), minus_exp), "['exp_3', 'a.A_log', 'val_1']");
  of("sub", Map(Reshaped(Data({4}, 2), {1, 1, 4}), one_minus), "['scalar_default', 'mix']");
  of("softplus", Map(number, softplus), "['beta', 'number', 'threshold', 'tmp']");
  of("exp_1", Map(Converted(half, DType::kF32), [](double x) { return std::exp(x); }), "['half']");
  of("exp_2", Map(Data({3}, 9), minus_exp), "['other']");          // is none
  of("sub_2", Map(Data({5}, 5), one_minus), "['exp', 'p', 'q']");  // of several
  ListParameters(model_, {"a.A_log", "mix", "number", "half", "other", "p", "q"});
  EXPECT_THAT(Restored(1e-6),
              ElementsAre(Pair("a.A_log", IsEmpty()), Pair("exp_2", ElementsAre("other")),
                          Pair("half", IsEmpty()), Pair("mix", IsEmpty()),
                          Pair("number", IsEmpty()), Pair("sub_2", ElementsAre("p", "q"))));
  EXPECT_THAT(notes_[0], HasSubstr("has 4 tensors of which the exporter made others: 'softplus' is "
                                   "'number' after softplus, the first"));
}

// A new model's w - tanh(w), silu(w) and -w are zeros, as tanh(w) and w are.
TEST_F(RestoreComputed, FunctionsOfZerosAreNotGuessed) {
  const HostTensor zeros(DType::kF32, {4});
  const auto of = [&](const std::string& name, const std::string& from) {
    InFile(name, zeros, "Mul");
    AddFoldedFrom(model_, name, from);
  };
  for (const char* name : {"a", "b", "c", "d"}) InModule(name, zeros);
  of("sub", "['a', 'tanh']");
  of("silu", "['b']");
  of("neg", "['c']");
  of("tanh_1", "['d']");
  ListParameters(model_, {"a", "b", "c", "d"});
  EXPECT_THAT(Restored(1e-6),
              UnorderedElementsAre(Pair("sub", ElementsAre("a")), Pair("silu", ElementsAre("b")),
                                   Pair("neg", ElementsAre("c")), Pair("d", IsEmpty())));
}

// A new model's exp(3 * w) and 1 - 2 * w look as if there were no factor.
TEST_F(RestoreComputed, FunctionsOfWhatTheExporterScaled) {
  const auto scaled = [](double x) { return std::exp(3 * x); };
  InModule("zeros", HostTensor(DType::kF32, {4}));
  InModule("small", Map(Data({4}), [](double x) { return 1e-6 * x; }));
  InModule("large", Data({4}, 2));
  InModule("other", Data({5}));
  InFile("other", Data({5}));
  const auto of = [&](const std::string& name, const HostTensor& t, const std::string& from) {
    InFile(name, t, "Mul");
    AddFoldedFrom(model_, name, from);
  };
  of("exp", Map(HostTensor(DType::kF32, {4}), scaled), "['mul', 'val_0', 'zeros']");
  of("sub", Map(Data({4}), [](double x) { return 1 - 2e-6 * x; }), "['mul_1', 'small', 'val_1']");
  of("mul_4", Map(Data({4}, 2), [](double x) { return 1 - x; }), "['large', 'mul_3', 'sub_1']");
  ListParameters(model_, {"zeros", "small", "large", "other"});
  EXPECT_THAT(Restored(1e-6),
              ElementsAre(Pair("exp", ElementsAre("zeros")), Pair("large", IsEmpty()),
                          Pair("other", IsEmpty()), Pair("sub", ElementsAre("small"))));
}

// What is the module's by a factor and a summand, or in other dims, trains otherwise in its place.
TEST_F(RestoreComputed, OtherNumbersAndOtherDims) {
  const auto three_times = [](double x) { return 3 * x; };
  const auto scaled = [](double x) { return x / std::sqrt(7.) - 2.5; };
  InModule("b", Data({9}));
  InModule("dims", Data({3, 4}, 2));
  InModule("both", Data({2, 6}, 4));
  InModule("turned", Data({3, 5}, 3));
  InModule("few", Data({7}, 5));
  InModule("like.one", Data({8}, 6));
  InModule("like.two", Data({8}, 6));
  InModule("halves", Converted(Data({8}, 7), DType::kBF16));
  InModule("flat", Data({8}, 8));
  InFile("Mul_1", Map(Reshaped(Data({9}), {1, 9}), three_times));
  InFile("Mul_2", Reshaped(Data({3, 4}, 2), {12}));
  InFile("Mul_3", Map(Reshaped(Data({2, 6}, 4), {3, 4}), scaled));
  InFile("Mul_4", Turned(Map(Data({3, 5}, 3), scaled)));
  InFile("Mul_5", Map(Data({7}, 5), three_times));
  InFile("Mul_6", Map(Data({8}, 6), three_times));
  InFile("Mul_7", Map(Converted(Converted(Data({8}, 7), DType::kBF16), DType::kF32), three_times));
  // Of all tensors it is 1e-6 times one, plus 1, as far as can be seen.
  InFile("Mul_8", Map(Data({8}, 9), [](double x) { return 1 + 1e-6 * x; }));
  EXPECT_THAT(Restored(1e-6),
              UnorderedElementsAre(Pair("b", IsEmpty()), Pair("dims", IsEmpty()),
                                   Pair("both", IsEmpty()), Pair("turned", IsEmpty()),
                                   Pair("Mul_5", IsEmpty()), Pair("Mul_6", IsEmpty()),
                                   Pair("Mul_7", IsEmpty()), Pair("Mul_8", IsEmpty())));
  EXPECT_THAT(notes_[0], HasSubstr("'Mul_1' is 'b' times 3, the first"));
}

// s * 5 and 1 - h / 2, which the exporter merged because they are equal.
TEST_F(RestoreComputed, MultiplesOfEqualElementsThatAreUsedTwice) {
  HostTensor tenths(DType::kF32, {4});
  for (int64_t i = 0; i < 4; ++i) tenths.SetDouble(i, .1f);
  InModule("s", tenths);
  InModule("other", Data({5}));
  InFile("other", Data({5}));
  InFile("mul", Map(tenths, [](double x) { return 5 * x; }), "Mul");
  model_.Node("Add", {"x_mul", "mul"}, {"z"});
  model_.Output("z");
  AddFoldedFrom(model_, "mul", "['s', 'scalar_tensor_default', 'val_1']");
  ListParameters(model_, {"s", "other"});
  EXPECT_THAT(Restored(), ElementsAre(Pair("mul", ElementsAre("s")), Pair("other", IsEmpty())));
}

// As w / norm(w), whose gradient is another one than that of a multiple; as a weight norm's weight,
// which is what it was but for rounding.
TEST_F(RestoreComputed, AFactorOfItsOwnIsNotRestored) {
  for (const char* from : {"w", "norm.w", "part.w"}) InModule(from, Data({3, 4}, from[0]));
  InModule("rounded", Data({3, 4}, 9));
  const auto in_file = [&](const std::string& name, const HostTensor& t, const std::string& from) {
    InFile(name, t);
    AddFoldedFrom(model_, name, from);
  };
  const auto halved = [](double x) { return x * .5; };
  in_file("div", Map(Data({3, 4}, 'w'), halved), "['lifted_tensor_0', 'val_0', 'view', 'w']");
  in_file("div_1", Map(Data({3, 4}, 'n'), halved), "['linalg_vector_norm', 'norm.w', 'val_0']");
  in_file("div_3", Map(Data({3, 4}, 'p'), halved), "['part.w', 'select', 'select_1']");
  InFile("Mul_1", Map(Data({3, 4}, 9), [](double x) { return x * (1 + 1e-7); }));
  ListParameters(model_, {"w", "norm.w", "part.w"});
  EXPECT_THAT(Restored(1e-6),
              UnorderedElementsAre(Pair("w", IsEmpty()), Pair("div_1", ElementsAre("norm.w")),
                                   Pair("div_3", ElementsAre("part.w")), Pair("Mul_1", IsEmpty())));
}

// TorchScript names no function: a factor of many digits may be a norm of the tensor itself.
TEST_F(RestoreComputed, FactorsOfAProgramHaveFewDigits) {
  InModule("other", Data({5}));
  InFile("other", Data({5}));
  const HostTensor w = Data({3, 4});
  InModule("w", w);
  for (const double factor : {.7, -3., 1 / 7., std::sqrt(48.), 1 / std::sqrt(48.), .38421197}) {
    HostTensor made(DType::kF32, w.shape());
    for (int64_t i = 0; i < 12; ++i) made.SetDouble(i, factor * w.AsDouble(i));
    InFile("Mul_" + std::to_string(factor), made);
  }
  std::map<std::string, Strings> restored = Restored(1e-6);
  EXPECT_EQ(restored.size(), 3u);
  EXPECT_TRUE(restored.contains("w") && restored.contains("Mul_0.384212"));
}

// What a sample of elements does not tell, all do: the first ones may be equal, as those of
// padding.
TEST_F(RestoreComputed, OtherDimsOfLargeTensors) {
  HostTensor padded = Data({4, 300}, 2);
  for (int64_t i = 0; i < 300; ++i) padded.SetDouble(i, 0);
  InModule("padded", padded);
  InModule("odd", Data({6, 200}, 3));
  InModule("heads", Data({20, 3, 10}, 5));
  InModule("other", Data({1200}, 4));
  InFile("Mul_0",
         Turned(Map(Reshaped(Data({20, 3, 10}, 5), {20, 30}), [](double x) { return x * .5; })));
  InFile("Mul_1", Map(Reshaped(padded, {12, 10, 10}), [](double x) { return x * -3; }));
  InFile("Mul_2", Reshaped(Data({6, 200}, 3), {400, 3}));
  InFile("Mul_3", Turned(Map(Data({6, 200}, 3), [](double x) { return 2 * x - 5; })));
  HostTensor last = Data({40, 30}, 4);
  last.SetDouble(1199, 0);
  InFile("Mul_4", last);
  EXPECT_THAT(Restored(1e-5),
              UnorderedElementsAre(Pair("heads", IsEmpty()), Pair("padded", IsEmpty()),
                                   Pair("odd", IsEmpty()), Pair("Mul_4", IsEmpty())));
}

// Of a new model's equal elements only the exporter can say that they were multiplied.
TEST_F(RestoreComputed, AMultipleOfEqualElements) {
  const auto all = [](double value) {
    HostTensor t(DType::kF32, {4});
    for (int64_t i = 0; i < 4; ++i) t.SetDouble(i, value);
    return t;
  };
  const auto in_file = [&](const std::string& name, double value, const std::string& from) {
    InFile(name, all(value), "Mul");
    AddFoldedFrom(model_, name, from);
  };
  for (const char* name : {"scaled", "squared", "zero"})
    InModule(name, all(name[0] == 'z' ? 0 : .5));
  in_file("mul", 1.5, "['scaled', 'scalar_tensor_default', 'val_1']");
  in_file("mul_1", .25, "['squared']");
  in_file("mul_3", .125, "['mul_2', 'squared', 'val_2']");
  in_file("div", 0, "['val_3', 'zero']");
  ListParameters(model_, {"scaled", "squared", "zero"});
  EXPECT_THAT(Restored(1e-6),
              ElementsAre(Pair("div", ElementsAre("zero")), Pair("mul_1", ElementsAre("squared")),
                          Pair("mul_3", IsEmpty()), Pair("scaled", IsEmpty())));
}

// Layers that began equal.
TEST_F(RestoreComputed, AFunctionOfEachModulesOwn) {
  const HostTensor log = Data({4});
  for (const char* name : {"a.A_log", "b.A_log"}) InModule(name, log);
  InModule("c.A_log", Data({4}, 2));
  InModule("d", Data({3}));
  InFile("neg", Map(log, [](double x) { return -std::exp(x); }), "Mul");
  AddFoldedFrom(model_, "neg", "['exp', 'a.A_log']");
  model_.graph.mutable_node(0)->set_name("/a/Mul");
  model_.Node("Mul", {"y_neg", "neg"}, {"y"}, "/b/Mul");
  model_.Node("Mul", {"y", "neg"}, {"z"}, "/c/Mul");
  model_.Output("z");
  InFile("d", Data({3}));
  ListParameters(model_, {"a.A_log", "b.A_log", "c.A_log", "d"});
  EXPECT_THAT(Restored(1e-5), ElementsAre(Pair("a.A_log", IsEmpty()), Pair("b.A_log", IsEmpty()),
                                          Pair("d", IsEmpty())));
  // Which of two the second is.
  InModule("b.other", log);
  EXPECT_THAT(Restored(), ElementsAre(Pair("d", IsEmpty()), Pair("neg", ElementsAre("a.A_log"))));
}

}  // namespace
}  // namespace shardc
