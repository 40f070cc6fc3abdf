// The SSA graph: ops in topological order, values with types, persistent state by name.
#pragma once

#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attributes.h"
#include "ir/mesh.h"
#include "ir/sharding.h"

namespace shardc {

struct OpDef;
struct Op;
class Graph;

enum class Phase : uint8_t { kForward, kBackward, kOptimizer };
std::string_view PhaseName(Phase phase);

struct Value {
  TensorType type;
  Op* producer = nullptr;  // null: an input of the graph
  int index = 0;           // which result of producer, or which input
  int id = -1;             // for the pass that runs, to index its tables by
  std::string name;        // a hint for printing; inputs: the input's name
  std::vector<Op*> users;  // one entry per use; kept by Graph
  // Per mesh axis: the step of Graph::provenance that decided this value's placement, or -1. May be
  // shorter than the mesh.
  std::vector<int> provenance;
  std::vector<size_t> as_outputs;  // which outputs of the graph it is; kept by Outputs
};

// Where an op belongs: in the model, and in the schedule of a step.
struct Belonging {
  std::string site;       // "h.0.mlp.c_fc", an ONNX node's name; may be empty
  int stage = -1;         // of a pipeline; -1: none is given
  int virtual_stage = 0;  // which of the stage's runs of layers, in an interleaved pipeline
  int microbatch = -1;    // -1: none; the op is there once for all

  // From here on this belongs where `like` does: how an op is made in another's place.
  void BelongWith(const Belonging& like) { *this = like; }
  // Whether one op may be made of this and another: on the same ranks, at the same time.
  bool RunsWith(const Belonging& other) const {
    return stage == other.stage && microbatch == other.microbatch &&
           (microbatch < 0 || virtual_stage == other.virtual_stage);
  }
};

struct Op : Belonging {
  const OpDef* def = nullptr;
  Attributes attrs;
  std::vector<Value*> operands;
  std::vector<Value*> results;
  Phase phase = Phase::kForward;
  int id = -1;   // for the pass that runs, to index its tables by
  int line = 0;  // of the text that it is from, if it is from one

  std::string_view name() const;
  Value* result(int i = 0) const { return results[i]; }
  const TensorType& in(int i) const { return operands[i]->type; }
  const TensorType& out(int i = 0) const { return results[i]->type; }

 private:
  friend class Graph;
  std::list<std::unique_ptr<Op>>::iterator position_;
};

// Where the elements of a parameter come from, read in pieces so that a model need not fit in
// memory twice.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Writes the box [offset, offset + size) of the row-major tensor to `out`, row-major, in the
  // parameter's dtype. Throws Diagnostic E5xxx if the data cannot be read.
  virtual void Read(const Shape& offset, const Shape& size, void* out) const = 0;
};

struct Output {
  std::string name;
  Value* value = nullptr;
};

// The outputs of a graph in order. There may be one for every parameter: values know which they
// are, and names are looked up.
class Outputs {
 public:
  using const_iterator = std::vector<Output>::const_iterator;

  Outputs() = default;
  Outputs& operator=(std::vector<Output> list);

  const_iterator begin() const { return list_.begin(); }
  const_iterator end() const { return list_.end(); }
  size_t size() const { return list_.size(); }
  bool empty() const { return list_.empty(); }
  const Output& operator[](size_t i) const { return list_[i]; }
  const Output& back() const { return list_.back(); }

  void push_back(Output output);
  void insert(const_iterator before, Output output);
  void erase(const_iterator output);
  void clear() { *this = std::vector<Output>(); }
  // Another value for one output, or for all that are `from`.
  void Set(const_iterator output, Value* value);
  void Replace(Value* from, Value* to);
  // The first of that name, or end().
  const_iterator Find(std::string_view name) const;

 private:
  friend class Graph;  // which moves with its values: they keep what they know
  Outputs(Outputs&&) = default;
  Outputs& operator=(Outputs&&) = default;

  std::vector<Output> list_;
  std::map<std::string, size_t, std::less<>> by_name_;
};

// The name of the output that is the gradient of a parameter: "grad.h.0.mlp.c_fc.weight".
std::string GradientName(std::string_view param);
// The parameter of which an output of this name is the gradient; empty where it is none.
std::string_view ParamOfGradient(std::string_view output);

// One link of the chain that explains a sharding: "spec megatron.textproto:7: role MLP_UP ...".
struct ProvenanceStep {
  int parent = -1;
  std::string text;
  int depth = 0;  // how many steps come before it in its chain
  int third = 0;  // the third step of its chain, where there are as many
};

class Graph {
 public:
  explicit Graph(std::string name = "main") : name(std::move(name)) {}
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;

  std::string name;
  Mesh mesh;
  // The mesh axis whose coordinate is the stage that a rank runs; empty: no pipeline.
  std::string pipeline_axis;
  Outputs outputs;
  // Sources of `param` and `state` ops by their name; a missing one has no data.
  std::map<std::string, std::shared_ptr<const TensorSource>, std::less<>> sources;
  std::vector<ProvenanceStep> provenance;
  std::vector<std::string> notes;  // what the importer did that a user should know

  using OpList = std::list<std::unique_ptr<Op>>;
  const OpList& ops() const { return ops_; }
  size_t num_ops() const { return ops_.size(); }
  const std::vector<std::unique_ptr<Value>>& inputs() const { return inputs_; }

  Value* AddInput(std::string name, TensorType type);

  // Makes an op with results of the given types before `before` (null: at the end). No inference
  // and no checks: Builder and the parser do these.
  Op* AddOp(const OpDef& def, std::vector<Value*> operands, std::vector<TensorType> result_types,
            Attributes attrs = {}, Op* before = nullptr);
  // Of the phase of `like`, and belonging with it.
  Op* AddOp(const OpDef& def, std::vector<Value*> operands, std::vector<TensorType> result_types,
            Attributes attrs, Op* before, const Op& like);
  void SetOperand(Op* op, int index, Value* value);
  void AppendOperand(Op* op, Value* value);
  // All uses, outputs of the graph included.
  void ReplaceAllUses(Value* from, Value* to);
  // Those by one op.
  void ReplaceUses(Op* user, const Value* from, Value* to);
  bool HasUses(const Value* value) const;  // by ops or as an output
  bool IsOutput(const Value* value) const;
  // The op that reads the value, once, where nothing else does and it is no output; or null.
  Op* OnlyUser(const Value* value) const;
  // The op's results must be unused.
  void Erase(Op* op);
  // Moves op before `before` (null: to the end).
  void MoveBefore(Op* op, Op* before);
  // The op after `op` in order, or null.
  Op* Next(const Op* op) const;
  // The op before `op` in order, or null.
  Op* Previous(const Op* op) const;
  // Sets Op::id to the place in the order. Returns how many ops there are.
  int NumberOps();
  // Erases unused ops without side effects, but no state that is updated. Returns how many.
  int EraseDead();

  // The `param` or `state` op of that name, or null.
  Op* FindState(std::string_view name) const;
  // All `param` ops in order.
  std::vector<Op*> Params() const;
  Value* FindInput(std::string_view name) const;
  Value* FindOutput(std::string_view name) const;

 private:
  OpList ops_;
  std::vector<std::unique_ptr<Value>> inputs_;
  std::vector<std::unique_ptr<Value>> results_;
};

}  // namespace shardc
