// What exporters made of a module's parameters, known by the module's data.
#include "tests/frontend/restore_testing.h"

namespace shardc {
namespace {

using import_testing::AddFoldedFrom;
using import_testing::AddMetadata;
using import_testing::Data;
using import_testing::ListParameters;
using import_testing::Reshaped;
using import_testing::RestoreTest;
using import_testing::Turned;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class RestoreParams : public RestoreTest {};

HostTensor Rows(const HostTensor& matrix, const Ints& rows, const Shape& shape) {
  HostTensor t(matrix.dtype(), shape);
  const int64_t width = matrix.shape()[1];
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    t.SetDouble(i, matrix.AsDouble(rows[i / width] * width + i % width));
  }
  return t;
}

TEST_F(RestoreParams, WhatWasTurned) {
  const HostTensor a = Data({3, 5}), square = Data({4, 4}, 2), experts = Data({2, 3, 4}, 3);
  InModule("a.weight", a);
  InModule("square.weight", square);
  InModule("experts", experts);
  InModule("unused", Data({3, 5}, 9));
  InFile("val_0", Turned(a));
  InFile("val_1", Turned(square));
  InFile("val_2", Turned(experts));
  EXPECT_THAT(Restored(), ElementsAre(Pair("a.weight", IsEmpty()), Pair("experts", IsEmpty()),
                                      Pair("square.weight", IsEmpty())));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("--module own.safetensors has 3 tensors of which the "
                                            "exporter made others: 'val_0' is 'a.weight' "
                                            "transposed, the first")));
}

TEST_F(RestoreParams, WhatHasOtherDimsOfSizeOneOrOneAdded) {
  const HostTensor a = Data({6}), b = Data({6}, 2), c = Data({3, 1, 4}, 3);
  HostTensor plus = b;
  for (int64_t i = 0; i < 6; ++i) plus.SetDouble(i, b.AsDouble(i) + 1);
  InModule("a", a);
  InModule("norm.weight", b);
  InModule("conv.weight", c);
  InFile("val_0", Reshaped(a, {1, 6, 1}));
  InFile("add_0", plus, "Mul");
  InFile("val_1", Turned(Reshaped(c, {3, 4})));
  EXPECT_THAT(Restored(), ElementsAre(Pair("a", IsEmpty()), Pair("conv.weight", IsEmpty()),
                                      Pair("norm.weight", IsEmpty())));
}

TEST_F(RestoreParams, RowsOfATable) {
  const HostTensor table = Data({9, 4}), types = Data({3, 4}, 50);
  InModule("position.weight", table);
  InModule("type.weight", types);
  InFile("embedding_1", Rows(table, {2, 3, 4, 5, 6}, {1, 5, 4}));
  InFile("embedding_2", Rows(table, {8, 0, 8}, {3, 1, 4}));
  InFile("embedding_3", Rows(types, {1, 1, 1, 1}, {2, 2, 4}));
  InFile("bias_4", Turned(Rows(table, {3, 7, 7, 2, 0, 1}, {2, 3, 4})));
  InFile("bias_5", Reshaped(Transposed(Rows(table, {5, 6, 7, 8}, {4, 4})), {1, 4, 2, 2}));
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("position.weight", IsEmpty()), Pair("type.weight", IsEmpty())));
  EXPECT_THAT(notes_[0], HasSubstr("'embedding_1' is 'position.weight', a part of it"));
}

// Positions of an image with the channels first, as they are interpolated.
TEST_F(RestoreParams, DimsInAnotherOrder) {
  const HostTensor grid = Data({1, 2, 3, 4});
  InModule("pos_embed", grid);
  InFile("permute_1", Reshaped(Transposed(Reshaped(grid, {6, 4})), {1, 4, 2, 3}));
  EXPECT_THAT(Restored(), ElementsAre(Pair("pos_embed", IsEmpty())));
}

