#include "tests/exec/models.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "frontend/import.h"
#include "frontend/recover.h"
#include "ir/convert.h"
#include "ir/npy.h"
#include "ir/safetensors.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

using nlohmann::json;

json ReadJson(const std::string& path) {
  std::ifstream in(path);
  SHARDC_CHECK(in.good(), path);
  return json::parse(in);
}

// A bundle of tests/gpu/run_all brings them along.
std::string Models() {
  const char* elsewhere = std::getenv("SHARDC_TEST_SOURCE_DIR");
  return std::string(elsewhere ? elsewhere : SHARDC_SOURCE_DIR) + "/tests/data/models";
}

HostTensor Rows(const HostTensor& t, int64_t first, int64_t count) {
  Shape shape = t.shape();
  int64_t start = first * (t.num_elements() / shape[0]);
  shape[0] = count;
  HostTensor out(t.dtype(), shape);
  for (int64_t i = 0; i < out.num_elements(); ++i) out.SetDouble(i, t.AsDouble(start + i));
  return out;
}

void AddTo(HostTensor& sum, const HostTensor& t) {
  SHARDC_CHECK(sum.num_elements() == t.num_elements());
  for (int64_t i = 0; i < sum.num_elements(); ++i)
    sum.SetDouble(i, sum.AsDouble(i) + t.AsDouble(i));
}

// What the golden says about the gradient of a tensor of the file.
class ExpectedGradients {
 public:
  ExpectedGradients(const Export& e, const std::string& batch)
      : golden_(e.folder() + "/golden_" + batch + ".safetensors"),
        names_(ReadJson(e.folder() + "/names_" + e.name + ".json")) {
    for (const auto& [name, entry] : golden_.entries()) {
      if (name.starts_with("grad.")) largest_ = std::max(largest_, Largest(golden_.Read(name)));
    }
  }

  static double Largest(const HostTensor& t) {
    double largest = 0;
    for (int64_t i = 0; i < t.num_elements(); ++i)
      largest = std::max(largest, std::abs(t.AsDouble(i)));
    return largest;
  }

  const SafetensorsFile& golden() const { return golden_; }
  const json& names() const { return names_; }
  double floor() const { return 1e-2 * largest_; }

  HostTensor Of(const std::string& tensor) const {
    const json& entry = names_.at(tensor);
    HostTensor sum = Read(entry.at("torch"));
    if (entry.contains("merged")) {
      for (const auto& other : entry.at("merged")) AddTo(sum, Read(other));
    }
    if (entry.contains("rows")) {
      const json& rows = entry.at("rows");
      int64_t first = rows.is_array() ? rows.front().get<int64_t>() : 0;
      int64_t last = rows.is_array() ? rows.back().get<int64_t>() : rows.get<int64_t>();
      sum = Rows(sum, first, last - first);
    }
    if (entry.value("transposed", false)) sum = Transposed(sum);
    if (entry.contains("shape")) sum = sum.Reshaped(entry.at("shape").get<Shape>());
    return sum;
  }

 private:
  HostTensor Read(const std::string& torch) const {
    return As(golden_.Read("grad." + torch), DType::kF64);
  }
  SafetensorsFile golden_;
  json names_;
  double largest_ = 0;
};

}  // namespace

std::string Export::folder() const { return Models() + "/" + model; }

std::vector<Export> AllExports() {
  std::vector<Export> all;
  for (const char* model : {"mlp", "nanogpt", "gqa_swiglu", "hf_gpt2", "hf_gpt2_fresh"}) {
    std::string folder = Models() + "/" + model;
    json config = ReadJson(folder + "/config.json");
    json exports = ReadJson(folder + "/exports.json");
    for (const auto& [file, about] : exports.items()) {
      Export e;
      e.model = model;
      e.name = std::filesystem::path(file).stem();
      e.dynamic = about.at("dynamic");
      e.float64 = about.at("float64");
      e.loss = config.at("loss") == "dot" ? "dot" : "lm";
      for (const auto& p : about.at("parameters_not_in_file")) e.missing.push_back(p);
      bool masked = about.at("inputs").contains("attention_mask");
      bool first = true;
      for (const auto& [batch, inputs] : config.at("batches").items()) {
        bool fits = inputs.contains("attention_mask") == masked;
        if (fits && (e.dynamic || first)) e.batches.push_back(batch);
        first = false;
      }
      all.push_back(std::move(e));
    }
  }
  return all;
}

