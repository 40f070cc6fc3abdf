// Runs a lowered graph on all ranks of its mesh at once, with OpDef::reference per rank: the oracle
// for sharding rules. Collectives are done by their meaning (through the whole value), not by
// messages.
//
// It is a hostile machine: what an op does not write holds NaN, and so does every element of
// padding that the op does not promise to keep zero. A promise that is broken is an error.
#pragma once

#include <map>
#include <vector>

#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::testing {

// One value: what each rank holds, in the physical local shape.
using Shards = std::vector<HostTensor>;
using ShardedValues = std::map<const Value*, Shards>;

// Cuts a whole tensor as `type` says. Over partial axes the ranks get terms that add up to it (of
// which the largest is it). The padding is zero.
Shards Distribute(const HostTensor& whole, const TensorType& type, const Mesh& mesh);

// The whole tensor. Throws std::runtime_error where ranks that hold the same elements disagree.
HostTensor Assemble(const Shards& shards, const TensorType& type, const Mesh& mesh);

// `given` holds whole tensors for the inputs. Returns the whole outputs in order. Throws what
// references throw, and std::runtime_error where a promise about padding is broken.
std::vector<HostTensor> InterpretSpmd(const Graph& graph,
                                      const std::map<const Value*, HostTensor>& given);

}  // namespace shardc::testing
