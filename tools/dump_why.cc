#include <algorithm>
#include <cctype>
#include <cstdio>

#include "ir/diagnostic.h"
#include "passes/param_names.h"
#include "specs/spec.h"
#include "tools/dump.h"

namespace shardc {
namespace {

std::vector<std::string> NamesOf(const ManifestState& s) {
  std::vector<std::string> names = {s.name};
  if (!s.piece_of.empty()) names.push_back(s.piece_of);
  names.insert(names.end(), s.aliases.begin(), s.aliases.end());
  return names;
}

bool OneParam(const std::vector<const ManifestState*>& states) {
  return states.size() == 1 || (!states.empty() && !states[0]->piece_of.empty() &&
                                std::all_of(states.begin(), states.end(), [&](auto* s) {
                                  return s->piece_of == states[0]->piece_of;
                                }));
}

// By a name, or by the end of one from a dot on when that fits a single parameter; its pieces where
// it is kept in several.
std::vector<const ManifestState*> FindParam(const Manifest& manifest, const std::string& name) {
  std::vector<std::string> names;
  std::vector<const ManifestState*> by_name, by_end;
  for (const ManifestState& s : manifest.states) {
    if (!s.is_param) continue;
    bool is = false, ends = false;
    for (std::string& n : NamesOf(s)) {
      is |= n == name;
      ends |= n.ends_with("." + name);
      names.push_back(std::move(n));
    }
    if (is) by_name.push_back(&s);
    if (ends) by_end.push_back(&s);
  }
  if (OneParam(by_name)) return by_name;
  if (!by_name.empty()) return {by_name[0]};
  if (OneParam(by_end)) return by_end;
  // A part of a name is what the user remembers of it.
  std::vector<std::string> with_it;
  for (const std::string& n : names) {
    if (n.find(name) != std::string::npos) with_it.push_back(n);
  }
  if (with_it.size() > 3) with_it.resize(3);
  const bool glob = name.find_first_of("*?") != std::string::npos;
  std::string fix = glob ? NearestNames(name, names) : DidYouMean(name, names);
  if (!with_it.empty()) fix = "names with it: " + Join(with_it, ", ");
  for (size_t i = 0; i < by_end.size() && i < 3; ++i) {
    fix = (i ? fix + ", " : "say which: ") + by_end[i]->name;
  }
  if (fix.empty()) fix = "their names are in the params of dump --json";
  throw Diagnostic("E6107", ExitCode::kUsage, "--why " + name,
                   glob             ? "matches no parameter of the plan"
                   : by_end.empty() ? "the plan has no parameter of that name"
                                    : "several parameters end in that name",
                   fix);
}

// Those that it matches, the pieces of each together; empty where it is no glob.
std::vector<std::vector<const ManifestState*>> MatchingParams(const Manifest& manifest,
                                                              const std::string& glob) {
  std::vector<std::vector<const ManifestState*>> params;
  if (glob.find_first_of("*?") == std::string::npos) return params;
  for (const ManifestState& s : manifest.states) {
    const std::vector<std::string> names = NamesOf(s);
    if (!s.is_param || std::none_of(names.begin(), names.end(), [&](const std::string& name) {
          return GlobMatch(glob, name);
        })) {
      continue;
    }
    if (!s.piece_of.empty() && !params.empty() && params.back()[0]->piece_of == s.piece_of) {
      params.back().push_back(&s);
    } else {
      params.push_back({&s});
    }
  }
  return params;
}

// Whether the text has the name as a whole, not as a part of a longer one.
bool Mentions(const std::string& text, const std::string& name) {
  auto in_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '.' || c == '/';
  };
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1)) {
    size_t end = at + name.size();
    if ((at == 0 || !in_name(text[at - 1])) && (end == text.size() || !in_name(text[end]))) {
      return true;
    }
  }
  return false;
}

bool CausedBy(const Collective& c, const ManifestState& param) {
  return std::any_of(c.why.begin(), c.why.end(), [&](const std::string& step) {
    return Mentions(step, param.piece_of.empty() ? param.name : param.piece_of);
  });
}

void PrintChain(const std::vector<std::string>& why, const char* indent) {
  for (const std::string& step : why) std::printf("%s%s\n", indent, step.c_str());
}

void PrintUse(const Mesh& mesh, const CollectiveUse& use) {
  const Collective& c = *use.collective;
  const std::string& site = use.instruction->site;
  std::printf("  #%d %s %s over %s of %s", c.id,
              std::string(PhaseName(use.instruction->phase)).c_str(),
              std::string(CollectiveKindName(c.kind)).c_str(),
              Join(mesh.Names(c.axes), ",").c_str(), std::string(DTypeName(c.dtype)).c_str());
  for (const Shape& shape : use.shapes) std::printf(" %s", ShapeToString(shape).c_str());
  std::printf(", %lld bytes%s%s\n", static_cast<long long>(use.bytes), site.empty() ? "" : ", at ",
              site.c_str());
  PrintChain(c.why, "      ");
}

void PrintSharding(const ManifestState& param) {
  std::printf("%s", param.name.c_str());
  if (!param.aliases.empty()) std::printf(" (also %s)", Join(param.aliases, ", ").c_str());
  std::printf("%s%s: %s%s, %s on %s\n", param.role.empty() ? "" : ", ", param.role.c_str(),
              std::string(DTypeName(param.dtype)).c_str(), param.layout.c_str(),
              ShapeToString(param.local_shape).c_str(),
              param.stages.empty() ? "every rank" : "each of its ranks");
  if (!param.stages.empty()) {
    std::printf("on stage %s of the pipeline\n", Join(param.stages, ", ").c_str());
  }
  if (param.why.empty()) {
    std::printf("nothing cuts it: it is whole on every rank\n");
  } else {
    std::printf("cut because of\n");
    PrintChain(param.why, "  ");
  }
}

void PrintParam(const Mesh& mesh, const std::vector<CollectiveUse>& uses,
                const std::vector<const ManifestState*>& parts) {
  for (const ManifestState* part : parts) PrintSharding(*part);
  size_t count = 0;
  for (const CollectiveUse& use : uses) {
    if (!CausedBy(*use.collective, *parts[0])) continue;
    if (count++ == 0) std::printf("that causes\n");
    PrintUse(mesh, use);
  }
  if (count == 0) std::printf("that causes no collective\n");
}

}  // namespace

void PrintWhy(const Plan& plan, const std::string& name) {
  constexpr size_t kMost = 100;
  std::vector<std::vector<const ManifestState*>> params = MatchingParams(plan.manifest, name);
  if (params.empty()) params.push_back(FindParam(plan.manifest, name));
  const std::vector<CollectiveUse> uses = CollectivesOf(plan);
  for (size_t i = 0; i < std::min(params.size(), kMost); ++i) {
    if (i > 0) std::printf("\n");
    PrintParam(plan.manifest.mesh, uses, params[i]);
  }
  if (params.size() > kMost) {
    std::printf("\nand %zu more, whose names match, too\n", params.size() - kMost);
  }
}

}  // namespace shardc
