#include "passes/rules.h"

#include <algorithm>
#include <functional>

namespace shardc {
namespace {

class Hash {
 public:
  void Add(size_t n) { value_ = (value_ ^ n) * 0x9e3779b97f4a7c15 + (value_ >> 29); }

  void Add(const TensorType& type) {
    for (int64_t n : type.shape) Add(static_cast<size_t>(n));
    Add(static_cast<size_t>(type.dtype));
  }

  // Equal attributes give the same, and most others do not: texts explain, tensors are rare.
  void Add(const Attributes& attrs) {
    for (const auto& [name, value] : attrs.entries()) {
      if (const auto* ints = std::get_if<Ints>(&value)) {
        for (int64_t n : *ints) Add(static_cast<size_t>(n));
      } else if (const auto* n = std::get_if<int64_t>(&value)) {
        Add(static_cast<size_t>(*n));
      }
    }
  }

  size_t value() const { return value_; }

 private:
  size_t value_ = 0;
};

bool SameTensors(const std::vector<TensorType>& types, const std::vector<Value*>& values) {
  return std::equal(types.begin(), types.end(), values.begin(), values.end(),
                    [](const TensorType& t, const Value* v) { return t.SameTensor(v->type); });
}

std::vector<TensorType> TypesOf(const std::vector<Value*>& values) {
  std::vector<TensorType> types;
  for (const Value* v : values) types.emplace_back(v->type.dtype, v->type.shape);
  return types;
}

}  // namespace

bool Rules::Alike(const Entry& entry, const Op& op) {
  return entry.def == op.def && SameTensors(entry.operands, op.operands) &&
         SameTensors(entry.results, op.results) && entry.attrs == op.attrs;
}

const ShardingRule& Rules::Of(const Op& op) {
  Hash hash;
  hash.Add(std::hash<const void*>()(op.def));
  for (const Value* v : op.operands) hash.Add(v->type);
  for (const Value* v : op.results) hash.Add(v->type);
  hash.Add(op.attrs);
  const Entry*& last = last_[hash.value()];
  if (!last || !Alike(*last, op)) {
    entries_.push_back(
        {op.def, op.attrs, TypesOf(op.operands), TypesOf(op.results), op.def->rule(op)});
    last = &entries_.back();
  }
  return last->rule;
}

}  // namespace shardc
