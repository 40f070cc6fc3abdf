// Einsum in all forms, against a loop over all labels.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class EinsumConverter : public ConverterTest {};

struct EinsumCase {
  std::string equation;
  std::vector<Shape> shapes;
};

// By the definition: a loop over all labels. The ellipsis is written "...", for two labels.
HostTensor NaiveEinsum(std::string equation, const std::vector<HostTensor>& operands) {
  for (size_t at; (at = equation.find("...")) != std::string::npos;) {
    equation.replace(at, 3, "YZ");
  }
  const size_t arrow = equation.find("->");
  const std::string out = equation.substr(arrow + 2);
  std::vector<std::string> terms = {""};
  for (char label : equation.substr(0, arrow)) {
    label == ',' ? void(terms.emplace_back()) : terms.back().push_back(label);
  }
  std::map<char, int64_t> size, at;
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t d = 0; d < terms[i].size(); ++d) {
      int64_t& n = size[terms[i][d]];
      n = std::max(n, operands[i].shape()[d]);
    }
  }
  auto index = [&](const std::string& labels, const Shape& dims) {
    int64_t i = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      i = i * dims[d] + (dims[d] == 1 ? 0 : at[labels[d]]);
    }
    return i;
  };
  Shape shape;
  int64_t steps = 1;
  for (char label : out) shape.push_back(size[label]);
  for (const auto& [label, n] : size) steps *= n;
  HostTensor y(DType::kF64, shape);
  for (int64_t step = 0; step < steps; ++step) {
    int64_t rest = step;
    for (const auto& [label, n] : size) {
      at[label] = rest % n;
      rest /= n;
    }
    double product = 1;
    for (size_t i = 0; i < terms.size(); ++i) {
      product *= operands[i].AsDouble(index(terms[i], operands[i].shape()));
    }
    y.SetDouble(index(out, shape), y.AsDouble(index(out, shape)) + product);
  }
  return y;
}

TEST_F(EinsumConverter, EinsumForms) {
  const EinsumCase cases[] = {
      {"ij,jk->ik", {{2, 3}, {3, 4}}},
      {"bij,bjk->bik", {{2, 3, 4}, {2, 4, 2}}},
      {"bqhd,bkhd->bhqk", {{2, 3, 2, 4}, {2, 5, 2, 4}}},
      {"bhqk,bkhd->bqhd", {{2, 2, 3, 5}, {2, 5, 2, 4}}},
      {"bsi,ij->bsj", {{2, 3, 4}, {4, 5}}},
      {"i,j->ji", {{3}, {4}}},
      {"i,i->", {{3}, {3}}},
      {"ij,ij->ij", {{3, 2}, {3, 2}}},
      {"ijk,jl->il", {{2, 3, 4}, {3, 5}}},
      {"ii,ij->j", {{3, 3}, {3, 2}}},
      {"...ij,...jk->...ik", {{2, 3, 4, 5}, {2, 3, 5, 2}}},
      {"bshd,hdm->bsm", {{2, 3, 2, 4}, {2, 4, 5}}},
      {"bsd,edf->bsef", {{2, 3, 1}, {2, 4, 5}}},
      {"bsd,edf->bsef", {{1, 3, 4}, {2, 1, 5}}},
      {"ij,ij->", {{1, 4}, {3, 1}}},
      {"bij,bjk->bik", {{1, 3, 4}, {2, 4, 2}}},
      {"ijk->ki", {{2, 3, 4}}},
      {"i,i,i->", {{3}, {3}, {3}}},
      {"tk,tke,tkc->tec", {{5, 2}, {5, 2, 3}, {5, 2, 4}}},
      {"ab,bc,cd,de->ae", {{2, 3}, {3, 4}, {4, 2}, {2, 5}}},
      {"i,j,ij->", {{3}, {4}, {3, 4}}},
      {"bq,bk,bkd->bqd", {{2, 3}, {2, 4}, {2, 4, 5}}},
      {"ij,ij,ij->j", {{1, 4}, {3, 1}, {3, 4}}},
      {"...i,ij,...j->...", {{2, 3, 4}, {4, 5}, {2, 3, 5}}},
  };
  for (const EinsumCase& c : cases) {
    model_.graph.Clear();
    std::vector<std::string> names;
    std::vector<HostTensor> operands;
    for (const Shape& shape : c.shapes) {
      names.push_back(StrCat("x", names.size()));
      Input(names.back(), shape);
      operands.push_back(inputs_[names.back()]);
    }
    SetString(Node("Einsum", names), "equation", c.equation);
    HostTensor expected = NaiveEinsum(c.equation, operands);
    EXPECT_LT(testing::MaxError(Evaluate()[0], expected), 1e-12) << c.equation;
  }
}

// Masks that send tokens to experts are products by elements, in the type of their operands.
TEST_F(EinsumConverter, AnEinsumThatSumsNothingIsNoMatrixProduct) {
  Input("x", {3, 2});
  Input("mask", {3, 2, 4});
  SetString(Node("Einsum", {"x", "mask"}), "equation", "tk,tke->tke");
  Graph g = Imported({"y"});
  for (const auto& op : g.ops()) EXPECT_NE(op->name(), "matmul");
}

// x-transformers' positions times frequencies.
TEST_F(EinsumConverter, IntegersBesideFloatsAreFloats) {
  Integers("at", {0, 1, 2});
  Input("frequencies", {2});
  SetString(Node("Einsum", {"at", "frequencies"}), "equation", "i,j->ij");
  HostTensor expected(DType::kF64, {3, 2});
  for (int64_t i = 0; i < 6; ++i) {
    const double frequency = inputs_.at("frequencies").AsDouble(i % 2);
    expected.SetDouble(i, static_cast<double>(i / 2) * frequency);
  }
  EXPECT_EQ(testing::MaxError(Evaluate()[0], expected), 0);
}

// Grouped heads: q is put in the order of the scores, and the scores in none.
TEST_F(EinsumConverter, OnlyWhatMustMoveAnywayIsPutInAnotherOrder) {
  Input("q", {2, 5, 3, 2, 4});
  Input("k", {2, 6, 3, 4});
  SetString(Node("Einsum", {"q", "k"}), "equation", "btgrd,bsgd->bgrts");
  Graph g = Imported({"y"});
  EXPECT_EQ(CountOps(g, "transpose"), 2);
}

}  // namespace
}  // namespace shardc::import_testing
