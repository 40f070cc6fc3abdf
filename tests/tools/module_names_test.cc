// The names and layouts of the PyTorch module, where the exporter renamed and transposed weights.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "ir/convert.h"
#include "ir/safetensors.h"
#include "tests/ir/write_tensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// Linear layers without a name of their own, one of q, k and v with two kv heads.
const std::string kFolder = std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/gqa_swiglu/";
const std::string kExport = kFolder + "dynamo_dynamic.onnx";
const std::string kGolden = kFolder + "golden_b2_s32.safetensors";

class ModuleNamesTest : public ToolTest {
 protected:
  void CompileFor(const std::string& mesh, const std::string& options = "") const {
    Compile(mesh, "--shape input_ids=2x32 --loss lm --mesh " + mesh + options, kExport);
  }
  ToolResult Run(const std::string& mesh, const std::string& options) const {
    const std::string ids = "@" + kFolder + "input_ids_b2_s32.npy ";
    ToolResult r =
        Tool("run " + mesh + " --input input_ids=" + ids + "--input labels=" + ids + options);
    EXPECT_EQ(r.exit, 0) << mesh << " " << options << ": " << r.err;
    return r;
  }
};

// With tp=4 the plan keeps q, k and v in pieces.
TEST_F(ModuleNamesTest, AreThoseOfPyTorchsGradients) {
  const SafetensorsFile golden(kGolden);
  for (const char* mesh : {"tp=1", "tp=4"}) {
    CompileFor(mesh);
    const ToolResult r =
        Run(mesh, "--save own.safetensors --module-names --check " + kGolden + " --atol 1e-5");
    EXPECT_THAT(r.err, HasSubstr("check: 19 tensors agree"));
    EXPECT_THAT(r.err, Not(HasSubstr("not checked")));
    const SafetensorsFile own(Path("own.safetensors"));
    ASSERT_EQ(own.entries().size(), golden.entries().size());
    for (const auto& [name, entry] : golden.entries()) {
      ASSERT_TRUE(own.Has(name)) << name;
      ASSERT_EQ(own.entries().at(name).shape, entry.shape) << name;
      const HostTensor got = own.Read(name), expected = golden.Read(name);
      for (int64_t i = 0; i < got.num_elements(); ++i) {
        ASSERT_NEAR(got.AsDouble(i), expected.AsDouble(i),
                    1e-5 + 1e-4 * std::abs(expected.AsDouble(i)))
            << name << " " << i;
      }
    }
  }
}

// The file has a tied table as lm_head.weight; PyTorch's gradient is of its first name.
TEST_F(ModuleNamesTest, OfATiedTableAreAllTaken) {
  const std::string folder = std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/nanogpt/";
  Compile("tied", "--shape input_ids=2x32 --loss lm --mesh tp=2", folder + "dynamo_dynamic.onnx");
  const std::string ids = "=@" + folder + "input_ids_b2_s32.npy ";
  const ToolResult r = Tool("run tied --input input_ids" + ids + "--input labels" + ids +
                            "--save own.safetensors --module-names --atol 1e-5 --check " + folder +
                            "golden_b2_s32.safetensors");
  EXPECT_EQ(r.exit, 0);
  EXPECT_THAT(r.err, HasSubstr("check: 17 tensors agree"));
  EXPECT_THAT(r.err, Not(HasSubstr("not checked")));
  const SafetensorsFile own(Path("own.safetensors"));
  EXPECT_EQ(own.Read("grad.wte.weight"), own.Read("grad.lm_head.weight"));
  EXPECT_EQ(own.entries().size(), 18u);
}

