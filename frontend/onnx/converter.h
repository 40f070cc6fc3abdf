// What converts one ONNX node: a function per op type, in tables by family.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/onnx/chosen_rows.h"
#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::onnx_import {

// Advice where data would decide a shape.
inline constexpr char kDataDecides[] =
    "it decides shapes, which data must not, but for rows that a mask chooses, that are computed "
    "one "
    "by one and put back (y[mask] = f(x[mask])): compute all elements, with a mask (Where, "
    "OneHot). "
    "Of a mixture of experts of transformers 5, export after "
    "model.set_experts_implementation(\"batched_mm\")";

// What a QuantizeLinear made, before it became integers: floats with a gradient, from which the
// zero point (null: 0), as it broadcasts to them, was subtracted again.
struct Steps {
  Value* floats = nullptr;
  Value* zero = nullptr;
};

// One node, with its inputs already converted. Everything made through it folds: an op whose
// operands are all constants becomes a `constant` at once (integers checked for overflow), so shape
// arithmetic never reaches the graph.
class NodeContext : public OpMaker {
 public:
  virtual ~NodeContext() = default;

  virtual std::string_view op_type() const = 0;
  virtual int opset() const = 0;  // of the node's domain, as the model imports it

  virtual int num_inputs() const = 0;
  virtual int num_outputs() const = 0;
  bool has_input(int i) const { return i < num_inputs() && InputOrNull(i) != nullptr; }
  // Null when absent or left out ("").
  virtual Value* InputOrNull(int i) const = 0;
  // Fails with E1302 when absent.
  Value* input(int i) const;
  // Whether something reads output i.
  virtual bool OutputWanted(int i) const = 0;
  // Of the ONNX type that the op's inputs give it, or of this one.
  virtual void SetOutput(int i, Value* value) = 0;
  virtual void SetOutput(int i, Value* value, int64_t onnx_type) = 0;
  // A sequence of tensors, which is no value of the graph; of the ONNX type of input 0, or of this.
  virtual void SetSequence(int i, std::vector<Value*> elements) = 0;
  virtual void SetSequence(int i, std::vector<Value*> elements, int64_t onnx_type) = 0;
  virtual const std::vector<Value*>& Sequence(int i) const = 0;  // E1303 where input i is none
  // The ONNX type of an input that is held in a wider one (narrow.h); else 0.
  virtual int64_t NarrowType(int i) const = 0;

  // Attributes; a present one of the wrong kind fails with E1303.
  virtual bool HasAttr(std::string_view name) const = 0;
  virtual int64_t Int(std::string_view name, int64_t otherwise) const = 0;
  // Of an Int that means yes or no; another value than 1 or 0 fails with E1303: exporters and
  // runtimes read it differently.
  bool Flag(std::string_view name, bool otherwise) const;
  virtual double Float(std::string_view name, double otherwise) const = 0;  // a float32, exactly
  virtual std::string String(std::string_view name, std::string otherwise) const = 0;
  virtual std::optional<Ints> IntList(std::string_view name) const = 0;
  virtual std::optional<std::vector<double>> FloatList(std::string_view name) const = 0;
  virtual std::optional<std::vector<std::string>> StringList(std::string_view name) const = 0;
  virtual std::optional<HostTensor> Tensor(std::string_view name) const = 0;
  virtual int64_t TypeOfTensor(std::string_view name) const = 0;  // of its elements; 0 without it

  // The constant behind a value, or null.
  virtual const HostTensor* ConstantOf(Value* value) const = 0;
  // Input i as integers / as one number; fails with E1304 ("has to be known when compiling; it
  // depends on input 'x'") when it is not a constant. Those of doubles fail with E1306 where they
  // are integers that no double is.
  Ints ConstantInts(int i) const;
  double ConstantScalar(int i) const;
  int64_t ConstantInt(int i) const;
  std::vector<double> ConstantFloats(int i) const;

  // As Make, for ops with several results (not folded unless all operands are constants).
  virtual std::vector<Value*> MakeAll(std::string_view op, std::vector<Value*> operands,
                                      Attributes attrs = {}) = 0;
  // Of codes, so that a DequantizeLinear finds them.
  virtual void SetSteps(const Value* codes, Steps steps) = 0;
  virtual Steps StepsOf(const Value* codes) const = 0;  // none: {}
  // For what a node adds to the graph besides its results.
  virtual Builder& builder() = 0;
  // Marks of what is made by Make and MakeAll are kept; a converter that reads positions as numbers
  // sets those of its results.
  virtual ChosenRows& rows() = 0;

  // A Diagnostic whose `where` is the file, the node's name and its op.
  [[noreturn]] virtual void Fail(const char* id, const std::string& what,
                                 const std::string& fix = {}) const = 0;
};

using Converter = void (*)(NodeContext&);
using ConverterTable = std::map<std::string, Converter, std::less<>>;

// The tables by family; each adds "OpType" (default domain) or "domain::OpType".
void AddElementwiseConverters(ConverterTable& table);
// Shape, Reshape, Gather, Slice, Concat, Range, ...
void AddShapeConverters(ConverterTable& table);
// MatMul, Gemm, norms, Softmax, Gelu, Attention, RoPE, losses
void AddNeuralConverters(ConverterTable& table);
void AddReductionConverters(ConverterTable& table);

}  // namespace shardc::onnx_import
