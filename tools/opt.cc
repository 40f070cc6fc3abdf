#include <iostream>
#include <memory>

#include "ir/text.h"
#include "ir/verifier.h"
#include "passes/apply_spec.h"
#include "passes/pipeline.h"
#include "tools/files.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

struct OptOptions {
  std::string file, spec;
  std::vector<std::string> passes;
  bool verify_each = false;
};

void RunOpt(const OptOptions& o) {
  std::string name = o.file == "-" ? "<stdin>" : o.file;
  std::string text =
      o.file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : ReadFile(o.file);
  Graph graph = ParseGraph(text, name);
  VerifyGraph(graph);
  if (!o.spec.empty()) ApplySpec(graph, LoadSpec(o.spec));
  for (const std::string& pass : o.passes) {
    RunPass(graph, pass);
    if (o.verify_each) VerifyGraph(graph);
  }
  std::cout << PrintGraph(graph);
}

}  // namespace

void AddOptVerb(CLI::App& app) {
  auto o = std::make_shared<OptOptions>();
  CLI::App* verb = app.add_subcommand("opt", "run passes on a graph in text form, text to text");
  verb->add_option("file", o->file, ".shardc file, or - for standard input")->required();
  verb->add_option("--passes", o->passes, "passes in order: " + Join(PassNames(), ", "))
      ->delimiter(',');
  verb->add_option("--spec", o->spec, "apply this spec first");
  verb->add_flag("--verify-each", o->verify_each, "verify the graph after every pass");
  verb->callback([o] { RunOpt(*o); });
}

}  // namespace shardc
