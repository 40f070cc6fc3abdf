// Every id of a diagnostic that the sources can throw is asked for by some test.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/style/source_tree.h"

namespace shardc::testing {
namespace {

// Ids that no test can bring about, each with the reason.
const std::map<std::string, std::string> kUntestable = {};

std::map<std::string, std::string> IdsThrown() {
  static const std::regex kId(R"rx("(E[0-9]{4})")rx");
  std::map<std::string, std::string> ids;
  for (const SourceFile& file :
       ReadSources({"frontend", "ir", "passes", "runtime", "specs", "tools"})) {
    ForEachMatch(file, kId, [&](int line, const std::smatch& m) {
      ids.emplace(m[1], file.path + ":" + std::to_string(line));
    });
  }
  return ids;
}

std::set<std::string> IdsInTests() {
  static const std::regex kId(R"rx(\bE[0-9]{4}\b)rx");
  std::set<std::string> ids;
  for (const SourceFile& file : ReadSources({"tests"}, Files::kSourcesAndScripts)) {
    if (file.path.starts_with("tests/style/")) continue;
    ForEachMatch(file, kId, [&](int, const std::smatch& m) { ids.insert(m.str()); });
  }
  return ids;
}

TEST(Diagnostics, EveryIdIsTested) {
  std::map<std::string, std::string> thrown = IdsThrown();
  ASSERT_GT(thrown.size(), 50u);
  std::set<std::string> tested = IdsInTests();
  for (const auto& [id, where] : thrown) {
    if (tested.contains(id) || kUntestable.contains(id)) continue;
    ADD_FAILURE() << id << " (" << where << ") is in no test";
  }
}

TEST(Diagnostics, ListOfTheUntestableIsShort) {
  std::map<std::string, std::string> thrown = IdsThrown();
  for (const auto& [id, reason] : kUntestable) {
    EXPECT_TRUE(thrown.contains(id)) << id << " is thrown no more";
    EXPECT_FALSE(IdsInTests().contains(id)) << id << " has a test";
  }
}

}  // namespace
}  // namespace shardc::testing
