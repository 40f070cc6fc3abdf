// Einsum, through diagonals, sums, transposes, and for each two operands a product.
#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

// A letter per dim; the dims of an ellipsis are '0', '1', ... counted from the last one.
using Labels = std::string;

struct Term {
  Value* value;
  Labels labels;
};

Labels WriteOutEllipsis(const NodeContext& c, const std::string& term, size_t dims) {
  size_t at = term.find("...");
  if (at == std::string::npos) return term;
  if (dims > 10) c.Fail("E1301", "Einsum with more than ten dims in an ellipsis");
  Labels out = term.substr(0, at);
  for (size_t i = dims; i-- > 0;) out += static_cast<char>('0' + i);
  return out + term.substr(at + 3);
}

size_t EllipsisDims(const NodeContext& c, const std::string& term, int rank) {
  bool ellipsis = term.find("...") != std::string::npos;
  size_t letters = term.size() - (ellipsis ? 3 : 0), dims = static_cast<size_t>(rank);
  if (letters > dims || (!ellipsis && letters != dims)) {
    c.Fail("E1303", StrCat("the term \"", term, "\" does not fit ", rank, " dims"));
  }
  return dims - letters;
}

// A label that stands twice in one term: only its diagonal is kept.
Term TakeDiagonals(NodeContext& c, Term t) {
  for (size_t i = 0; i < t.labels.size(); ++i) {
    size_t j = t.labels.find(t.labels[i], i + 1);
    if (j == Labels::npos) continue;
    const Shape& shape = t.value->type.shape;
    int rank = t.value->type.rank();
    if (shape[i] != shape[j]) c.Fail("E1303", "a diagonal of two dims that differ");
    Value* on = c.Make("equal", {Iota(c, shape[i], static_cast<int>(i), rank),
                                 Iota(c, shape[j], static_cast<int>(j), rank)});
    Value* kept = Where(c, on, t.value, Like(c, t.value, 0));
    t.value = Reduce(c, "reduce_sum", kept, {static_cast<int64_t>(j)}, false);
    t.labels.erase(j, 1);
    --i;
  }
  return t;
}

bool Has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }

// Sums over the labels that `wanted` does not have.
Term SumOthers(NodeContext& c, Term t, const Labels& wanted) {
  Ints axes;
  Labels left;
  for (size_t d = 0; d < t.labels.size(); ++d) {
    if (Has(wanted, t.labels[d])) {
      left += t.labels[d];
    } else {
      axes.push_back(static_cast<int64_t>(d));
    }
  }
  return {Reduce(c, "reduce_sum", t.value, std::move(axes), false), left};
}

// A dim of 1 broadcasts against a longer one of the other term. Where their products are summed,
// the term is taken without it.
Term DropSummedOnes(NodeContext& c, const Term& t, const Term& other, const Labels& out) {
  Shape shape;
  Labels left;
  for (size_t d = 0; d < t.labels.size(); ++d) {
    const int64_t n = t.value->type.shape[d];
    const size_t at = other.labels.find(t.labels[d]);
    const bool longer = at != Labels::npos && other.value->type.shape[at] != 1;
    if (n == 1 && longer && !Has(out, t.labels[d])) continue;
    shape.push_back(n);
    left += t.labels[d];
  }
  return {c.Reshape(t.value, std::move(shape)), left};
}

Value* InOrder(NodeContext& c, const Term& t, const Labels& order) {
  Ints perm;
  for (char label : order) perm.push_back(static_cast<int64_t>(t.labels.find(label)));
  return c.Transpose(t.value, std::move(perm));
}

class Product {
 public:
  Product(NodeContext& c, Term a, Term b, const Labels& out) : c_(c), a_(a), b_(b) {
    for (char label : a.labels) {
      bool shared = Has(b.labels, label), kept = Has(out, label);
      (shared ? (kept ? batch_ : summed_) : left_) += label;
    }
    for (char label : b.labels) {
      if (!Has(a.labels, label)) right_ += label;
    }
    // What must be put in another order anyway gets that of the result.
    if (batch_ + left_ + summed_ != a.labels) {
      std::ranges::sort(left_, {}, [&](char label) { return out.find(label); });
    }
    AddSizes(a);
    AddSizes(b);
  }

