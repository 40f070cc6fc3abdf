#include "ir/sharding_rule.h"

#include <algorithm>
#include <map>

#include "ir/diagnostic.h"
#include "ir/graph.h"

namespace shardc {

int DimOfFactor(const std::vector<DimFactors>& dims, int factor) {
  for (size_t d = 0; d < dims.size(); ++d) {
    const auto& f = dims[d].factors;
    if (std::find(f.begin(), f.end(), factor) != f.end()) return static_cast<int>(d);
  }
  return -1;
}

int ShardingRule::AddFactor(int64_t size, FactorKind kind, ReduceKind reduce) {
  factors.push_back({size, kind, reduce});
  return static_cast<int>(factors.size()) - 1;
}

namespace {

// Parses one side's tensors into dims of factor names and maps them to factors.
class Einsum {
 public:
  Einsum(const Op& op, std::string_view text) : op_(op), text_(text) {}

  ShardingRule Run() {
    size_t arrow = text_.find("->");
    SHARDC_CHECK(arrow != std::string_view::npos, text_);
    std::vector<const TensorType*> ins, outs;
    for (const Value* v : op_.operands) ins.push_back(&v->type);
    for (const Value* v : op_.results) outs.push_back(&v->type);
    // The longest "..." decides the names of the leading dims.
    auto in_terms = Terms(text_.substr(0, arrow)), out_terms = Terms(text_.substr(arrow + 2));
    SHARDC_CHECK(in_terms.size() >= ins.size() && out_terms.size() >= outs.size(), op_.name(), " ",
                 text_);
    for (size_t i = 0; i < ins.size(); ++i) Sizes(in_terms[i], *ins[i]);
    for (size_t i = 0; i < outs.size(); ++i) Sizes(out_terms[i], *outs[i]);
    for (size_t i = 0; i < ins.size(); ++i) rule_.operands.push_back(Map(in_terms[i], *ins[i]));
    for (size_t i = 0; i < outs.size(); ++i) rule_.results.push_back(Map(out_terms[i], *outs[i]));
    return std::move(rule_);
  }

 private:
  using Dims = std::vector<std::vector<std::string>>;  // [dim][factor]

  static Dims ParseTerm(std::string_view term) {
    Dims dims;
    bool product = false;
    for (size_t i = 0; i < term.size();) {
      char c = term[i];
      if (c == ' ') {
        ++i;
      } else if (c == '(') {
        dims.emplace_back();
        product = true;
        ++i;
      } else if (c == ')') {
        product = false;
        ++i;
      } else {
        size_t end = term.find_first_of(" ()", i);
        std::string word(term.substr(i, end == std::string_view::npos ? end : end - i));
        i = end == std::string_view::npos ? term.size() : end;
        if (!product) dims.emplace_back();
        dims.back().push_back(std::move(word));
      }
    }
    return dims;
  }

  static std::vector<Dims> Terms(std::string_view side) {
    std::vector<Dims> terms;
    for (;;) {
      size_t comma = side.find(',');
      terms.push_back(ParseTerm(side.substr(0, comma)));
      if (comma == std::string_view::npos) return terms;
      side.remove_prefix(comma + 1);
    }
  }

  // Replaces a leading "..." by as many dims as the tensor has beyond the others, named from the
  // right.
  static Dims Expand(const Dims& dims, const TensorType& type) {
    if (dims.empty() || dims[0].size() != 1 || dims[0][0] != "...") return dims;
    int extra = type.rank() - (static_cast<int>(dims.size()) - 1);
    Dims out;
    for (int i = 0; i < extra; ++i) {
      out.push_back({type.shape[i] == 1 ? "." : "..." + std::to_string(extra - 1 - i)});
    }
    out.insert(out.end(), dims.begin() + 1, dims.end());
    return out;
  }

  int FactorOf(const std::string& word) {
    std::string name = word;
    FactorKind kind = FactorKind::kPlain;
    ReduceKind reduce = ReduceKind::kSum;
    if (size_t hat = name.find("^max"); hat != std::string::npos) {
      reduce = ReduceKind::kMax;
      name.erase(hat, 4);
    }
    if (name.back() == '!') kind = FactorKind::kReplicated, name.pop_back();
    if (name.back() == '?') kind = FactorKind::kExpandable, name.pop_back();
    auto [it, added] = ids_.emplace(name, static_cast<int>(rule_.factors.size()));
    if (added) rule_.AddFactor(0, kind, reduce);
    return it->second;
  }

  void Sizes(const Dims& raw, const TensorType& type) {
    Dims dims = Expand(raw, type);
    SHARDC_CHECK(static_cast<int>(dims.size()) == type.rank(), op_.name(), " ", text_);
    for (int d = 0; d < type.rank(); ++d) {
      if (dims[d].size() != 1 || dims[d][0] == ".") continue;
      Factor& f = rule_.factors[FactorOf(dims[d][0])];
      f.size = std::max(f.size, type.shape[d]);
    }
  }

  std::vector<DimFactors> Map(const Dims& raw, const TensorType& type) {
    Dims dims = Expand(raw, type);
    std::vector<DimFactors> out(type.rank());
    for (int d = 0; d < type.rank(); ++d) {
      for (const std::string& word : dims[d]) {
        if (word == ".") continue;
        int f = FactorOf(word);
        // A dim of size 1 under a larger factor broadcasts: it stays whole.
        if (dims[d].size() == 1 && type.shape[d] == 1 && rule_.factors[f].size != 1) continue;
        out[d].factors.push_back(f);
      }
    }
    return out;
  }

  const Op& op_;
  std::string_view text_;
  ShardingRule rule_;
  std::map<std::string, int> ids_;
};

}  // namespace

ShardingRule EinsumRule(const Op& op, std::string_view text, std::vector<std::vector<int>> linear) {
  ShardingRule rule = Einsum(op, text).Run();
  rule.linear = std::move(linear);
  return rule;
}

ShardingRule ElementwiseRule(const Op& op, std::vector<std::vector<int>> linear) {
  ShardingRule rule;
  rule.linear = std::move(linear);
  const Shape& out = op.out().shape;
  int rank = static_cast<int>(out.size());
  for (int64_t n : out) rule.AddFactor(n);
  auto map = [&](const TensorType& type) {
    std::vector<DimFactors> dims(type.rank());
    int shift = rank - type.rank();
    for (int d = 0; d < type.rank(); ++d) {
      if (type.shape[d] == out[d + shift]) dims[d].factors = {d + shift};
    }
    return dims;
  };
  for (const Value* v : op.operands) rule.operands.push_back(map(v->type));
  for (const Value* v : op.results) rule.results.push_back(map(v->type));
  return rule;
}

}  // namespace shardc