// What PyTorch saved after ten steps gives the loss that it had there.
TEST_F(ModuleNamesTest, OfAFileOfPyTorchAreLoaded) {
  const Json torch = Json::parse(std::ifstream(kFolder + "adamw.json"));
  const std::string params = kFolder + "adamw_params_step10.safetensors";
  for (const char* mesh : {"tp=1", "dp=2,tp=4"}) {
    CompileFor(mesh, " --weights none");
    const Json got = Json::parse(Run(mesh, "--json --load " + params).out)["outputs"];
    EXPECT_NEAR(got["loss"], torch["losses"][10].get<double>(), 1e-5);
  }
  // In another type, and of a matrix of other sizes.
  std::map<std::string, HostTensor> wide;
  const SafetensorsFile file(params);
  for (const auto& [name, entry] : file.entries()) {
    wide[name] = Converted(file.Read(name), DType::kF64);
  }
  WriteSafetensors(Path("wide.safetensors"), wide);
  const Json got = Json::parse(Run("tp=1", "--json --load wide.safetensors").out)["outputs"];
  EXPECT_NEAR(got["loss"], torch["losses"][10].get<double>(), 1e-5);
  HostTensor& down = wide.at("layers.0.down.weight");
  down = Transposed(down);
  WriteSafetensors(Path("wide.safetensors"), wide);
  RunFails("tp=1 --random-inputs 1 --load wide.safetensors", 2,
           {"E4010",
            "'layers.0.down.weight' is f64[128, 48], and the plan's is f32[48, 128] (the "
            "transpose of 'val_"});
  // In a type that is not read.
  down = HostTensor(DType::kBool, {48, 128});
  WriteSafetensors(Path("wide.safetensors"), wide);
  std::string text = Read("wide.safetensors");
  text.replace(text.find("\"BOOL\""), 6, "\"F8_E4M3\"");
  uint64_t header = 0;
  std::memcpy(&header, text.data(), sizeof(header));
  header += 3;
  std::memcpy(text.data(), &header, sizeof(header));
  Write("wide.safetensors", text);
  RunFails("tp=1 --random-inputs 1 --load wide.safetensors", 2,
           {"E4010", "'layers.0.down.weight' has dtype F8_E4M3, which is not supported"});
}

// Exports of which nothing but the module's own data says what the exporter made of it; one keeps
// all as it was. The oracle is PyTorch's gradients in f64, under its names and in its layouts.
TEST_F(ModuleNamesTest, AreFoundByTheModulesData) {
  const std::string models = std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/";
  const std::string shape = "--shape input_ids=2x32 --loss lm ";
  struct Exports {
    std::string model;
    std::vector<std::string> names;
    int tensors;
  };
  for (const Exports& e : {Exports{"hf_gpt2", {"dynamo_static", "torchscript_dynamic"}, 42},
                           {"gqa_swiglu", {"dynamo_static", "torchscript_dynamic"}, 19},
                           {"nanogpt", {"dynamo_static_manual", "torchscript_dynamic"}, 17}}) {
    const std::string folder = models + e.model + "/";
    Compile("own", shape, folder + "torchscript_static.onnx");
    RunOk("own --random-inputs 1 --save-params own.safetensors");
    const std::string ids = "=@" + folder + "input_ids_b2_s32.npy";
    for (const std::string& name : e.names) {
      SCOPED_TRACE(folder + name);
      const std::string model = folder + name + ".onnx";
      const std::string check = " --input input_ids" + ids + " --input labels" + ids +
                                " --atol 1e-5 --check " + folder + "golden_b2_s32.safetensors";
      if (e.model == "gqa_swiglu" && name.starts_with("torchscript")) {
        Compile("plan", shape, model);
        const std::string err = RunOk("plan --save got.safetensors --module-names" + check).err;
        EXPECT_THAT(err, HasSubstr("note: not checked, the exporter made others of these "
                                   "parameters, transposed or otherwise: grad."));
        EXPECT_THAT(err, HasSubstr("note: 'head.weight' is saved as 'onnx::MatMul_"));
        EXPECT_THAT(err, HasSubstr("others likewise; compile with --module"));
      }
      Compile("plan", shape + "--spec megatron --mesh tp=2 --module own.safetensors", model);
      const ToolResult r = RunOk("plan --save got.safetensors --module-names" + check);
      EXPECT_THAT(r.err, HasSubstr("check: " + std::to_string(e.tensors) + " tensors agree"));
      EXPECT_THAT(r.err, Not(HasSubstr("not checked")));
      EXPECT_THAT(r.err, Not(HasSubstr("is saved as")));
      EXPECT_GE(SafetensorsFile(Path("got.safetensors")).entries().size(), e.tensors);
    }
  }
  ToolResult r = Tool("compile " + kExport + " --module none.safetensors -o plan");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("error E5001: none.safetensors"));
  r = Tool("compile " + kExport + " --module own.safetensors -o plan --shape input_ids=2x32");
  EXPECT_EQ(r.exit, 3);
  EXPECT_THAT(r.err, HasSubstr("error E1403: --module own.safetensors"));
  r = Tool(std::string("compile ") + kModel + " --module own.safetensors -o plan");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("error E6111: --module own.safetensors: is for ONNX files"));
}