  // Leading dims of the left operand stay apart where the right one is a plain matrix.
  Term Run() {
    if (summed_.empty()) return ByElements();
    Value* a = InOrder(c_, a_, batch_ + left_ + summed_);
    Value* b = InOrder(c_, b_, batch_ + summed_ + right_);
    int64_t k = Elements(summed_), rows = Elements(left_), columns = Elements(right_);
    Shape a_shape = Sizes(batch_.empty() && !left_.empty() ? left_ : batch_);
    if (!batch_.empty() || left_.empty()) a_shape.push_back(rows);
    a_shape.push_back(k);
    Shape b_shape = OwnSizes(b_, batch_);
    b_shape.insert(b_shape.end(), {k, columns});
    Shape own = OwnSizes(a_, batch_);
    std::copy(own.begin(), own.end(), a_shape.begin());
    Value* y = c_.Make("matmul", {c_.Reshape(a, a_shape), c_.Reshape(b, b_shape)});
    Labels labels = batch_ + left_ + right_;
    return {c_.Reshape(y, Sizes(labels)), labels};
  }

 private:
  Term ByElements() {
    const Labels labels = batch_ + left_ + right_;
    auto spread = [&](const Term& t) {
      Labels order;
      Shape shape;
      for (char label : labels) {
        const size_t at = t.labels.find(label);
        if (at != Labels::npos) order += label;
        shape.push_back(at == Labels::npos ? 1 : t.value->type.shape[at]);
      }
      return c_.Reshape(InOrder(c_, t, order), std::move(shape));
    };
    return {c_.Make("mul", {spread(a_), spread(b_)}), labels};
  }

  // Dims of 1 broadcast.
  void AddSizes(const Term& t) {
    for (size_t d = 0; d < t.labels.size(); ++d) {
      int64_t n = t.value->type.shape[d];
      auto [size, added] = sizes_.try_emplace(t.labels[d], n);
      bool summed = Has(summed_, t.labels[d]);
      if (added || size->second == n) continue;
      if (summed || (size->second != 1 && n != 1)) {
        c_.Fail("E1303", StrCat("dim '", std::string(1, t.labels[d]), "' of Einsum has the sizes ",
                                size->second, " and ", n));
      }
      size->second = std::max(size->second, n);
    }
  }
  Shape Sizes(const Labels& labels) const {
    Shape out;
    for (char label : labels) out.push_back(sizes_.at(label));
    return out;
  }
  static Shape OwnSizes(const Term& t, const Labels& labels) {
    Shape out;
    for (char label : labels) out.push_back(t.value->type.shape[t.labels.find(label)]);
    return out;
  }
  int64_t Elements(const Labels& labels) const { return NumElements(Sizes(labels)); }

  NodeContext& c_;
  Term a_, b_;
  Labels batch_, left_, right_, summed_;
  std::map<char, int64_t> sizes_;
};

struct Equation {
  std::vector<std::string> terms;
  std::optional<std::string> out;
};

Equation Parse(std::string text) {
  std::erase(text, ' ');
  Equation e;
  size_t arrow = text.find("->");
  if (arrow != std::string::npos) e.out = text.substr(arrow + 2);
  std::string left = text.substr(0, arrow);
  for (size_t at = 0, comma = 0; comma != std::string::npos; at = comma + 1) {
    comma = left.find(',', at);
    e.terms.push_back(left.substr(at, comma - at));
  }
  return e;
}

// Without an arrow: the ellipsis, then the letters that stand once, by alphabet.
std::string ImplicitOutput(const Equation& e) {
  std::string all, out;
  bool ellipsis = false;
  for (const std::string& term : e.terms) {
    for (char label : term) label == '.' ? void(ellipsis = true) : all.push_back(label);
  }
  std::sort(all.begin(), all.end());
  for (char label : all) {
    if (std::count(all.begin(), all.end(), label) == 1) out += label;
  }
  return ellipsis ? "..." + out : out;
}

