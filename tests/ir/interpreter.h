// Evaluates graphs and single ops with OpDef::reference, on one rank: the oracle of tests.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/graph.h"
#include "ir/host_tensor.h"
#include "ir/kernel_call.h"
#include "ir/op_def.h"

namespace shardc::testing {

using Values = std::map<const Value*, HostTensor>;

// A view of the whole tensor. The tensor must outlive it; a kernel may write only to results.
TensorView View(const HostTensor& tensor);

// Evaluates every op in order whose results are not given. `given` must hold the graph's inputs,
// params and states; ops without results (update) are passed over, and what moves data between
// ranks has nowhere to move it. Throws what the references throw.
Values Interpret(const Graph& graph, Values given);

// The graph's inputs and states, as `Interpret` takes them, from data by name; states without data
// are zero.
Values ByName(const Graph& graph, const std::map<std::string, HostTensor>& data);

// Runs one op on whole operands.
std::vector<HostTensor> RunOp(std::string_view op, std::span<const HostTensor> operands,
                              const Attributes& attrs);

// sum over elements of a * b.
double Dot(const HostTensor& a, const HostTensor& b);
// The largest |a - b| / max(1, |b|); infinity where one is NaN and the other not, or shapes or
// dtypes differ. Equal infinities differ by 0.
double MaxError(const HostTensor& a, const HostTensor& b);

}  // namespace shardc::testing
