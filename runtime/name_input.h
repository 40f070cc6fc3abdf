// Which input of a program an id came from.
#pragma once

#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/program.h"

namespace shardc {

// The operand of the instruction that would hold indices, if it has some: its last one of integers,
// for what is looked up may be integers too. -1: there is none.
int IndicesOf(const Program& program, const Instruction& instruction);

// The input of the program whose values the buffer has before the instruction, passed on by ops
// that give integers of the same type; empty where it is no input's, or another stage has passed it
// on. `through`, if there: those ops, the input's first.
std::string InputBehind(const Program& program, size_t instruction, int buffer,
                        std::vector<std::string>* through = nullptr);

// An instruction's error of an id that is out of range (E4003), where the instruction is, and with
// the input that the id comes from and the ops that changed its place there.
Diagnostic NameInput(const Program& program, size_t instruction, const Diagnostic& error);

// An instruction's error of integers that have no such result (E1102: an overflow, E1103: a
// division by zero). When it runs they are the user's and not the model's: E4010, where the
// instruction is, with the inputs that they come from.
Diagnostic NameIntegers(const Program& program, size_t instruction, const Diagnostic& error);

}  // namespace shardc
