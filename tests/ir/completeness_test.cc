// Every op answers everything that passes, backends and readers ask of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "ir/op_def.h"
#include "runtime/kernel.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

// Ops that passes place by hand, or that hold what persists: they have no rule.
bool PlacedByHand(const OpDef& def) {
  return def.communicates || def.is_state || def.name == "update" || def.name == "local_slice" ||
         def.name == "zero_padding";
}

// The names in backquotes in the second column of the tables of ir/ops/README.md.
std::set<std::string> DocumentedOps() {
  std::ifstream file(SHARDC_SOURCE_DIR "/ir/ops/README.md");
  EXPECT_TRUE(file.good());
  std::set<std::string> names;
  for (std::string line; std::getline(file, line);) {
    size_t begin = line.find('|', 1), end = line.find("| ", begin + 1);
    if (line.empty() || line[0] != '|' || end == std::string::npos) continue;
    bool quoted = false, attributes = false;
    std::string words;
    for (char c : line.substr(begin, end - begin)) {
      if (c == '`') {
        quoted = !quoted;
        c = ' ';
      }
      if (c == '{') attributes = true;
      if (quoted && !attributes) words += c;
      if (!quoted) words += ' ';
      if (c == '}') attributes = false;
    }
    std::istringstream split(words);
    for (std::string word; split >> word;) names.insert(word);
  }
  return names;
}

class CompletenessTest : public ::testing::TestWithParam<const OpDef*> {};

TEST_P(CompletenessTest, HasAll) {
  const OpDef& def = *GetParam();
  EXPECT_TRUE(def.infer || def.name == "param") << "how do its result types follow?";
  EXPECT_NE(def.rule != nullptr, PlacedByHand(def)) << "it needs a sharding rule, or a reason";
  EXPECT_NE(def.gradient != nullptr, !def.no_gradient.empty())
      << "it needs a gradient or else says why it has none";
  bool evaluates = !def.communicates && !def.is_state && def.name != "update";
  EXPECT_EQ(def.reference != nullptr, evaluates) << "reference";
  EXPECT_TRUE(def.max_operands < 0 || def.min_operands <= def.max_operands);
  std::set<std::string_view> attrs;
  for (const AttrSpec& a : def.attrs) EXPECT_TRUE(attrs.insert(a.name).second) << a.name;
}

TEST_P(CompletenessTest, HasSamplesThatFit) {
  const OpDef& def = *GetParam();
  if (def.is_state || def.name == "update") return;  // their operands are names
  int samples = 0;
  std::set<std::string> names;
  std::set<size_t> operand_counts;
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != def.name) continue;
    ++samples;
    SCOPED_TRACE(sample.Name());
    EXPECT_TRUE(names.insert(sample.what).second) << "two samples of one name";
    SampleGraph g = BuildSample(sample);
    EXPECT_GE(Flops(*g.op), 0);
    EXPECT_FALSE(g.op->results.empty());
    operand_counts.insert(sample.operands.size());
    for (const auto& [name, value] : sample.attrs.entries()) {
      bool known = std::any_of(def.attrs.begin(), def.attrs.end(),
                               [&, key = name](const AttrSpec& a) { return a.name == key; });
      EXPECT_TRUE(known) << "attribute " << name;
    }
    for (const AttrSpec& a : def.attrs) {
      EXPECT_TRUE(!a.required || sample.attrs.Has(a.name)) << "no attribute " << a.name;
    }
  }
  EXPECT_GT(samples, 0) << "it has no sample in tests/ir/op_samples_*.cc";
  // Optional operands are given once and left out once.
  EXPECT_TRUE(operand_counts.contains(static_cast<size_t>(def.min_operands)) || samples == 0 ||
              def.max_operands < 0);
  if (def.max_operands >= 0) {
    EXPECT_TRUE(operand_counts.contains(static_cast<size_t>(def.max_operands)));
  }
}

// A factor of two operands that no result has: the op multiplies and sums over it.
bool Contracts(const ShardingRule& rule) {
  for (size_t f = 0; f < rule.factors.size(); ++f) {
    auto has = [f](const std::vector<DimFactors>& dims) {
      return std::any_of(dims.begin(), dims.end(), [f](const DimFactors& d) {
        return std::count(d.factors.begin(), d.factors.end(), static_cast<int>(f)) > 0;
      });
    };
    auto with = std::count_if(rule.operands.begin(), rule.operands.end(), has);
    if (with > 1 && std::none_of(rule.results.begin(), rule.results.end(), has)) return true;
  }
  return false;
}

TEST_P(CompletenessTest, IsNotCheapIfItContracts) {
  const OpDef& def = *GetParam();
  for (const OpSample& sample : OpSamples()) {
    if (sample.op != def.name || !def.rule) continue;
    EXPECT_FALSE(IsCheap(def) && Contracts(def.rule(*BuildSample(sample).op))) << sample.Name();
  }
  EXPECT_FALSE(IsCheap(def) && (def.communicates || def.side_effect || def.is_state));
}

TEST_P(CompletenessTest, IsDocumented) {
  static const std::set<std::string> documented = DocumentedOps();
  EXPECT_TRUE(documented.contains(std::string(GetParam()->name)))
      << "ir/ops/README.md does not list it";
}

std::string ParamName(const ::testing::TestParamInfo<const OpDef*>& info) {
  return std::string(info.param->name);
}

INSTANTIATE_TEST_SUITE_P(Ops, CompletenessTest, ::testing::ValuesIn(AllOpDefs()), ParamName);

TEST(Completeness, ProductsContract) {
  for (const OpSample& sample : OpSamples()) {
    if (sample.op == "matmul" || sample.op == "attention" || sample.op == "linear") {
      SampleGraph g = BuildSample(sample);
      EXPECT_TRUE(Contracts(g.op->def->rule(*g.op))) << sample.Name();
    }
  }
}

TEST(Completeness, SamplesAndDocumentationNameOps) {
  for (const OpSample& sample : OpSamples()) EXPECT_TRUE(FindOpDef(sample.op)) << sample.op;
  for (const std::string& name : DocumentedOps()) EXPECT_TRUE(FindOpDef(name)) << name;
}

TEST(Completeness, CpuKernelsNameOps) {
  EXPECT_FALSE(CpuKernelOps().empty());
  for (std::string_view name : CpuKernelOps()) EXPECT_TRUE(FindOpDef(name)) << name;
}

}  // namespace
}  // namespace shardc::testing
