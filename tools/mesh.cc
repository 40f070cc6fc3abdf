#include "ir/mesh.h"

#include <cstdio>
#include <memory>
#include <string>

#include "ir/counted.h"
#include "tools/verbs.h"

namespace shardc {
namespace {

std::string GroupsText(const Mesh& mesh, const std::vector<int>& axes) {
  std::string text;
  for (const auto& group : mesh.Groups(axes)) {
    text += " [";
    for (size_t i = 0; i < group.size(); ++i) text += (i ? "," : "") + std::to_string(group[i]);
    text += "]";
  }
  return text;
}

void PrintMesh(const Mesh& mesh) {
  std::printf("%s: %s\n", mesh.ToString().c_str(), Counted(mesh.num_ranks(), "rank").c_str());
  // Every set of axes, the single ones first.
  int n = mesh.num_axes();
  for (int size = 1; size <= n; ++size) {
    for (int set = 1; set < 1 << n; ++set) {
      if (__builtin_popcount(static_cast<unsigned>(set)) != size) continue;
      std::vector<int> axes;
      for (int a = 0; a < n; ++a) {
        if (set >> a & 1) axes.push_back(a);
      }
      std::printf("%-12s%s\n", Join(mesh.Names(axes), ",").c_str(), GroupsText(mesh, axes).c_str());
    }
  }
  for (int64_t r = 0; r < mesh.num_ranks(); ++r) {
    std::printf("rank %-6lld", static_cast<long long>(r));
    for (int a = 0; a < n; ++a) {
      std::printf(" %s=%lld", mesh.axes()[a].name.c_str(),
                  static_cast<long long>(mesh.Coordinate(r, a)));
    }
    std::printf("\n");
  }
}

}  // namespace

void AddMeshVerb(CLI::App& app) {
  auto text = std::make_shared<std::string>();
  CLI::App* verb = app.add_subcommand("mesh", "show the ranks and groups of a mesh");
  verb->add_option("axes", *text, "axes as name=size, major to minor: pp=4,dp=2,tp=2")->required();
  verb->callback([text] { PrintMesh(Mesh::Parse(*text)); });
}

}  // namespace shardc