Export StrangerExport(const std::string& folder, const std::string& file, const std::string& loss) {
  Export e;
  e.model = "../strangers/" + folder;
  e.name = file;
  e.dynamic = file.ends_with("dynamic");
  e.loss = loss;
  e.batches = {"b2_s8"};
  const json config = ReadJson(e.folder() + "/config.json");
  e.bind = config.value("bind", e.bind);
  e.drop = config.value("drop", e.drop);
  return e;
}

Tensors InputsFor(const Export& e, const std::string& batch) {
  Tensors inputs;
  auto load = [&](const char* file, const char* input) {
    std::string path = e.folder() + "/" + file + "_" + batch + ".npy";
    if (std::filesystem::exists(path)) inputs[input] = ReadNpy(path);
  };
  load("x", "x");
  load("c", "cotangent");
  load("input_ids", "input_ids");
  load("attention_mask", "attention_mask");
  load("token_type_ids", "token_type_ids");
  load("labels", "labels");
  if (inputs.contains("input_ids") && !inputs.contains("labels")) {
    inputs["labels"] = inputs["input_ids"];
  }
  if (e.float64) {
    for (auto& [name, t] : inputs) {
      if (t.dtype() == DType::kF32) t = As(t, DType::kF64);
    }
  }
  return inputs;
}

Graph ImportFor(const Export& e, const std::string& batch) {
  ImportOptions options;
  options.bind = e.bind;
  if (e.dynamic) {
    Tensors inputs = InputsFor(e, batch);
    for (const char* name : {"x", "input_ids", "attention_mask", "token_type_ids"}) {
      if (inputs.contains(name)) options.shapes[name] = inputs.at(name).shape();
    }
  }
  Graph graph = ImportOnnx(e.path(), options);
  RecoverPatterns(graph);
  return graph;
}

std::vector<GoldenPair> PairWithGolden(const Export& e, const std::string& batch,
                                       const RunResult& result, std::string* problems) {
  ExpectedGradients expected(e, batch);
  std::vector<GoldenPair> pairs;
  for (const char* name : {"logits", "y", "loss"}) {
    if (!expected.golden().Has(name)) continue;
    if (!result.outputs.contains(name)) {
      *problems += StrCat("no output ", name, "\n");
      continue;
    }
    pairs.push_back({name, result.outputs.at(name), expected.golden().Read(name), 1e-30});
  }
  // Parameters that were un-merged: their gradients sum to that of the tensor they were.
  std::set<std::string> seen;
  for (const auto& [tensor, about] : expected.names().items()) {
    std::vector<std::string> mine;
    std::set<std::string> merged;
    if (about.contains("merged")) merged = about.at("merged").get<std::set<std::string>>();
    for (const auto& [name, value] : result.outputs) {
      if (!name.starts_with("grad.")) continue;
      std::string param = name.substr(5);
      if (param == tensor || param.starts_with(tensor + "@") ||
          (merged.contains(param) && !expected.names().contains(param))) {
        mine.push_back(name);
      }
    }
    if (mine.empty()) {
      // One of two copies of a tied parameter: the other holds the sum.
      if (!about.contains("copy_of")) {
        bool copied = false;
        for (const auto& [other, entry] : expected.names().items()) {
          copied = copied || (entry.contains("copy_of") && entry.at("copy_of") == tensor);
        }
        if (!copied) *problems += StrCat("no gradient of ", tensor, "\n");
      }
      continue;
    }
    HostTensor sum = As(result.outputs.at(mine[0]), DType::kF64);
    for (size_t i = 1; i < mine.size(); ++i) AddTo(sum, result.outputs.at(mine[i]));
    for (const std::string& name : mine) seen.insert(name);
    pairs.push_back({"grad." + tensor, std::move(sum), expected.Of(tensor), expected.floor()});
  }
  for (const auto& [name, value] : result.outputs) {
    if (name.starts_with("grad.") && !seen.contains(name)) {
      *problems += name + " is of no parameter\n";
    }
  }
  for (GoldenPair& p : pairs) {
    if (p.got.num_elements() == p.want.num_elements()) {
      p.got = p.got.Reshaped(p.want.shape());
    } else {
      *problems += StrCat(p.name, " has ", p.got.num_elements(), " elements\n");
    }
  }
  std::erase_if(pairs, [](const GoldenPair& p) { return p.got.shape() != p.want.shape(); });
  return pairs;
}

