// What the definitions of ops that draw share (IsRandom(const Op&), ir/dropout.h).
#pragma once

#include <string_view>

#include "ir/dropout.h"
#include "ir/op_def.h"

namespace shardc {

void AddDrawAttrs(OpDef& def);
// The same, and a ratio.
void AddDropAttrs(OpDef& def, bool required);

// For OpDef::infer of an op that draws for a tensor of this shape. Its last operand is the step.
void CheckDraws(std::string_view op, const InferArgs& args, const Shape& drawn);

// That a tensor of this shape is a part of what "origin" and "whole" say.
void CheckPart(std::string_view op, const Attributes& attrs, const Shape& part);
// For OpDef::resized: the attributes on the part that begins at `origin` of what is a part itself.
Attributes AttributesOfDrawnPart(const Op& op, const Shape& part, const Shape& origin);

// OpDef::undropped of an op that is the same one without the step.
std::vector<Value*> WithoutStep(Builder& builder, const Op& op);

// For references: calls fn(offset in the view, place in the whole tensor) for each element of
// operand 0 that is no padding.
template <typename Fn>
void ForEachPlace(const KernelCall& call, Fn fn) {
  const DropoutPlaces places = PlacesOf(call);
  const auto rows = static_cast<int64_t>(places.rows.size());
  const int64_t width = rows == 0 ? 0 : call.in[0].num_elements() / rows;
  for (int64_t row = 0; row < rows; ++row) {
    if (places.rows[row] < 0) continue;
    for (const Run& run : places.columns) {
      for (int64_t j = 0; j < run.size; ++j) {
        fn(row * width + run.local + j, places.rows[row] + run.global + j);
      }
    }
  }
}

// For references: draws of one call, element by element.
class Draws {
 public:
  explicit Draws(const KernelCall& call);
  // What element `place` of the whole tensor is multiplied by.
  double Factor(int64_t place) const;
  // Its number in [0, 1).
  double Uniform(int64_t place) const;

 private:
  uint32_t Word(int64_t place) const;

  DropoutMask mask_;
  uint32_t step_;
};

}  // namespace shardc
