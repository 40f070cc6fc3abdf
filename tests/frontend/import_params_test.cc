// Which tensors are parameters, what they were called, and their data.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/frontend/import_testing.h"

namespace shardc {
namespace {

using import_testing::ImportTest;
using import_testing::Model;
using import_testing::ReadAll;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string Models() { return std::string(SHARDC_SOURCE_DIR) + "/tests/data/models"; }

struct Export {
  std::string model, name;
  std::string Folder() const { return Models() + "/" + model + "/"; }
};

std::vector<Export> Exports() {
  std::vector<Export> all;
  for (const char* model : {"mlp", "nanogpt", "gqa_swiglu", "hf_gpt2", "hf_gpt2_fresh"}) {
    const json list = json::parse(ReadAll(Models() + "/" + model + "/exports.json"));
    for (const auto& [file, unused] : list.items()) {
      all.push_back({model, file.substr(0, file.rfind('.'))});
    }
  }
  return all;
}

// Sizes for the symbols of a file, "INT64 ['batch', 'sequence']".
ImportOptions Bindings(const Export& e) {
  const json about = json::parse(ReadAll(e.Folder() + "exports.json")).at(e.name + ".onnx");
  ImportOptions options;
  for (const auto& [input, type] : about.at("inputs").items()) {
    std::string text = type;
    int64_t size = 2;
    for (size_t at = 0; (at = text.find('\'', at)) != text.npos; size = 32) {
      size_t end = text.find('\'', at + 1);
      options.bind[text.substr(at + 1, end - at - 1)] = size;
      at = end + 1;
    }
  }
  return options;
}

class ModelParams : public ::testing::TestWithParam<Export> {
 protected:
  Graph Import() {
    return ImportOnnx(GetParam().Folder() + GetParam().name + ".onnx", Bindings(GetParam()));
  }
  // Its Identity nodes say what it merged; all that it did in these are of one value.
  static bool KeepsFillsApart() { return GetParam().name.starts_with("torchscript"); }
  json Names() {
    return json::parse(ReadAll(GetParam().Folder() + "names_" + GetParam().name + ".json"));
  }
};

TEST_P(ModelParams, AreExactlyThoseOfTheModule) {
  Graph graph = Import();
  const json names = Names();
  std::set<std::string> expected, actual;
  for (const auto& [name, about] : names.items()) {
    expected.insert(name);
    if (!KeepsFillsApart() || !about.is_object()) continue;
    for (const auto& merged : about.value("merged", json::array())) expected.insert(merged);
  }
  for (const Op* param : graph.Params()) actual.insert(param->attrs.String("name"));
  EXPECT_EQ(actual, expected);
  for (const std::string& name : actual) EXPECT_TRUE(graph.sources.contains(name)) << name;
  EXPECT_EQ(graph.sources.size(), actual.size());
}

TEST_P(ModelParams, KeepTheNamesThatWereLost) {
  Graph graph = Import();
  const json names = Names();
  for (const Op* param : graph.Params()) {
    std::string name = param->attrs.String("name");
    json about = names.value(name, json());
    if (about.is_null() || about.contains("copy_of")) continue;
    const std::string torch = about["torch"];
    Strings expected, actual;
    if (torch != name) expected.push_back(torch);
    for (const auto& merged : about.value("merged", json::array())) {
      if (!KeepsFillsApart()) expected.push_back(merged);
    }
    if (param->attrs.Has("aliases")) actual = param->attrs.StringList("aliases");
    EXPECT_EQ(actual, expected) << name;
    // What was transposed on the way is not what has the module's name; what was merged is.
    Strings sources;
    if (param->attrs.Has("source_aliases")) sources = param->attrs.StringList("source_aliases");
    if (about["transposed"] || about.contains("rows")) {
      EXPECT_THAT(sources, ElementsAre(torch)) << name;
    }
    for (const std::string& source : sources) EXPECT_EQ(source, torch) << name;
    // Of the exports only this one has what dynamo says of its nodes.
    const bool known = about["transposed"] && GetParam().name == "dynamo_dynamic";
    EXPECT_EQ(param->attrs.String("transpose_of", ""), known ? torch : "") << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ModelParams, ::testing::ValuesIn(Exports()),
                         [](const auto& info) { return info.param.model + "_" + info.param.name; });

TEST(ModelFiles, AreAllThere) { EXPECT_EQ(Exports().size(), 33u); }

// Rows of a table, folded with the positions: not the parameter that the module has.
TEST(ImportParams, WhatTheExporterComputedFromAParameterIsNoted) {
  auto notes = [](const std::string& name) {
    Export e{"hf_gpt2", name};
    std::string all;
    for (const std::string& note : ImportOnnx(e.Folder() + name + ".onnx", Bindings(e)).notes) {
      all += note + "\n";
    }
    return all;
  };
  EXPECT_THAT(notes("dynamo_static"),
              ::testing::AllOf(::testing::HasSubstr("computed from parameters by the exporter"),
                               ::testing::HasSubstr("[1, 32, 64] from 'transformer.wpe.weight'")));
  EXPECT_THAT(notes("dynamo_dynamic"), ::testing::Not(::testing::HasSubstr("computed from")));
}

}  // namespace
}  // namespace shardc
