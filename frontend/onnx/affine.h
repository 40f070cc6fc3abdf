// Tensors that exporters computed from others by a factor and a summand.
#pragma once

#include <optional>

#include "frontend/onnx/origins.h"

namespace shardc::onnx_import {

// How `made` is, element by element and to the accuracy of f32, `of` times a number plus another
// one; nothing where it is not, or where that is not certain: of halves, of elements that differ
// too little, and of the same ones in the same dims but for rounding. The two have as many
// elements, in the same order whatever their dims; `turned`: once those of `made` have the last two
// dims in each other's place. `times_only`: no other summand than 0 will do, and the elements may
// be equal.
std::optional<Affine> AffineOf(const Squeezed& made, const Squeezed& of, bool turned,
                               bool times_only);

// Whether both numbers are of up to four digits, or the inverse, the square or the root of one that
// is: a program's. What is computed of tensors, as their norm, is none.
bool IsOfProgram(const Affine& affine);

}  // namespace shardc::onnx_import