Labels LabelsOf(const std::vector<Term>& terms) {
  Labels all;
  for (const Term& t : terms) all += t.labels;
  return all;
}

// The product of two terms, with the labels that others or the result have.
Product ProductOf(NodeContext& c, Term a, Term b, const Labels& wanted) {
  a = DropSummedOnes(c, a, b, wanted);
  b = DropSummedOnes(c, b, a, wanted);
  const Labels of_a = a.labels;
  a = SumOthers(c, a, wanted + b.labels);
  return Product(c, a, SumOthers(c, b, wanted + of_a), wanted);
}

// Puts the product of two terms in their place: of those that make the fewest elements.
void MultiplyTwo(NodeContext& c, std::vector<Term>& terms, const Labels& out) {
  auto elements = [&](const Term& a, const Term& b, const Labels& wanted) {
    std::map<char, int64_t> sizes;
    for (const Term* t : {&a, &b}) {
      for (size_t d = 0; d < t->labels.size(); ++d) {
        if (!Has(wanted, t->labels[d])) continue;
        int64_t& n = sizes.try_emplace(t->labels[d], 1).first->second;
        n = std::max(n, t->value->type.shape[d]);
      }
    }
    double product = 1;
    for (const auto& [label, n] : sizes) product *= static_cast<double>(n);
    return product;
  };
  auto without = [&](size_t i, size_t j) {
    std::vector<Term> others = terms;
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(j));
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    return others;
  };
  size_t first = 0, second = 1;
  double fewest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < terms.size(); ++i) {
    for (size_t j = i + 1; j < terms.size(); ++j) {
      const double n = elements(terms[i], terms[j], out + LabelsOf(without(i, j)));
      if (n >= fewest) continue;
      fewest = n;
      first = i;
      second = j;
    }
  }
  std::vector<Term> others = without(first, second);
  const Labels wanted = out + LabelsOf(others);
  Term product = ProductOf(c, terms[first], terms[second], wanted).Run();
  others.insert(others.begin() + static_cast<std::ptrdiff_t>(first), std::move(product));
  terms = std::move(others);
}

// PyTorch takes integers beside floats, as positions beside frequencies, and dynamo writes no cast.
Value* AsFactor(NodeContext& c, int i) {
  Value* v = c.input(i);
  for (int k = 0; k < c.num_inputs() && !IsFloat(v->type.dtype); ++k) {
    if (IsFloat(c.input(k)->type.dtype)) v = c.Cast(v, c.input(k)->type.dtype);
  }
  return v;
}

void Einsum(NodeContext& c) {
  Equation e = Parse(c.String("equation", ""));
  if (static_cast<int>(e.terms.size()) != c.num_inputs()) {
    c.Fail("E1303",
           StrCat("the equation has ", e.terms.size(), " terms for ", c.num_inputs(), " inputs"));
  }
  std::vector<Term> terms;
  size_t ellipsis = 0;
  for (int i = 0; i < c.num_inputs(); ++i) {
    size_t dims = EllipsisDims(c, e.terms[i], c.input(i)->type.rank());
    ellipsis = std::max(ellipsis, dims);
    terms.push_back(TakeDiagonals(c, {AsFactor(c, i), WriteOutEllipsis(c, e.terms[i], dims)}));
  }
  Labels out = WriteOutEllipsis(c, e.out ? *e.out : ImplicitOutput(e), ellipsis);
  const Labels all = LabelsOf(terms);
  for (size_t i = 0; i < out.size(); ++i) {
    if (!Has(all, out[i]) || Has(out.substr(i + 1), out[i])) {
      c.Fail("E1303", "a label of Einsum's result is not in the operands, or stands twice");
    }
  }
  while (terms.size() > 1) MultiplyTwo(c, terms, out);
  Term y = SumOthers(c, terms[0], out);
  c.SetOutput(0, InOrder(c, y, out));
}

}  // namespace

void AddEinsumConverter(ConverterTable& table) { table.emplace("Einsum", Einsum); }

}  // namespace shardc::onnx_import