TEST_F(RestoreParams, AVectorThatIsRepeated) {
  const HostTensor token = Data({1, 1, 5});
  InModule("cls_token", token);
  InFile("expand", Rows(Reshaped(token, {1, 5}), {0, 0, 0}, {3, 1, 5}));
  EXPECT_THAT(Restored(), ElementsAre(Pair("cls_token", IsEmpty())));
}

// cat((q.bias, zeros, v.bias)), and the biases that a layer takes out of one.
TEST_F(RestoreParams, VectorsThatWerePutTogetherOrTakenApart) {
  const HostTensor q = Data({5}), v = Data({5}, 20), whole = Data({12}, 40);
  HostTensor all(DType::kF32, {3, 5});
  for (int64_t i = 0; i < 15; ++i) {
    all.SetDouble(i, i < 5 ? q.AsDouble(i) : i < 10 ? 0 : v.AsDouble(i - 10));
  }
  HostTensor part(DType::kF32, {4}), strange(DType::kF32, {6}), few(DType::kF32, {6});
  for (int64_t i = 0; i < 4; ++i) part.SetDouble(i, whole.AsDouble(i + 6));
  for (int64_t i = 0; i < 6; ++i) {
    strange.SetDouble(i, i < 5 ? q.AsDouble(i) : 9);
    few.SetDouble(i, whole.AsDouble(i < 3 ? i : i + 4));
  }
  InModule("q_bias", q);
  InModule("v_bias", v);
  InModule("in_proj_bias", whole);
  InFile("cat", Reshaped(all, {15}));
  InFile("onnx::Add_7", part);
  InFile("strange", strange);
  InFile("few", few);
  EXPECT_THAT(Restored(), ElementsAre(Pair("few", IsEmpty()), Pair("in_proj_bias", IsEmpty()),
                                      Pair("q_bias", IsEmpty()), Pair("strange", IsEmpty()),
                                      Pair("v_bias", IsEmpty())));
  EXPECT_THAT(notes_[0], HasSubstr("'cat' is 'q_bias', a part of it, the first"));
}

// Rows that the table has twice are those next to what is before them, if that is there.
TEST_F(RestoreParams, RowsThatATableHasTwice) {
  const HostTensor table = Rows(Data({3, 4}), {0, 1, 2, 1}, {4, 4});
  InModule("table", table);
  InFile("known", Rows(table, {0, 1, 2, 3}, {1, 4, 4}));
  InFile("unknown", Rows(table, {1, 0}, {2, 4}));
  InFile("other", Rows(Data({3, 4}, 20), {1, 0}, {2, 4}));
  EXPECT_THAT(Restored(), ElementsAre(Pair("other", IsEmpty()), Pair("table", IsEmpty()),
                                      Pair("unknown", IsEmpty())));
  EXPECT_THAT(notes_[1], HasSubstr("'unknown' of the model's file is, nor of 1 other"));
}

TEST_F(RestoreParams, TiedOnesAreOneParameter) {
  const HostTensor table = Data({5, 4}), bias = Data({4}, 3);
  InModule("wte.weight", table);
  InModule("head.weight", table);
  InModule("decoder.bias", bias);
  InModule("other.bias", bias);
  InFile("wte.weight", table);
  InFile("val_0", Turned(table));
  InFile("decoder.bias", bias);
  EXPECT_THAT(Restored(), ElementsAre(Pair("decoder.bias", ElementsAre("other.bias")),
                                      Pair("wte.weight", ElementsAre("head.weight"))));
}

// Layers that begin as copies of one another are not tied: each has its tensor in the file.
TEST_F(RestoreParams, CopiesAreNotTied) {
  InModule("a.weight", Data({3, 4}));
  InModule("b.weight", Data({3, 4}));
  InModule("c.weight", Data({3, 4}, 5));
  InFile("val_0", Turned(Data({3, 4})));
  InFile("val_1", Turned(Data({3, 4})));
  InFile("val_2", Turned(Data({3, 4}, 5)));
  EXPECT_THAT(Restored(), ElementsAre(Pair("c.weight", IsEmpty()), Pair("val_0", IsEmpty()),
                                      Pair("val_1", IsEmpty())));
}

