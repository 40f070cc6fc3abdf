// The inputs of a run: arrays from files, or random ones.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/host_tensor.h"
#include "ir/program.h"
#include "runtime/session.h"

namespace shardc {

// The arrays that --input gives: "input_ids=@ids.npy" or "x=@file.safetensors:name" (":name" may be
// left out when it is the input's). An array with one more dim in front than the plan's input holds
// its values in so many steps, one after the other, and then again from the first.
class GivenInputs {
 public:
  // Throws Diagnostic E4001 for text of another form, unknown inputs and what is given twice, E4002
  // for arrays that do not fit or hold another number of steps than others, and E5xxx for files
  // that cannot be read. `shifts_labels`: the loss compares position i with label i + 1. Then
  // labels that are not given are the input_ids, where these are given and of the same type, with a
  // note on stderr.
  GivenInputs(const std::vector<std::string>& texts, const Session& session, bool shifts_labels);
  // Sets those that differ from the step before's; `step` counts from 0 and goes up by one.
  void Set(int64_t step, Session& session) const;
  // That the arrays hold; 1 where every step has the same.
  int64_t steps() const { return steps_; }

 private:
  struct Given {
    std::string name;
    std::shared_ptr<const HostTensor> value;
    int64_t steps = 0;  // 0: the same in every step
  };
  std::vector<Given> given_;
  int64_t steps_ = 1;
};

// The file of such a text; empty for text of another form.
std::string FileOfInput(const std::string& text);

// For every integer input the number of values it may take: rows of the tables it indexes, the
// vocabulary of the logits it labels, on any stage; 2 when neither is found.
int64_t IndexLimit(std::span<const Program* const> stages, const std::string& input);

// Sets all inputs that are missing: integers uniform below their limit, floats uniform in [0, 1).
void FillRandomInputs(std::span<const Program* const> stages, uint64_t seed, Session& session);

}  // namespace shardc
