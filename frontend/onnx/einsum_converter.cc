// Einsum of one or two operands, through diagonals, sums, transposes and one matmul.
#include <algorithm>
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
    AddSizes(a);
    AddSizes(b);
  }

  // Leading dims of the left operand stay apart where the right one is a plain matrix.
  Term Run() {
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

void Einsum(NodeContext& c) {
  Equation e = Parse(c.String("equation", ""));
  if (static_cast<int>(e.terms.size()) != c.num_inputs()) {
    c.Fail("E1303",
           StrCat("the equation has ", e.terms.size(), " terms for ", c.num_inputs(), " inputs"));
  }
  if (e.terms.size() > 2) {
    c.Fail("E1301", "Einsum of more than two operands is not supported",
           "write it as several Einsum or MatMul nodes");
  }
  std::vector<Term> terms;
  size_t ellipsis = 0;
  for (int i = 0; i < c.num_inputs(); ++i) {
    size_t dims = EllipsisDims(c, e.terms[i], c.input(i)->type.rank());
    ellipsis = std::max(ellipsis, dims);
    terms.push_back(TakeDiagonals(c, {c.input(i), WriteOutEllipsis(c, e.terms[i], dims)}));
  }
  Labels out = WriteOutEllipsis(c, e.out ? *e.out : ImplicitOutput(e), ellipsis);
  Labels all = terms[0].labels + (terms.size() > 1 ? terms[1].labels : "");
  for (size_t i = 0; i < out.size(); ++i) {
    if (!Has(all, out[i]) || Has(out.substr(i + 1), out[i])) {
      c.Fail("E1303", "a label of Einsum's result is not in the operands, or stands twice");
    }
  }
  if (terms.size() > 1) {
    terms[0] = DropSummedOnes(c, terms[0], terms[1], out);
    terms[1] = DropSummedOnes(c, terms[1], terms[0], out);
  }
  Term y = SumOthers(c, terms[0], terms.size() > 1 ? out + terms[1].labels : out);
  if (terms.size() > 1) {
    y = Product(c, y, SumOthers(c, terms[1], out + terms[0].labels), out).Run();
  }
  c.SetOutput(0, InOrder(c, y, out));
}

}  // namespace

void AddEinsumConverter(ConverterTable& table) { table.emplace("Einsum", Einsum); }

}  // namespace shardc::onnx_import
