// A graph for generation (GroupQueryAttention, made as onnxruntime-genai makes it) token by token:
// a prompt, then steps that are given what the ones before left in the cache, against what PyTorch
// computed in float64 for all tokens at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "frontend/import.h"
#include "frontend/recover.h"
#include "ir/safetensors.h"
#include "tests/exec/models.h"

namespace shardc::testing {
namespace {

constexpr int64_t kBatch = 2, kLayers = 2, kKvHeads = 2, kTokens = 8;

HostTensor Ints(const Shape& shape, const std::vector<int64_t>& values) {
  return HostTensor::Of<int64_t>(shape, values);
}

class Decoder {
 public:
  // With a cache of so many places, or (0) one that grows; with `whole_mask` the mask has as many.
  Decoder(const char* spec, const char* mesh, int64_t places, bool whole_mask = false)
      : places_(places),
        whole_mask_(whole_mask),
        model_(StrangerExport("ort_llama", "built_dynamic")) {
    setup_.spec = spec;
    setup_.mesh = mesh;
    setup_.pipeline.loss = "none";
    ids_ = InputsFor(model_, "b2_s8").at("input_ids");
    golden_ = SafetensorsFile(model_.folder() + "/golden_b2_s8.safetensors").Read("logits");
  }

  // Of each sequence the next tokens: a prompt is padded to the longest on the right.
  void Advance(const std::vector<int64_t>& counts) {
    const int64_t s = *std::max_element(counts.begin(), counts.end());
    std::vector<int64_t> ids, mask, before = lengths_;
    for (int64_t b = 0; b < kBatch; ++b) lengths_[b] += counts[b];
    const int64_t longest = *std::max_element(lengths_.begin(), lengths_.end());
    const int64_t total = whole_mask_ ? places_ : longest;
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < s; ++i)
        ids.push_back(i < counts[b] ? ids_.AsInt(b * kTokens + before[b] + i) : 1);
      for (int64_t i = 0; i < total; ++i) mask.push_back(i < lengths_[b]);
    }
    Tensors inputs = cache_;
    inputs["input_ids"] = Ints({kBatch, s}, ids);
    inputs["attention_mask"] = Ints({kBatch, total}, mask);
    RunResult got = Run(inputs, longest - s);
    Compare(got.outputs.at("logits"), before, counts);
    int64_t sums = 0;
    for (const Collective& c : got.collectives) {
      sums += c.kind == CollectiveKind::kAllReduce && c.elements == kBatch * s * 24;
    }
    // Two kv heads are not dealt out to three ranks.
    if (setup_.mesh == "tp=2" || setup_.mesh == "tp=4") {
      EXPECT_EQ(sums, 2 * kLayers + 1);
      EXPECT_EQ(got.collectives.size(), static_cast<size_t>(sums));
    }
    for (int64_t i = 0; i < kLayers; ++i) {
      for (const char* name : {"key", "value"})
        cache_[StrCat("past_key_values.", i, ".", name)] =
            got.outputs.at(StrCat("present.", i, ".", name));
    }
  }

 private:
  RunResult Run(Tensors& inputs, int64_t past) {
    ImportOptions options;
    options.bind["past_sequence_length"] = places_ > 0 ? places_ : past;
    for (const char* name : {"input_ids", "attention_mask"})
      options.shapes[name] = inputs.at(name).shape();
    Graph graph = ImportOnnx(model_.path(), options);
    for (const auto& input : graph.inputs()) {
      if (!inputs.contains(input->name))
        inputs[input->name] = HostTensor(input->type.dtype, input->type.shape);
    }
    RecoverPatterns(graph);
    return CompileAndRun(std::move(graph), setup_, inputs);
  }

  void Compare(const HostTensor& logits, const std::vector<int64_t>& before,
               const std::vector<int64_t>& counts) const {
    const int64_t s = logits.shape()[1], v = logits.shape()[2];
    for (int64_t b = 0; b < kBatch; ++b) {
      for (int64_t i = 0; i < counts[b]; ++i) {
        for (int64_t k = 0; k < v; ++k) {
          const double want = golden_.AsDouble((b * kTokens + before[b] + i) * v + k);
          ASSERT_NEAR(logits.AsDouble((b * s + i) * v + k), want, 1e-5)
              << "sequence " << b << ", token " << before[b] + i << " of " << lengths_[b];
        }
      }
    }
  }

  int64_t places_;
  bool whole_mask_;
  Export model_;
  RunSetup setup_;
  HostTensor ids_, golden_;
  std::vector<int64_t> lengths_ = std::vector<int64_t>(kBatch, 0);
  Tensors cache_;
};

class DecodingWith : public ::testing::TestWithParam<int64_t> {};

TEST_P(DecodingWith, StepByStepIsAllAtOnce) {
  for (auto [spec, mesh] : {std::pair("serial", ""),
                            {"megatron", "tp=2"},
                            {"megatron", "tp=3"},
                            {"megatron", "tp=4"},
                            {"megatron", "dp=2,tp=2"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    Decoder decoder(spec, mesh, GetParam());
    decoder.Advance({4, 4});
    decoder.Advance({1, 1});
    decoder.Advance({2, 2});
  }
}

// Prompts of different lengths: the tokens of a step have other places, in the cache and in the
// rotation.
TEST_P(DecodingWith, SequencesMayHaveDifferentLengths) {
  for (auto [spec, mesh] :
       {std::pair("serial", ""), {"megatron", "tp=2"}, {"megatron", "dp=2,tp=2"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    Decoder decoder(spec, mesh, GetParam());
    decoder.Advance({4, 2});
    decoder.Advance({1, 1});
    decoder.Advance({1, 1});
  }
}

// Where the shapes are those of the whole cache, the places of what is new are data.
TEST(Decoding, MasksMayBeAsLongAsTheCache) {
  for (auto [spec, mesh] : {std::pair("serial", ""), {"megatron", "tp=2"}, {"megatron", "pp=2"}}) {
    SCOPED_TRACE(StrCat(spec, " ", mesh));
    Decoder decoder(spec, mesh, 12, true);
    decoder.Advance({4, 4});
    decoder.Advance({1, 1});
    decoder.Advance({2, 2});
    decoder.Advance({1, 1});
  }
}

INSTANTIATE_TEST_SUITE_P(Places, DecodingWith, ::testing::Values(0, 8, 12),
                         [](const auto& info) { return StrCat("places", info.param); });

}  // namespace
}  // namespace shardc::testing
