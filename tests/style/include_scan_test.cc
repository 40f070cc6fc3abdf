// Who may include whom, what public headers may show, and what lies at the top of the tree.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>

#include "tests/style/source_tree.h"

namespace shardc::testing {
namespace {

using Names = std::set<std::string>;

const std::vector<std::string> kFolders = {"frontend", "ir",    "passes", "runtime",
                                           "specs",    "tools", "tests"};

// The folders whose headers a folder may include, itself among them.
const std::map<std::string, Names> kMayInclude = {
    {"ir", {"ir"}},
    {"specs", {"specs", "ir"}},
    {"frontend", {"frontend", "ir"}},
    {"runtime", {"runtime", "ir"}},
    {"passes", {"passes", "ir", "specs"}},
    {"tools", {"tools", "frontend", "ir", "passes", "runtime", "specs"}},
    {"tests", {"tests", "tools", "frontend", "ir", "passes", "runtime", "specs"}},
};

std::string At(const SourceFile& file, int line) {
  return file.path + ":" + std::to_string(line) + ": ";
}

std::string FolderOf(const std::string& include) { return include.substr(0, include.find('/')); }

// Includes in quotes that name no folder of the tree are generated headers or headers beside the
// file.
std::vector<std::string> WrongDirections(const SourceFile& file) {
  static const std::regex kQuoted(R"rx(^\s*#\s*include\s*"([^"]+)")rx");
  std::vector<std::string> wrong;
  ForEachMatch(file, kQuoted, [&](int line, const std::smatch& m) {
    std::string folder = FolderOf(m[1]);
    if (kMayInclude.contains(folder) && !kMayInclude.at(file.folder).contains(folder)) {
      wrong.push_back(At(file, line) + file.folder + " must not include " + m[1].str());
    }
    if (m[1].str().find("..") != std::string::npos) {
      wrong.push_back(At(file, line) +
                      "includes are named from the top of the tree: " + m[1].str());
    }
  });
  return wrong;
}

using Includes = std::map<std::string, Names>;  // of every file, as they are written

Includes IncludesOf(const std::vector<SourceFile>& files) {
  static const std::regex kInclude(R"rx(^\s*#\s*include\s*[<"]([^">]+)[">])rx");
  Includes includes;
  for (const SourceFile& file : files) {
    Names& names = includes[file.path];
    ForEachMatch(file, kInclude, [&](int, const std::smatch& m) { names.insert(m[1]); });
  }
  return includes;
}

// Headers that another folder than their own includes, and all that these include in turn.
Names PublicHeaders(const Includes& includes) {
  std::vector<std::string> open;
  for (const auto& [file, names] : includes) {
    if (FolderOf(file) == "tests") continue;
    for (const std::string& name : names) {
      if (includes.contains(name) && FolderOf(name) != FolderOf(file)) open.push_back(name);
    }
  }
  Names found;
  while (!open.empty()) {
    std::string header = open.back();
    open.pop_back();
    if (!found.insert(header).second) continue;
    for (const std::string& name : includes.at(header)) {
      if (includes.contains(name)) open.push_back(name);
    }
  }
  return found;
}

std::vector<std::string> LibrariesShown(const Includes& includes) {
  static const std::regex kLibrary(
      R"rx((google/protobuf|onnx|nlohmann|CLI|oneapi)/.*|dnnl.*|omp\.h|xxhash\.h|.*\.pb\.h)rx");
  std::vector<std::string> shown;
  for (const std::string& header : PublicHeaders(includes)) {
    for (const std::string& name : includes.at(header)) {
      if (std::regex_match(name, kLibrary)) shown.push_back(header + " includes " + name);
    }
  }
  return shown;
}

// What git tracks; a tree without git (an archive) is listed as it lies.
Names TopLevel() {
  Names names;
  std::string command = "git -C '" SHARDC_SOURCE_DIR "' ls-files 2>/dev/null";
  if (FILE* pipe = popen(command.c_str(), "r")) {
    std::array<char, 4096> line;
    while (std::fgets(line.data(), line.size(), pipe)) {
      std::string path = line.data();
      names.insert(path.substr(0, path.find_first_of("/\n")));
    }
    pclose(pipe);
  }
  if (!names.empty()) return names;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDC_SOURCE_DIR)) {
    names.insert(entry.path().filename());
  }
  return names;
}

TEST(IncludeScan, FolderMayIncludeOnlyItsOwn) {
  std::vector<SourceFile> files = ReadSources(kFolders);
  ASSERT_GT(files.size(), 100u);
  for (const SourceFile& file : files) {
    for (const std::string& wrong : WrongDirections(file)) ADD_FAILURE() << wrong;
  }
}

TEST(IncludeScan, FindsAWrongInclude) {
  SourceFile file{
      "passes/x.cc", "passes", {"#include \"ir/graph.h\"", "#include \"runtime/rank.h\""}};
  EXPECT_EQ(WrongDirections(file),
            std::vector<std::string>{"passes/x.cc:2: passes must not include runtime/rank.h"});
}

TEST(IncludeScan, PublicHeadersShowNoLibrary) {
  Includes includes = IncludesOf(ReadSources(kFolders));
  EXPECT_GT(PublicHeaders(includes).size(), 20u);
  for (const std::string& shown : LibrariesShown(includes)) ADD_FAILURE() << shown;
}

TEST(IncludeScan, FindsALibraryBehindAPublicHeader) {
  Includes includes = {{"passes/x.cc", {"ir/a.h"}},
                       {"ir/a.h", {"ir/b.h"}},
                       {"ir/b.h", {"program.pb.h"}},
                       {"ir/own.h", {"onnx/onnx_pb.h"}},
                       {"ir/own.cc", {"ir/own.h"}}};
  EXPECT_EQ(LibrariesShown(includes), std::vector<std::string>{"ir/b.h includes program.pb.h"});
}

// With pipefail, a reader that stops before its input ends makes the pipe fail now and then: the
// writer dies of SIGPIPE.
std::vector<std::string> PipesThatMayBreak(const SourceFile& script) {
  static const std::regex kStopsEarly(
      R"rx((?:^|[^|])(\|\s*(?:head\b|grep\s+(?:-\w+\s+)*-\w*[qm])))rx");
  std::vector<std::string> wrong;
  ForEachMatch(script, kStopsEarly, [&](int line, const std::smatch& m) {
    wrong.push_back(At(script, line) + m[1].str() + " may break its pipe");
  });
  return wrong;
}

TEST(Scripts, NoPipeEndsInAReaderThatStopsEarly) {
  for (const SourceFile& file : ReadSources(kFolders, Files::kSourcesAndScripts)) {
    if (file.lines.empty() || !file.lines[0].starts_with("#!")) continue;
    for (const std::string& wrong : PipesThatMayBreak(file)) ADD_FAILURE() << wrong;
  }
}

TEST(Scripts, FindsAPipeThatMayBreak) {
  SourceFile script{
      "tools/x", "tools", {"cat a | grep b | sort", "cat a | grep -E -q b || head c"}};
  EXPECT_EQ(PipesThatMayBreak(script),
            std::vector<std::string>{"tools/x:2: | grep -E -q may break its pipe"});
}

TEST(Layout, NoFileOver1000Lines) {
  for (const SourceFile& file : ReadSources(kFolders)) {
    EXPECT_LE(file.lines.size(), 1000u) << file.path;
  }
}

TEST(Layout, TopLevelIsTheGivenOne) {
  const Names allowed = {
      "CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "frontend", "ir",
      "passes",         "runtime",           "specs",   "tests",     "tools"};
  for (const std::string& name : TopLevel()) {
    EXPECT_TRUE(name.starts_with(".") || allowed.contains(name))
        << name << " does not belong at the top level";
  }
}

}  // namespace
}  // namespace shardc::testing