// All new norms are ones: the module that reads them has to tell.
TEST_F(RestoreParams, DataOfOneValueSayNothing) {
  HostTensor zeros(DType::kF32, {4}), ones = zeros;
  for (int64_t i = 0; i < 4; ++i) ones.SetDouble(i, 1);
  InModule("a.weight", ones);
  InModule("b.weight", ones);
  InModule("c", Data({4}));
  for (const char* norm : {"d", "e"}) {
    InModule(std::string(norm) + ".weight", zeros);
    InModule(std::string(norm) + ".bias", zeros);
  }
  InFile("onnx::Mul_1", ones, "Mul");
  InFile("onnx::Mul_2", Reshaped(ones, {1, 4}), "Mul");
  InFile("c", Data({4}));
  model_.graph.mutable_node(1)->set_name("/b/Mul");
  // One tensor of several norms, one of which no name says.
  InFile("onnx::Mul_3", ones, "Mul");
  model_.graph.mutable_node(3)->set_name("/d/Mul");
  model_.Node("Mul", {"y_onnx::Mul_3", "onnx::Mul_3"}, {"y"}, "/e/Mul");
  model_.Output("y");
  InFile("onnx::Mul_4", ones, "Mul");
  model_.graph.mutable_node(5)->set_name("/d/Mul");
  model_.Node("Mul", {"y_onnx::Mul_4", "onnx::Mul_4"}, {"z"});
  model_.Output("z");
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("b.weight", IsEmpty()), Pair("c", IsEmpty()),
                          Pair("d.weight", IsEmpty()), Pair("e.weight", IsEmpty()),
                          Pair("onnx::Mul_1", IsEmpty()), Pair("onnx::Mul_4", IsEmpty())));
}

// Numbers that scale layers are one vector, of which the exporter took each; the data tell which.
TEST_F(RestoreParams, ElementsOfWhatTheExporterNames) {
  const auto numbers = [](const Shape& shape, const std::vector<double>& values) {
    HostTensor t(DType::kF32, shape);
    for (size_t i = 0; i < values.size(); ++i) t.SetDouble(static_cast<int64_t>(i), values[i]);
    return t;
  };
  InModule("lambdas", numbers({2, 2}, {1, 0, 3, 4}));
  InModule("halves", numbers({2}, {.5, .5}));
  InModule("gates", numbers({2}, {2, 7}));
  InModule("scales", Data({7}));
  InModule("one", numbers({}, {1}));
  const auto of = [&](const std::string& name, const HostTensor& t, const std::string& from) {
    InFile(name, t, "Mul");
    AddFoldedFrom(model_, name, from);
  };
  of("select", numbers({1}, {1}), "['lambdas', 'val_1']");
  of("select_1", numbers({1, 1}, {0}), "['lambdas', 'val_2', 'val_3']");
  of("slice_1", Rows(Reshaped(Data({7}), {7, 1}), {2, 3, 4}, {3}), "['scales', 'val_1', 'val_2']");
  of("select_2", numbers({1}, {.5}), "['halves', 'val_1']");  // which of two
  // May have these numbers by chance.
  of("sum_1", numbers({1}, {2}), "['gates', 'val_1']");
  of("select_3", numbers({1}, {7}), "['relu', 'gates', 'val_1']");
  ListParameters(model_, {"lambdas", "halves", "gates", "scales", "one"});
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("lambdas", IsEmpty()), Pair("scales", IsEmpty()),
                          Pair("select_2", ElementsAre("halves")), Pair("select_3", IsEmpty()),
                          Pair("sum_1", ElementsAre("gates"))));
  EXPECT_THAT(notes_[1], HasSubstr("which of its tensors 'select_2' of the model's file is, nor of "
                                   "2 others"));
}

