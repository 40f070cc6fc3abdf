// The members of numbered lists of modules, among the steps of a model.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace shardc {

struct NumberedStretch {
  size_t from, to;  // of the steps, without `to`
  size_t members;   // of its list, that are stretches
};

// Stretches of the steps that are one member each of a numbered list: "h.3" and "h.4",
// "block_1" and "block_2". `modules` says in which module each step is ("h.3.mlp"), and `fits` what
// may be a stretch. A list has two members or more that fit. The outermost lists are taken; inside
// a member that does not fit, or is alone, those further in.
std::vector<NumberedStretch> NumberedStretches(const std::vector<std::string>& modules,
                                               const std::function<bool(size_t, size_t)>& fits);

}  // namespace shardc
