// The inputs of a run: arrays from files, or random ones.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ir/host_tensor.h"
#include "ir/program.h"
#include "runtime/session.h"

namespace shardc {

// "input_ids=@ids.npy" or "x=@file.safetensors:name" (":name" may be left out when it is the
// input's). Throws Diagnostic E4001 for text of another form, E5xxx for files that cannot be read.
struct NamedTensor {
  std::string name;
  HostTensor value;
};
NamedTensor ReadInput(const std::string& text);

// For every integer input the number of values it may take: rows of the tables it indexes, the
// vocabulary of the logits it labels, on any stage; 2 when neither is found.
int64_t IndexLimit(std::span<const Program* const> stages, const std::string& input);

// Where the plan has an input `labels` that is not given, and an input_ids of the same type is:
// labels = input_ids (what a next-token loss wants; it shifts them itself), with a note on stderr.
void DefaultLabels(const std::vector<NamedTensor>& given, Session& session);

// Sets all inputs that are missing: integers uniform below their limit, floats uniform in [0, 1).
void FillRandomInputs(std::span<const Program* const> stages, uint64_t seed, Session& session);

}  // namespace shardc