// As BERT ties its head's bias to that of the head's decoder; new ones are zeros.
TEST_F(RestoreParams, ABiasThatAModuleTiesToThatOfAPart) {
  const HostTensor zeros(DType::kF32, {4});
  for (const char* name : {"cls.bias", "other.bias", "cls.norm.bias"}) InModule(name, zeros);
  InFile("cls.decoder.bias", zeros);
  InFile("cls.norm.bias", zeros);
  InFile("cls.norm.part.bias", Data({4}));
  ListParameters(model_, {"cls.decoder.bias", "cls.bias", "cls.norm.bias", "other.bias"});
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("cls.bias", ElementsAre("cls.decoder.bias")),
                          Pair("cls.norm.bias", IsEmpty()), Pair("cls.norm.part.bias", IsEmpty())));
}

// dynamo names one of several that are equal: of another module the one of the same name is meant.
TEST_F(RestoreParams, TheOneThatTheExporterNamesOfEachModule) {
  const HostTensor zeros(DType::kF32, {4});
  for (const std::string layer : {"a", "b"}) {
    InModule(layer + ".conv.bias", zeros);
    InModule(layer + ".dt_proj.bias", zeros);
  }
  InFile("unsqueeze_1", Reshaped(zeros, {4, 1}));
  AddFoldedFrom(model_, "unsqueeze_1", "['a.dt_proj.bias', 'val_1']");
  model_.graph.mutable_node(0)->set_name("/a/Add");
  model_.Node("Add", {"y_unsqueeze_1", "unsqueeze_1"}, {"y"}, "/b/Add");
  model_.Output("y");
  InModule("c", Data({3}));
  InFile("c", Data({3}));
  ListParameters(model_, {"a.dt_proj.bias", "b.dt_proj.bias", "c"});
  EXPECT_THAT(Restored(), ElementsAre(Pair("a.dt_proj.bias", IsEmpty()),
                                      Pair("b.dt_proj.bias", IsEmpty()), Pair("c", IsEmpty())));
}

// As the biases of a recurrent unit's two gates.
TEST_F(RestoreParams, TwoOfOneModuleThatAreEqualAreNotTied) {
  const HostTensor zeros(DType::kF32, {4});
  for (const char* name : {"m.in_bias", "m.out_bias"}) InModule(name, zeros);
  InModule("c", Data({3}));
  InFile("unsqueeze_1", Reshaped(zeros, {1, 4}));
  InFile("c", Data({3}));
  AddFoldedFrom(model_, "unsqueeze_1", "['m.in_bias', 'val_1']");
  model_.graph.mutable_node(0)->set_name("/m/Add");
  model_.Node("Add", {"y_unsqueeze_1", "unsqueeze_1"}, {"y"}, "/m/Add");
  model_.Output("y");
  ListParameters(model_, {"m.in_bias", "m.out_bias", "c"});
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("c", IsEmpty()), Pair("unsqueeze_1", ElementsAre("m.in_bias"))));
}

// As TorchScript's of a buffer: its name is a guess, "m.bias".
TEST_F(RestoreParams, TheOnlyOneOfTheModuleThatReadsIt) {
  const HostTensor zeros(DType::kF32, {1, 4});
  InModule("m.final_logits_bias", zeros);
  InModule("c", Data({3}));
  InFile("onnx::Add_1", zeros);
  InFile("c", Data({3}));
  model_.graph.mutable_node(0)->set_name("/m/Add");
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("c", IsEmpty()), Pair("m.final_logits_bias", IsEmpty())));
  EXPECT_THAT(notes_, Contains(HasSubstr("'onnx::Add_1' of the model's file is taken for "
                                         "'m.final_logits_bias' as it is: ")));
  InModule("m.other", zeros);
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("c", IsEmpty()), Pair("onnx::Add_1", ElementsAre("m.bias"))));
}

