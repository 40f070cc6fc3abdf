// What an exporter made of parameters, and the module's own beside it.
#pragma once

#include <map>
#include <set>
#include <string>

#include "frontend/import.h"
#include "frontend/onnx/element_functions.h"
#include "ir/graph.h"

namespace shardc::onnx_import {

// What the exporter wrote down of the module's parameters.
struct WrittenDown {
  const std::set<std::string>& listed;
  const std::map<std::string, std::string>& taken_from;  // as Parameters has them
  const std::map<std::string, ComputedFrom>& made_by;
  const std::set<std::string>& of_functions;
};

// Of every parameter of the graph whose data are those of one of the module's - transposed (the
// last two dims), with other dims of size 1, one added to each element, rows of its last dim (along
// any dim, in any order) or of a vector repeated, elements of the tensor that it was `taken_from`,
// a function of the one that it was `made_by` (ElementFunctions; to the accuracy of f32) or by
// which it was multiplied, other dims or numbers (AffineOf; not of those that are `of_functions`,
// and where the exporter says nothing only of a program's numbers, IsOfProgram), or a vector put
// together of pieces of vectors and zeros -, the module's tensor becomes the parameter, under its
// name, and an op makes of it what was there: the graph of an export that keeps all names. Equal
// tensors of the module are one parameter, the others' names its aliases, and so are names that the
// exporter `listed` and the module's file lacks. Data of one or two values (a new module's) say
// nothing, but which element of that tensor it is: there the module of the op that reads it, or an
// alias, has to name the tensor, for each use but one, which then has the parameter's own name; or,
// of a bias that a module ties to that of one of its parts, the name of the only tensor of a module
// around it that is nowhere else. What a function made of several that are equal is of the module
// that reads it, too. Notes what was found, what was not, and what was only guessed. Throws
// Diagnostic E1403 where a tensor of the module has the name and the shape of a parameter and
// begins with other numbers, or none of its tensors is found. What has its name is not compared
// further, and keeps the numbers of the model's file.
void RestoreParams(Graph& graph, const ModuleParams& module, const WrittenDown& written);

}  // namespace shardc::onnx_import
