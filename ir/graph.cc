#include "ir/graph.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/op_def.h"

namespace shardc {

std::string_view PhaseName(Phase phase) {
  constexpr std::string_view kNames[] = {"forward", "backward", "optimizer"};
  return kNames[static_cast<int>(phase)];
}

std::string_view Op::name() const { return def->name; }

namespace {
constexpr std::string_view kGradientPrefix = "grad.";
}  // namespace

std::string GradientName(std::string_view param) {
  return std::string(kGradientPrefix).append(param);
}

std::string_view ParamOfGradient(std::string_view output) {
  return output.starts_with(kGradientPrefix) ? output.substr(kGradientPrefix.size()) : "";
}

Outputs& Outputs::operator=(std::vector<Output> list) {
  for (const Output& o : list_) {
    if (o.value) o.value->as_outputs.clear();
  }
  list_.clear();
  by_name_.clear();
  for (Output& o : list) push_back(std::move(o));
  return *this;
}

void Outputs::push_back(Output output) {
  by_name_.emplace(output.name, list_.size());
  if (output.value) output.value->as_outputs.push_back(list_.size());
  list_.push_back(std::move(output));
}

void Outputs::insert(const_iterator before, Output output) {
  std::vector<Output> list = list_;
  list.insert(list.begin() + (before - begin()), std::move(output));
  *this = std::move(list);
}

void Outputs::erase(const_iterator output) {
  std::vector<Output> list = list_;
  list.erase(list.begin() + (output - begin()));
  *this = std::move(list);
}

void Outputs::Set(const_iterator output, Value* value) {
  const auto at = static_cast<size_t>(output - begin());
  if (list_[at].value) std::erase(list_[at].value->as_outputs, at);
  if (value) value->as_outputs.push_back(at);
  list_[at].value = value;
}

void Outputs::Replace(Value* from, Value* to) {
  for (size_t at : std::exchange(from->as_outputs, {})) {
    list_[at].value = to;
    to->as_outputs.push_back(at);
  }
}

Outputs::const_iterator Outputs::Find(std::string_view name) const {
  auto it = by_name_.find(name);
  return it == by_name_.end() ? end() : begin() + static_cast<std::ptrdiff_t>(it->second);
}

Value* Graph::AddInput(std::string input_name, TensorType type) {
  auto value = std::make_unique<Value>();
  value->type = std::move(type);
  value->index = static_cast<int>(inputs_.size());
  value->name = std::move(input_name);
  inputs_.push_back(std::move(value));
  return inputs_.back().get();
}

Op* Graph::AddOp(const OpDef& def, std::vector<Value*> operands,
                 std::vector<TensorType> result_types, Attributes attrs, Op* before) {
  auto owned = std::make_unique<Op>();
  Op* op = owned.get();
  op->def = &def;
  op->attrs = std::move(attrs);
  op->operands = std::move(operands);
  for (Value* v : op->operands) {
    SHARDC_CHECK(v != nullptr, def.name);
    v->users.push_back(op);
  }
  op->results.reserve(result_types.size());
  for (TensorType& type : result_types) {
    auto value = std::make_unique<Value>();
    value->type = std::move(type);
    value->producer = op;
    value->index = static_cast<int>(op->results.size());
    op->results.push_back(value.get());
    results_.push_back(std::move(value));
  }
  op->position_ = ops_.insert(before ? before->position_ : ops_.end(), std::move(owned));
  return op;
}

Op* Graph::AddOp(const OpDef& def, std::vector<Value*> operands,
                 std::vector<TensorType> result_types, Attributes attrs, Op* before,
                 const Op& like) {
  Op* op = AddOp(def, std::move(operands), std::move(result_types), std::move(attrs), before);
  op->phase = like.phase;
  op->BelongWith(like);
  return op;
}

namespace {
void RemoveOneUse(Value* value, Op* op) {
  auto it = std::find(value->users.begin(), value->users.end(), op);
  SHARDC_CHECK(it != value->users.end());
  value->users.erase(it);
}
}  // namespace

void Graph::SetOperand(Op* op, int index, Value* value) {
  RemoveOneUse(op->operands[index], op);
  op->operands[index] = value;
  value->users.push_back(op);
}

void Graph::AppendOperand(Op* op, Value* value) {
  op->operands.push_back(value);
  value->users.push_back(op);
}

void Graph::ReplaceAllUses(Value* from, Value* to) {
  if (from == to) return;
  for (Op* user : from->users) {
    for (Value*& operand : user->operands) {
      if (operand == from) operand = to;
    }
  }
  to->users.insert(to->users.end(), from->users.begin(), from->users.end());
  from->users.clear();
  outputs.Replace(from, to);
}

void Graph::ReplaceUses(Op* user, const Value* from, Value* to) {
  for (size_t i = 0; i < user->operands.size(); ++i) {
    if (user->operands[i] == from) SetOperand(user, static_cast<int>(i), to);
  }
}

bool Graph::IsOutput(const Value* value) const { return !value->as_outputs.empty(); }

bool Graph::HasUses(const Value* value) const { return !value->users.empty() || IsOutput(value); }

Op* Graph::OnlyUser(const Value* value) const {
  return value->users.size() == 1 && !IsOutput(value) ? value->users[0] : nullptr;
}

void Graph::Erase(Op* op) {
  for (Value* r : op->results) {
    SHARDC_CHECK(r->users.empty(), op->name());
    // Values stay in results_ until the graph dies: erasing them would cost a search.
    r->producer = nullptr;
  }
  for (Value* v : op->operands) RemoveOneUse(v, op);
  ops_.erase(op->position_);
}

void Graph::MoveBefore(Op* op, Op* before) {
  ops_.splice(before ? before->position_ : ops_.end(), ops_, op->position_);
}

Op* Graph::Next(const Op* op) const {
  auto it = op->position_;
  ++it;
  return it == ops_.end() ? nullptr : it->get();
}

Op* Graph::Previous(const Op* op) const {
  auto it = op->position_;
  return it == ops_.begin() ? nullptr : std::prev(it)->get();
}

int Graph::NumberOps() {
  int n = 0;
  for (const auto& op : ops_) op->id = n++;
  return n;
}

int Graph::EraseDead() {
  std::set<std::string_view> updated;
  for (const auto& op : ops_) {
    if (op->name() == "update") updated.insert(op->attrs.String("name"));
  }
  int erased = 0;
  for (auto it = ops_.end(); it != ops_.begin();) {
    Op* op = (--it)->get();
    bool dead =
        !op->def->side_effect && !(op->def->is_state && updated.contains(op->attrs.String("name")));
    for (const Value* r : op->results) dead = dead && !HasUses(r);
    if (!dead) continue;
    ++it;
    Erase(op);
    ++erased;
  }
  return erased;
}

Op* Graph::FindState(std::string_view state) const {
  for (const auto& op : ops_) {
    if (op->def->is_state && op->attrs.String("name") == state) return op.get();
  }
  return nullptr;
}

std::vector<Op*> Graph::Params() const {
  std::vector<Op*> params;
  for (const auto& op : ops_) {
    if (op->name() == "param") params.push_back(op.get());
  }
  return params;
}

Value* Graph::FindInput(std::string_view input) const {
  for (const auto& v : inputs_) {
    if (v->name == input) return v.get();
  }
  return nullptr;
}

Value* Graph::FindOutput(std::string_view output) const {
  auto it = outputs.Find(output);
  return it == outputs.end() ? nullptr : it->value;
}

}  // namespace shardc
