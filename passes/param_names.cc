#include "passes/param_names.h"

#include <algorithm>

#include "ir/diagnostic.h"
#include "specs/spec.h"

namespace shardc {
namespace {

bool MatchesAny(const Op& param, const std::vector<std::string>& globs) {
  const std::vector<std::string> names = NamesOf(param);
  return std::any_of(globs.begin(), globs.end(), [&](const std::string& glob) {
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& name) { return GlobMatch(glob, name); });
  });
}

void CheckMatches(const Graph& graph, const char* flag, const std::vector<std::string>& globs) {
  std::vector<std::string> names;
  std::string renamed;
  for (const Op* param : graph.Params()) {
    for (std::string& name : NamesOf(*param)) names.push_back(std::move(name));
    const Strings sources = param->attrs.StringList("source_aliases", {});
    const std::string& own = param->attrs.String("transpose_of", "");
    const bool known = std::ranges::all_of(sources, [&](const auto& n) { return n == own; });
    if (renamed.empty() && !known) {
      renamed = StrCat("; the exporter computed '", param->attrs.String("name"),
                       "' from a parameter: compile with --module FILE, the module's own "
                       "parameters, or export with optimize=False (dynamo) or "
                       "do_constant_folding=False (TorchScript)");
    }
  }
  for (const std::string& glob : globs) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& n) { return GlobMatch(glob, n); }))
      continue;
    throw Diagnostic("E6105", ExitCode::kUsage, flag, StrCat("no parameter matches '", glob, "'"),
                     NearestNames(glob, names) + renamed);
  }
}

}  // namespace

std::vector<std::string> NamesOf(const Op& param) {
  std::vector<std::string> names = {param.attrs.String("name")};
  const Strings aliases = param.attrs.StringList("aliases", {});
  names.insert(names.end(), aliases.begin(), aliases.end());
  return names;
}

std::string NearestNames(const std::string& match, const std::vector<std::string>& names) {
  // Compare without the stars: what is left is what the user typed of a name.
  std::string bare;
  for (char c : match) {
    if (c != '*' && c != '?') bare += c;
  }
  std::vector<std::pair<int, std::string>> near;
  for (const std::string& n : names) {
    int best = EditDistance(bare, n);
    for (size_t at = 0; at + bare.size() <= n.size(); ++at) {
      best = std::min(best, EditDistance(bare, n.substr(at, bare.size())));
    }
    near.emplace_back(best, n);
  }
  std::sort(near.begin(), near.end());
  std::string text;
  for (size_t i = 0; i < near.size() && i < 3; ++i) {
    text += (i ? ", " : "the nearest names: ") + near[i].second;
  }
  return text;
}

void FreezeParams(Graph& graph, const std::vector<std::string>& freeze,
                  const std::vector<std::string>& train) {
  CheckMatches(graph, "--freeze", freeze);
  CheckMatches(graph, "--train-only", train);
  if (freeze.empty() && train.empty()) return;
  int64_t frozen = 0, all = 0;
  for (Op* param : graph.Params()) {
    ++all;
    if (!MatchesAny(*param, freeze) && (train.empty() || MatchesAny(*param, train))) continue;
    param->attrs.Set("trained", false);
    ++frozen;
  }
  graph.notes.push_back(StrCat(frozen, " of ", all, " parameters are not trained"));
}

}  // namespace shardc