// What an exporter merged with an equal one is trained as that.
TEST_F(ModuleNamesTest, WhatTheModelHasNothingOfIsNoted) {
  const std::string folder = std::string(SHARDC_SOURCE_DIR) + "/tests/data/models/hf_gpt2/";
  const std::string model = folder + "torchscript_static.onnx",
                    module = " --module own.safetensors";
  Compile("own", "--shape input_ids=2x32", model);
  RunOk("own --random-inputs 1 --save-params own.safetensors");
  EXPECT_THAT(Tool("compile " + model + module + " -o plan").err, Not(HasSubstr("has nothing")));
  const SafetensorsFile own(Path("own.safetensors"));
  std::map<std::string, HostTensor> more;
  for (const auto& [name, entry] : own.entries()) more[name] = own.Read(name);
  more["h.0.ln_3.weight"] = more["h.0.ln_3.bias"] = HostTensor(DType::kF32, {64});
  WriteSafetensors(Path("own.safetensors"), more);
  EXPECT_THAT(Tool("compile " + model + module + " -o plan").err,
              HasSubstr("--module own.safetensors has 2 tensors of which the model has nothing, "
                        "'h.0.ln_3.bias' the first"));
}

// As transformers saves a large model.
TEST_F(ModuleNamesTest, OfSeveralFilesWithAnIndex) {
  const SafetensorsFile file(kFolder + "adamw_params_step10.safetensors");
  std::filesystem::create_directory(Path("hf"));
  std::map<std::string, HostTensor> parts[2];
  Json index;
  for (const auto& [name, entry] : file.entries()) {
    const size_t part = name.size() % 2;
    parts[part][name] = file.Read(name);
    index["weight_map"][name] = "part" + std::to_string(part) + ".safetensors";
  }
  for (const int i : {0, 1}) {
    WriteSafetensors(Path("hf/part" + std::to_string(i) + ".safetensors"), parts[i]);
  }
  const std::string path = "hf/model.safetensors.index.json";
  Write(path, index.dump());
  CompileFor("tp=2", " --weights none");
  const Json torch = Json::parse(std::ifstream(kFolder + "adamw.json"));
  for (const std::string& load : {std::string("hf"), path}) {
    const Json got = Json::parse(Run("tp=2", "--json --load " + load).out)["outputs"];
    EXPECT_NEAR(got["loss"], torch["losses"][10].get<double>(), 1e-5);
  }
  const std::string run = "tp=2 --random-inputs 1 --load hf";
  auto fails = [&](const Json& wrong, const std::string& what) {
    Write(path, wrong.dump());
    RunFails(run, 74, {"E5102", "index.json", what});
  };
  Json wrong = index;
  wrong["weight_map"]["extra"] = "part0.safetensors";
  fails(wrong, "'extra' is in 'part0.safetensors', which does not have it");
  wrong["weight_map"]["extra"] = "../part0.safetensors";
  fails(wrong, "'extra' is in '../part0.safetensors', no file of its folder");
  wrong["weight_map"]["extra"] = 3;
  fails(wrong, "'extra' is in no file");
  fails(Json::array({1}), "it has no weight_map");
  wrong["weight_map"]["extra"] = "gone.safetensors";
  Write(path, wrong.dump());
  RunFails(run, 74, {"E5001", "hf/gone.safetensors"});
  RunFails("tp=2 --random-inputs 1 --load " + std::string(300, 'a'), 74, {"E5001", "too long"});
  std::filesystem::remove(Path(path));
  RunFails(run, 74, {"E5001", "hf/model.safetensors"});
}

TEST_F(ModuleNamesTest, OfACheckpointGoOnElsewhere) {
  const std::string optimizer = " --optimizer adamw --lr 1e-2";
  CompileFor("tp=1", optimizer);
  CompileFor("tp=4", optimizer + " --weights none");
  auto losses = [&](const std::string& mesh, const std::string& options) {
    std::vector<double> all;
    const Json got = Json::parse(Run(mesh, "--json " + options).out);
    for (const Json& step : got["steps"]) all.push_back(step["loss"]);
    return all;
  };
  const std::vector<double> all = losses("tp=1", "--steps 4");
  ASSERT_EQ(all.size(), 4u);
  losses("tp=1", "--steps 2 --module-names --save-checkpoint c.safetensors");
  const SafetensorsFile checkpoint(Path("c.safetensors"));
  EXPECT_TRUE(checkpoint.Has("layers.1.qkv.weight.adamw.m"));
  for (const auto& [name, entry] : checkpoint.entries()) EXPECT_THAT(name, Not(HasSubstr("val_")));
  const std::vector<double> rest = losses("tp=4", "--steps 2 --load c.safetensors");
  ASSERT_EQ(rest.size(), 2u);
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(rest[i], all[i + 2], 1e-4);
}

}  // namespace
}  // namespace shardc::testing
