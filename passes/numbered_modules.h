// The members of numbered lists of modules, among the steps of a model.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace shardc {

// Stretches [from, to) of the steps that are one member each of a numbered list: "h.3" and "h.4",
// "block_1" and "block_2". `modules` says in which module each step is ("h.3.mlp"), and `fits` what
// may be a stretch. A list has two members or more that fit. The outermost lists are taken; inside
// a member that does not fit, or is alone, those further in.
std::vector<std::pair<size_t, size_t>> NumberedStretches(
    const std::vector<std::string>& modules, const std::function<bool(size_t, size_t)>& fits);

}  // namespace shardc