std::string CompareWithGolden(const Export& e, const std::string& batch, const RunResult& result,
                              double tolerance, double* worst) {
  std::string problems;
  for (const GoldenPair& p : PairWithGolden(e, batch, result, &problems)) {
    double d = WorstDifference(p.got, p.want, p.floor);
    if (worst) *worst = std::max(*worst, d);
    if (!(d <= tolerance)) problems += StrCat(p.name, " differs by ", d, "\n");
  }
  return problems;
}

namespace {

struct Likeness {
  double norm_error, cosine, norm;
};

Likeness Compare(const HostTensor& got, const HostTensor& want) {
  double gg = 0, ww = 0, gw = 0, dd = 0;
  for (int64_t i = 0; i < want.num_elements(); ++i) {
    double g = got.AsDouble(i), w = want.AsDouble(i);
    gg += g * g;
    ww += w * w;
    gw += g * w;
    dd += (g - w) * (g - w);
  }
  return {std::sqrt(dd / ww), gw / std::sqrt(gg * ww), std::sqrt(ww)};
}

// Gradients that are zero in exact arithmetic (of the keys' bias) hold noise without direction.
constexpr double kZeroNorm = 1e-4;

}  // namespace

std::string CompareHalvesWithGolden(const Export& e, const std::string& batch,
                                    const RunResult& result) {
  std::string problems;
  std::vector<GoldenPair> pairs = PairWithGolden(e, batch, result, &problems);
  double largest = 0;
  for (const GoldenPair& p : pairs) {
    if (p.name.starts_with("grad.")) largest = std::max(largest, Compare(p.want, p.want).norm);
  }
  for (const GoldenPair& p : pairs) {
    Likeness l = Compare(p.got, p.want);
    bool gradient = p.name.starts_with("grad.") && l.norm > kZeroNorm * largest;
    if (p.name == "loss" && e.loss == "lm") {
      double got = p.got.AsDouble(0), want = p.want.AsDouble(0);
      if (!(std::abs(got - want) <= 0.01 * std::abs(want)))
        problems += StrCat("loss: ", got, " instead of ", want, "\n");
    } else if (p.name == "y" && !(l.norm_error <= 0.01)) {
      // Its loss is a dot product whose terms cancel: the result itself is held to 1%.
      problems += StrCat("y: off by ", l.norm_error, " in norm\n");
    } else if (gradient && !(l.norm_error <= 0.03 && l.cosine >= 0.999)) {
      problems += StrCat(p.name, ": off by ", l.norm_error, " in norm, cosine ", l.cosine,
                         ", norm ", l.norm, " of ", largest, "\n");
    }
  }
  return problems;
}

AdamWGolden AdamWGoldenOf(const Export& e) {
  const json t = ReadJson(e.folder() + "/adamw.json");
  AdamWGolden golden;
  golden.batch = t.at("batch");
  golden.options.kind = "adamw";
  golden.options.rate.lr = t.at("lr");
  golden.options.beta1 = t.at("betas")[0];
  golden.options.beta2 = t.at("betas")[1];
  golden.options.eps = t.at("eps");
  golden.options.weight_decay = t.at("weight_decay");
  golden.clip_norm = t.at("clip_grad_norm");
  auto steps = [&](const char* key) { return t.at(key).get<std::vector<double>>(); };
  golden.losses = steps("losses");
  golden.grad_norms = steps("grad_norms");
  golden.clipped_losses = steps("clipped_losses");
  golden.clipped_grad_norms = steps("clipped_grad_norms_before_clipping");
  return golden;
}

std::string CompareSteps(const std::vector<double>& got, const std::vector<double>& want,
                         double tolerance) {
  if (want.empty() || got.size() < want.size()) return "steps are missing\n";
  std::string problems;
  for (size_t i = 0; i < want.size(); ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance * std::max(1.0, std::abs(want[i]))))
      problems += StrCat("step ", i, ": ", got[i], " instead of ", want[i], "\n");
  }
  return problems;
}

}  // namespace shardc::testing