// dynamo merged three, of which "g" is read where no module tells.
TEST_F(RestoreParams, OneThatHasTheNameOfOneOfItsUses) {
  HostTensor ones_and_zeros(DType::kF32, {2});
  ones_and_zeros.SetDouble(1, 1);
  model_.Input("x", {"2"});
  model_.Floats("g", {2}, {0, 1});
  std::string from = "x";
  for (const std::string name : {"a.u", "b.v", "g"}) {
    auto& node = model_.Node("Mul", {from, "g"}, {"of_" + name});
    AddMetadata(node, 9, "pkg.torch.onnx.fx_node",
                "%m : [...] = call_function[target=torch.ops.aten.mul.Tensor](args = (%" + from +
                    ", %p_" + name + "), kwargs = {})");
    if (name != "g") {
      AddMetadata(node, 9, "pkg.torch.onnx.name_scopes",
                  "['', '" + name.substr(0, 1) + "', 'mul']");
    }
    InModule(name, ones_and_zeros);
    from = "of_" + name;
  }
  model_.Output(from);
  ListParameters(model_, {"g", "a.u", "b.v"});
  EXPECT_THAT(Restored(),
              ElementsAre(Pair("a.u", IsEmpty()), Pair("b.v", IsEmpty()), Pair("g", IsEmpty())));
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("'g' is 'a.u'")));
}

// save_pretrained leaves out all names of a tied tensor but one; the exporter may have chosen
// another, or made a transpose of its own for it.
TEST_F(RestoreParams, TiedTensorsKeepTheNamesThatTheModulesFileLacks) {
  const HostTensor table = Data({4, 3});
  InModule("wte.weight", table);
  InFile("lm_head.weight", table);
  InFile("t_1", Turned(table));
  AddFoldedFrom(model_, "t_1", "['other.weight']");
  ListParameters(model_, {"wte.weight", "lm_head.weight", "other.weight"});
  EXPECT_THAT(
      Restored(),
      ElementsAre(Pair("wte.weight", UnorderedElementsAre("lm_head.weight", "other.weight"))));
}

// A file that lists none, as TorchScript's, has names that were given and names that were made up.
TEST_F(RestoreParams, TiedTensorsKeepTheNamesOfAFileWithoutAList) {
  InModule("lm_head.weight", Data({4, 3}));
  InModule("bias", Data({3}, 2));
  InFile("wte.weight", Data({4, 3}));
  InFile("onnx::Add_1", Data({3}, 2));
  EXPECT_THAT(Restored(), ElementsAre(Pair("bias", IsEmpty()),
                                      Pair("lm_head.weight", ElementsAre("wte.weight"))));
}

// Of the file's type, whatever the module is saved in.
TEST_F(RestoreParams, InAnotherType) {
  const HostTensor half = Converted(Data({3, 4}), DType::kBF16);
  InModule("a.weight", half);
  InFile("val_0", Turned(Converted(half, DType::kF32)));
  EXPECT_THAT(Restored(), ElementsAre(Pair("a.weight", IsEmpty())));
}

TEST_F(RestoreParams, OfAnotherModuleIsRefused) {
  InModule("a.weight", Data({3, 4}));
  InFile("a.weight", Data({3, 4}, 2));
  Diagnostic d = Failure(model_.proto, options_);
  EXPECT_EQ(d.id(), "E1403");
  EXPECT_THAT(d.what(), HasSubstr("'a.weight' has other numbers than in the model"));
  options_.module.tensors.clear();
  for (const bool any : {false, true}) {  // of floats
    if (any) InModule("b.weight", Data({3, 4}));
    d = Failure(model_.proto, options_);
    EXPECT_EQ(d.id(), "E1403");
    EXPECT_THAT(d.what(), HasSubstr("none of its tensors is a parameter of the model"));
  }
}

}  // namespace
}  // namespace shardc
