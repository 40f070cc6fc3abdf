// Golden tests in the text form: a graph in, passes, CHECK lines out.
//
//   CHECK: text       some line after the last match holds the text
//   CHECK-NEXT: text  the line after the last match holds it
//   CHECK-NOT: text   no line between the last match and the next (or the end) holds it
//
// Text is compared literally, but for `%_`, which stands for the name of any value. Blanks at both
// ends are ignored.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "ir/diagnostic.h"
#include "ir/graph.h"

namespace shardc::testing {

// Adds a failure, with the whole text, where the lines of `checks` do not hold.
void CheckText(const std::string& text, std::string_view checks);

// The graph of the text, verified.
Graph ParseAndVerify(std::string_view text);

// Runs the passes ("canonicalize,fuse") by name.
void RunPasses(Graph& graph, std::string_view passes);

// Prints the graph and checks the print; verifies the graph, `closed`: with every op's shardings.
void CheckGraph(const Graph& graph, std::string_view checks, bool closed = false);

// All of the above on one text. Shardings are verified as closed when "insert_reshards" has run.
void CheckPasses(std::string_view text, std::string_view passes, std::string_view checks);

}  // namespace shardc::testing
