// What in a graph the rules of a spec are about.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "specs/spec.h"

namespace shardc {

// Whether the rule is for the parameter, by its role, part and names.
bool Matches(const SpecRule& rule, const Op& param);
// What has a name of a parameter: it, its transpose, or what an exporter made it of.
enum class NameOf : uint8_t { kSame, kTranspose, kUnknown };
// The first of these that the rule matches by name.
NameOf MatchedBy(const SpecRule& rule, const Op& param);

// The ops that use a parameter, maybe in another order or type, or in pieces. Of a table a piece
// is what is looked up.
std::vector<const Op*> UsersOf(const Value* param);
// The result of the op, and of the bias that follows it.
Value* WithBias(const Graph& graph, const Op* op);

// The values that are made in a module of such a name and used outside of it.
std::vector<Value*> ValuesOfModules(const Graph& graph, const std::string& match);
// All modules that ops are in, and those that these are in: "a.b.c", "a.b" and "a".
std::vector<std::string> ModulesOf(const Graph& graph);
// What weights of the role make, with their biases.
std::vector<Value*> ValuesOfRole(const Graph& graph, const std::string& role);

}  // namespace shardc
