// Running plans: results, comparisons, training, and what users get wrong.
#include <gmock/gmock.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "ir/npy.h"
#include "ir/safetensors.h"
#include "tests/ir/op_samples.h"
#include "tests/ir/write_tensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

class RunTest : public ToolTest {
 protected:
  void SetUp() override {
    ToolTest::SetUp();
    WriteIds();
  }
};

TEST_F(RunTest, ShardedAgreesWithSerial) {
  Compile("serial", "--spec serial");
  RunOk("serial --input input_ids=@ids.npy --input labels=@ids.npy --save golden.safetensors");
  SafetensorsFile golden(Path("golden.safetensors"));
  EXPECT_TRUE(golden.Has("loss"));
  EXPECT_EQ(golden.entries().at("logits").shape, (Shape{2, 16, 97}));
  EXPECT_EQ(golden.entries().at("grad.transformer.wte.weight").shape, (Shape{97, 32}));
  EXPECT_EQ(golden.entries().size(), 30u);  // loss, logits, 28 gradients
  for (const char* mesh : {"dp=1,tp=2", "dp=2,tp=2", "tp=3"}) {
    Compile("plan", std::string("--spec megatron --mesh ") + mesh);
    ToolResult r =
        RunOk("plan --input input_ids=@ids.npy --check golden.safetensors --rtol 1e-4 --atol 1e-6");
    EXPECT_THAT(r.err, HasSubstr("30 tensors agree")) << mesh;
    RunOk(
        "plan --reference --input input_ids=@ids.npy --check golden.safetensors --rtol 1e-4 --atol "
        "1e-6");
  }
}

// What is set for other programs must not change results.
TEST_F(RunTest, OpenMpMayGrantFewerThreads) {
  Compile("plan", "--spec serial --loss lm");
  RunOk("plan --input input_ids=@ids.npy --threads 2 --save golden.safetensors");
  for (const char* limits : {"OMP_THREAD_LIMIT=1", "OMP_DYNAMIC=true", "OMP_NUM_THREADS=1"}) {
    ToolResult r = Shell(std::string(limits) + " '" + SHARDC_TOOL +
                         "' run plan --input input_ids=@ids.npy --threads 4 "
                         "--check golden.safetensors --rtol 1e-4 --atol 1e-6");
    EXPECT_EQ(r.exit, 0) << limits << r.err;
  }
}

TEST_F(RunTest, SaveIsTheSameWhateverTheMesh) {
  Compile("plan", "--spec megatron --mesh dp=2,tp=2");
  Compile("serial", "--spec serial");
  RunOk("plan --random-inputs 1 --save-params a.safetensors");
  RunOk("serial --random-inputs 1 --save-params b.safetensors");
  SafetensorsFile a(Path("a.safetensors")), b(Path("b.safetensors"));
  ASSERT_EQ(a.entries().size(), 28u);
  for (const auto& [name, entry] : b.entries()) EXPECT_TRUE(a.Read(name) == b.Read(name)) << name;
}

TEST_F(RunTest, SavesIntoAPipe) {
  Compile("plan", "--spec serial");
  RunOk("plan --random-inputs 1 --save-params a.safetensors");
  ToolResult r = Tool(
      "run plan --random-inputs 1 --save-params /dev/fd/3 3>&1 >/dev/null | cat > b.safetensors");
  EXPECT_EQ(r.exit, 0) << r.err;
  EXPECT_EQ(Read("b.safetensors"), Read("a.safetensors"));
  EXPECT_EQ(r.err.find("error"), std::string::npos) << r.err;
}

TEST_F(RunTest, CheckFindsADifference) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  RunOk("plan --input input_ids=@ids.npy --save golden.safetensors");
  SafetensorsFile file(Path("golden.safetensors"));
  std::map<std::string, HostTensor> tensors;
  for (const auto& [name, entry] : file.entries()) tensors[name] = file.Read(name);
  tensors["logits"].data<float>()[97 * 3 + 5] += 0.5f;
  tensors["grad.unknown"] = HostTensor(DType::kF32, {3});
  WriteSafetensors(Path("wrong.safetensors"), tensors);
  ToolResult r = Tool("run plan --input input_ids=@ids.npy --check wrong.safetensors");
  EXPECT_EQ(r.exit, 7);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("E4004"), HasSubstr("1 of 30"), HasSubstr("'logits'[0, 3, 5]")));
  EXPECT_THAT(r.err, HasSubstr("grad.unknown"));
  EXPECT_THAT(r.out, HasSubstr("loss = "));
  RunOk("plan --input input_ids=@ids.npy --check wrong.safetensors --atol 0.6");

  // Another shape is a mismatch as well; nothing in common is a mistake.
  WriteSafetensors(Path("shape.safetensors"), {{"loss", HostTensor(DType::kF32, {1})}});
  RunFails("plan --input input_ids=@ids.npy --check shape.safetensors", 7,
           {"E4004", "'loss' has shape"});
  WriteSafetensors(Path("none.safetensors"), {{"grad.unknown", HostTensor(DType::kF32, {1})}});
  RunFails("plan --input input_ids=@ids.npy --check none.safetensors", 2, {"E4009"});
  RunFails("plan --input input_ids=@ids.npy --check absent.safetensors", 74, {"E5001"});

  // An output that is there in a type that is not read is not passed over.
  WriteSafetensors(Path("type.safetensors"),
                   {{"logits", file.Read("logits")}, {"loss", HostTensor::Scalar<int64_t>(4)}});
  std::string bytes = Read("type.safetensors");
  bytes.replace(bytes.find("I64"), 3, "U64");
  Write("type.safetensors", bytes);
  RunFails("plan --input input_ids=@ids.npy --check type.safetensors", 74, {"E5103", "'loss'"});
}

TEST_F(RunTest, ANanNeverAgrees) {
  Compile("plan", "--spec serial");
  for (const float nan : {NAN, -NAN}) {
    WriteSafetensors(Path("nan.safetensors"), {{"loss", HostTensor::Scalar<float>(nan)}});
    RunFails("plan --input input_ids=@ids.npy --check nan.safetensors --atol 1e30", 7,
             {"E4004", "expected nan", "what the file expects is no finite number"});
  }
  // log(-|x|), which most CPUs make a negative nan.
  Write("nan.shardc", R"(graph @g(%x: f32[2, 8]) -> (y: %3) {
    %0 = abs %x : f32[2, 8]
    %1 = neg %0 : f32[2, 8]
    %3 = log %1 : f32[2, 8]
  })");
  ASSERT_EQ(Tool("compile nan.shardc --loss none -o nan").exit, 0);
  WriteSafetensors(Path("zeros.safetensors"), {{"y", HostTensor(DType::kF32, {2, 8})}});
  RunFails("nan --random-inputs 1 --check zeros.safetensors", 7,
           {"E4004", "'y'[0, 0]: got nan, expected 0", "--check-numerics"});
}

TEST_F(RunTest, StepsTrain) {
  for (const char* options : {"--spec serial", "--spec megatron --mesh dp=2,tp=2"}) {
    Compile("plan", std::string(options) + " --optimizer adamw --lr 1e-2");
    ToolResult r =
        RunOk("plan --steps 4 --json --input input_ids=@ids.npy --save-params after.safetensors");
    Json json = Json::parse(r.out);
    ASSERT_EQ(json["steps"].size(), 4u);
    for (int i = 0; i < 3; ++i) EXPECT_GT(json["steps"][i]["loss"], json["steps"][i + 1]["loss"]);
    EXPECT_GT(json["steps"][0]["grad_norm"], 0.1);
    EXPECT_EQ(json["times_s"].size(), 4u);
    EXPECT_FALSE(json.contains("host_times_s")) << "the host does all of it";
    EXPECT_EQ(json["outputs"]["loss"], json["steps"][3]["loss"]);
    SafetensorsFile before(Path("plan/weights/rank0000.safetensors")),
        after(Path("after.safetensors"));
    std::string name = "transformer.ln_f.weight";
    EXPECT_FALSE(before.Read(name) == after.Read(name));
    EXPECT_EQ(after.entries().size(), 28u);  // no optimizer state
  }
}

TEST_F(RunTest, StepsOfAPlanWithoutOptimizerHaveANormToo) {
  Compile("plain", "--spec megatron --mesh dp=1,tp=2");
  Compile("adamw", "--spec megatron --mesh dp=1,tp=2 --optimizer adamw");
  ToolResult r = RunOk("plain --steps 2 --json --input input_ids=@ids.npy");
  EXPECT_THAT(r.err, HasSubstr("compile with --optimizer"));
  Json plain = Json::parse(r.out)["steps"];
  Json adamw = Json::parse(RunOk("adamw --steps 2 --json --input input_ids=@ids.npy").out)["steps"];
  EXPECT_EQ(plain[0]["loss"], plain[1]["loss"]);
  EXPECT_NEAR(plain[0]["grad_norm"].get<double>(), adamw[0]["grad_norm"].get<double>(), 1e-5);
}

// States of the model's own begin with their values, with weights or without.
TEST_F(RunTest, StatesBeginWithTheirValues) {
  Write("count.shardc", R"(graph @g(%x: f32[2]) -> (%y) {
    %s = state "s" {dtype="f32", init=3.0, shape=[2]} : f32[2]
    %y = add %s, %x : f32[2]
    update "s" %y
  })");
  WriteSafetensors(Path("x.safetensors"), {{"x", HostTensor::Of<float>({2}, {1, 2})}});
  WriteSafetensors(Path("want.safetensors"), {{"y", HostTensor::Of<float>({2}, {4, 5})}});
  for (const std::string weights : {"split", "none"}) {
    ASSERT_EQ(Tool("compile count.shardc --loss none -o plan --weights " + weights).exit, 0);
    RunOk("plan --input x=@x.safetensors --check want.safetensors");
  }
}

TEST_F(RunTest, StepsOfALossThatIsNoNumberAreReportedWithoutIt) {
  for (const std::string size : {"0", "3"}) {
    Write("loss.shardc", "graph @g(%x: f32[" + size + "]) -> (loss: %y) {\n  %y = neg %x : f32[" +
                             size + "]\n}\n");
    ASSERT_EQ(Tool("compile loss.shardc --loss none -o plan").exit, 0);
    Json steps = Json::parse(RunOk("plan --random-inputs 1 --steps 2 --json").out)["steps"];
    EXPECT_TRUE(steps[1]["loss"].is_null());
  }
}

TEST_F(RunTest, JsonIsOneObject) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2");
  ToolResult r = RunOk("plan --random-inputs 3 --repeat 3 --json");
  Json json = Json::parse(r.out);
  EXPECT_EQ(json["times_s"].size(), 3u);
  EXPECT_LE(json["min_s"], json["median_s"]);
  EXPECT_NEAR(json["tokens_per_s"].get<double>() * json["median_s"].get<double>(), 32, 1e-6);
  EXPECT_GT(json["peak_bytes"], 2 * 60160);
  EXPECT_GT(json["collective_bytes"], 10 * 2 * 16 * 32 * 4);
  EXPECT_TRUE(json["outputs"]["loss"].is_number());
  EXPECT_FALSE(json.contains("steps"));
  EXPECT_THAT(r.err, AllOf(HasSubstr("median"), HasSubstr("tokens/s"), HasSubstr("GEMM")));
}

// What dump predicts of f16, of which the CPU makes copies, is as right as it is of f32: products
// pack some operands where run does not see it.
TEST_F(RunTest, TakesThePredictedMemory) {
  auto more_than_taken = [&](const std::string& precision, double* taken) {
    ToolResult r = Tool(
        "compile 'builtin:gpt?layers=2,hidden=128,heads=4,vocab=999,seq=256,batch=4'"
        " --loss lm -o " +
        precision + " --precision " + precision);
    EXPECT_EQ(r.exit, 0) << r.err;
    const Json plan = Dump(precision);
    *taken =
        Json::parse(RunOk(precision + " --random-inputs 1 --repeat 1 --json").out)["peak_bytes"];
    return plan["memory"]["total"].get<double>() - *taken;
  };
  double taken;
  const double wide = more_than_taken("f32", &taken), half = more_than_taken("f16", &taken);
  EXPECT_NEAR(half, wide, 0.01 * taken);
}

TEST_F(RunTest, RandomInputsFollowTheSeed) {
  Compile("plan", "--spec serial");
  std::string one = RunOk("plan --random-inputs 1").out;
  EXPECT_EQ(RunOk("plan --random-inputs 1").out, one);
  EXPECT_NE(RunOk("plan --random-inputs 2").out, one);
  for (const char* bad : {"-1", "one", "99999999999999999999"}) {
    EXPECT_EQ(Tool(StrCat("run plan --random-inputs ", bad)).exit, 2) << bad;
  }
}

// The same with every C++ library; all 64 bits of the seed count.
TEST_F(RunTest, RandomInputsAreTheSameEverywhere) {
  Write("x.shardc", "graph @g(%x: f32[2], %y: f32[2]) -> (z: %z) {\n  %z = neg %x : f32[2]\n}");
  ASSERT_EQ(Tool("compile x.shardc --loss none -o x").exit, 0);
  auto x = [&](const std::string& options) {
    RunOk("x --save z.safetensors --random-inputs " + options);
    return -SafetensorsFile(Path("z.safetensors")).Read("z").AsDouble(1);
  };
  const double one = x("1");
  EXPECT_NEAR(one, 0.48301437497, 1e-9);
  WriteNpy(Path("y.npy"), HostTensor(DType::kF32, {2}));
  EXPECT_EQ(x("1 --input y=@y.npy"), one);
  EXPECT_NE(x("4294967297"), one);
}

TEST_F(RunTest, LabelsAreTheInputsUnlessGiven) {
  Compile("plan", "--spec serial");
  ToolResult r = RunOk("plan --input input_ids=@ids.npy");
  EXPECT_THAT(r.err, HasSubstr("labels = input_ids"));
  ToolResult given = RunOk("plan --input input_ids=@ids.npy --input labels=@ids.npy");
  EXPECT_THAT(given.err, Not(HasSubstr("labels = input_ids")));
  EXPECT_EQ(given.out, r.out);
  WriteIds("other.npy", 4, 11);
  EXPECT_NE(RunOk("plan --input input_ids=@ids.npy --input labels=@other.npy").out, r.out);
}

TEST_F(RunTest, LabelsThatNothingShiftsMustBeGiven) {
  for (const char* loss : {"ce", "masked_lm"}) {
    Compile("plan", StrCat("--spec serial --loss ", loss));
    ToolResult r = Tool("run plan --input input_ids=@ids.npy");
    EXPECT_EQ(r.exit, 2) << loss;
    EXPECT_THAT(r.err, HasSubstr("input 'labels' is not given")) << loss;
  }
}

TEST_F(RunTest, InputsFromSafetensors) {
  Compile("plan", "--spec serial");
  HostTensor ids = ReadNpy(Path("ids.npy"));
  WriteSafetensors(Path("in.safetensors"), {{"input_ids", ids}, {"x", ids}});
  std::string out = RunOk("plan --input input_ids=@ids.npy").out;
  EXPECT_EQ(RunOk("plan --input input_ids=@in.safetensors").out, out);
  EXPECT_EQ(RunOk("plan --input input_ids=@in.safetensors:x").out, out);
  RunFails("plan --input input_ids=@in.safetensors:y", 74, {"E5103"});
  RunFails("plan --input input_ids=@in.safetensors:", 2, {"E4001", "name=@file"});
  RunFails("plan --input input_ids=@", 2, {"E4001", "name=@file"});
  // What the folder is called says nothing of the file.
  Shell("mkdir a.safetensors && cp ids.npy in.safetensors a.safetensors");
  EXPECT_EQ(RunOk("plan --input input_ids=@a.safetensors/ids.npy").out, out);
  EXPECT_EQ(RunOk("plan --input input_ids=@a.safetensors/in.safetensors:x").out, out);
}

// Numbers of another type are taken where none of them changes.
TEST_F(RunTest, InputsOfOtherTypes) {
  Compile("plan", "--spec serial");
  const std::string out = RunOk("plan --input input_ids=@ids.npy").out;
  const HostTensor ids = ReadNpy(Path("ids.npy"));
  WriteNpy(Path("i32.npy"), As(ids, DType::kI32));
  EXPECT_EQ(RunOk("plan --input input_ids=@i32.npy").out, out);

  Write("g.shardc",
        "graph @g(%i: i32[2], %x: f32[2]) -> (%y) {\n"
        "  %f = cast %i {to=\"f32\"} : f32[2]\n"
        "  %y = add %f, %x : f32[2]\n"
        "}\n");
  Compile("sums", "--loss none", "g.shardc");
  WriteSafetensors(Path("in.safetensors"),
                   {{"i", HostTensor::Of<int64_t>({2}, {-(int64_t{1} << 31), 5})},
                    {"wide", HostTensor::Of<int64_t>({2}, {0, int64_t{1} << 31})},
                    {"x", HostTensor::Of<float>({2}, {0, 0.5})},
                    {"bools",
                     [] {
                       HostTensor bools(DType::kBool, {3, 2});
                       for (int64_t i = 0; i < 6; ++i) bools.SetDouble(i, i % 2);
                       return bools;
                     }()},
                    {"doubles", HostTensor::Of<double>({2}, {0, 1})}});
  HostTensor half(DType::kF16, {2});
  half.SetDouble(1, 0.5);
  WriteNpy(Path("half.npy"), half);
  const std::string sum = "sums --input i=@in.safetensors --save y.safetensors --input x=@";
  const auto second = [&](const std::string& x) {
    RunOk(sum + x);
    return SafetensorsFile(Path("y.safetensors")).Read("y").AsDouble(1);
  };
  EXPECT_EQ(second("in.safetensors"), 5.5);
  EXPECT_EQ(second("half.npy"), 5.5);
  EXPECT_EQ(second("in.safetensors:bools --steps 3"), 6);
  RunFails(sum + "in.safetensors:doubles", 2, {"E4002", "f32[2], got f64[2]"});
  RunFails(sum + "in.safetensors:wide", 2, {"E4002", "f32[2], got i64[2]"});
  RunFails("sums --input x=@half.npy --input i=@in.safetensors:wide", 2,
           {"E4002", "--input i", "element 1 is 2147483648", "i32"});
  Write("b.shardc", "graph @g(%x: bf16[2]) -> (%y) {\n  %y = neg %x : bf16[2]\n}\n");
  Compile("halves", "--loss none", "b.shardc");
  RunFails("halves --input x=@in.safetensors", 2, {"bf16[2], got f32[2]", "numpy has no bf16"});
}

TEST_F(RunTest, WrongInputs) {
  Compile("plan", "--spec megatron --mesh dp=2,tp=2");
  RunFails("plan", 2, {"E4001", "'input_ids' is not given"});
  RunFails("plan --input inputids=@ids.npy", 2, {"E4001", "did you mean 'input_ids'"});
  RunFails("plan --input input_ids", 2, {"E4001", "name=@file"});
  RunFails("plan --input input_ids=@ids.npy --input input_ids=@ids.npy", 2, {"E4001", "twice"});
  RunFails("plan --input input_ids=@absent.npy", 74, {"E5001", "absent.npy"});
  Write("text.npy", "these are no numbers");
  RunFails("plan --input input_ids=@text.npy", 74, {"E5101", "text.npy", "end in .safetensors"});
  WriteNpy(Path("float.npy"), HostTensor(DType::kF32, {2, 16}));
  RunFails("plan --input input_ids=@float.npy", 2,
           {"E4002", "i64[2, 16]", "f32[2, 16]", "convert the array to i64"});
  WriteNpy(Path("long.npy"), HostTensor(DType::kI64, {2, 17}));
  RunFails("plan --input input_ids=@long.npy", 2,
           {"E4002", "i64[2, 16]", "i64[2, 17]", "compile with --bind"});
}

// The second sequence lives on the second half of the ranks, or in two stretches on each; its
// position is the one in the whole array.
TEST_F(RunTest, TokensOutsideTheVocabulary) {
  WriteIds("big.npy", 16 + 5, 97);
  WriteIds("negative.npy", 3, -1);
  for (const char* options :
       {"--spec serial", "--spec megatron --mesh dp=2,tp=2", "--spec megatron --mesh cp=2"}) {
    Compile("plan", options);
    RunFails("plan --input input_ids=@big.npy --input labels=@ids.npy", 2,
             {"E4003", "step 1", "ids[1, 5] = 97", "[0, 97)", "input 'input_ids'"});
    RunFails("plan --input input_ids=@negative.npy --input labels=@ids.npy", 2,
             {"E4003", "[0, 3] = -1", "input 'input_ids'"});
    RunFails("plan --input input_ids=@ids.npy --input labels=@big.npy", 2,
             {"E4003", "labels[1, 4] = 97", "input 'labels' through slice, pad", "or -100 to"});
  }
}

// Also where the ids come to their op in pieces, and to another stage than the first.
TEST_F(RunTest, TokensOutsideTheVocabularyInALaterStep) {
  HostTensor ids(DType::kI64, {3, 2, 16});
  ids.SetDouble(2 * 32 + 16 + 5, 97);
  WriteNpy(Path("ids.npy"), ids);
  WriteNpy(Path("zeros.npy"), HostTensor(DType::kI64, {2, 16}));
  for (const char* options : {"--spec serial --microbatches 2", "--spec megatron --mesh tp=2",
                              "--spec megatron --mesh pp=2 --microbatches 2"}) {
    Compile("plan", options);
    RunFails("plan --steps 3 --input input_ids=@ids.npy --input labels=@zeros.npy", 2,
             {"E4003", "step 3", "instruction", "= 97", "input 'input_ids'"});
    RunFails("plan --steps 3 --input input_ids=@zeros.npy --input labels=@ids.npy", 2,
             {"E4003", "step 3", "instruction", "= 97", "input 'labels'"});
  }
}

// They are the user's numbers, and no fault of the model.
TEST_F(RunTest, IntegersWithoutAResult) {
  Write("ints.shardc", R"(graph @g(%a: i64[4], %b: i64[4]) -> (q: %q, p: %p) {
    %q = div %a, %b {site="bad.div"} : i64[4]
    %p = mul %a, %a {site="bad.mul"} : i64[4]
  })");
  const ToolResult r = Tool("compile ints.shardc --loss none -o ints");
  ASSERT_EQ(r.exit, 0) << r.err;
  HostTensor values(DType::kI64, {4});
  WriteNpy(Path("zeros.npy"), values);
  for (int i = 0; i < 4; ++i) values.data<int64_t>()[i] = i + 1;
  WriteNpy(Path("small.npy"), values);
  values.data<int64_t>()[1] = int64_t{1} << 62;
  WriteNpy(Path("large.npy"), values);
  RunOk("ints --input a=@small.npy --input b=@small.npy");
  RunFails("ints --input a=@small.npy --input b=@zeros.npy", 2,
           {"E4010: step 1", "instruction", "div at bad.div", "the integer 1 is divided by zero",
            "input 'a', 'b'", "look at the integers"});
  RunFails("ints --input a=@large.npy --input b=@small.npy", 2,
           {"E4010: step 1", "mul at bad.mul", "overflows; its operands come from input 'a'"});
}

// The instruction that made the first NaN, and of a fused one the ops that it stands for.
TEST_F(RunTest, CheckNumericsNamesTheOp) {
  Write("nan.shardc", R"(graph @g(%x: f32[2, 8]) -> (loss: %l) {
    %0 = neg %x {site="first"} : f32[2, 8]
    %1 = abs %0 : f32[2, 8]
    %2 = neg %1 : f32[2, 8]
    %3 = log %2 {site="bad.log"} : f32[2, 8]
    %l = reduce_sum %3 {axes=[0, 1], keepdims=false} : f32[]
  })");
  ToolResult r = Tool("compile nan.shardc --loss output:loss -o nan");
  ASSERT_EQ(r.exit, 0) << r.err;
  RunOk("nan --random-inputs 1");
  RunFails("nan --random-inputs 1 --check-numerics", 7,
           {"E4005", "neg, abs, neg, log at bad.log", "at element 0 of f32[2, 8]"});
}

// A file that is written must not be one that is read, under another name too, or written twice.
TEST_F(RunTest, FilesStayApart) {
  Compile("plan", "--spec serial");
  EXPECT_EQ(Tool("run plan --input input_ids=@ids.npy --save out.safetensors").exit, 0);
  Shell("ln -s out.safetensors link && ln ids.npy hard");
  const std::string ids = Read("ids.npy"), out = Read("out.safetensors");
  const std::string run = "plan --input input_ids=@ids.npy ";
  RunFails(run + "--check out.safetensors --save ./out.safetensors", 2,
           {"E6121", "--save ./out.safetensors", "--check"});
  RunFails(run + "--check out.safetensors --save-params link", 2, {"E6121", "--check"});
  RunFails(run + "--save hard", 2, {"E6121", "--input"});
  for (const char* same : {"new", "./new", "plan/../new", "$PWD/new"}) {
    RunFails(run + "--save new --save-checkpoint " + same, 2, {"E6121", "--save new"});
  }
  EXPECT_EQ(Read("ids.npy"), ids);
  EXPECT_EQ(Read("out.safetensors"), out);
  EXPECT_FALSE(std::filesystem::exists(Path("new")));
  RunFails(run + "--save-params plan/weights/rank0000.safetensors", 2, {"E6121", "the plan"});
  RunFails(run + "--profile plan/manifest.textproto", 2, {"E6121", "the plan"});
  EXPECT_EQ(Tool("run " + run + "--save /dev/null --save-params /dev/null").exit, 0);
  const std::string again = "--save-checkpoint state.safetensors";
  EXPECT_EQ(Tool("run " + run + again).exit, 0);
  EXPECT_EQ(Tool("run " + run + again + " --load state.safetensors").exit, 0);
}

TEST_F(RunTest, Usage) {
  Compile("plan", "--spec serial");
  // As on a machine without CUDA.
  setenv("SHARDC_CUDA_PLUGIN", "/no/such/plugin.so", 1);
  RunFails("plan --backend cuda --random-inputs 1", 74, {"E4302"});
  unsetenv("SHARDC_CUDA_PLUGIN");
  setenv("SHARDC_ISA", "avx2", 1);
  RunFails("plan --random-inputs 1", 2, {"E4305", "no level 'avx2'", "one of: v1"});
  unsetenv("SHARDC_ISA");
  RunFails("plan --shared-device --random-inputs 1", 2, {"E6120"});
  RunFails("plan --fast-nondeterministic --random-inputs 1", 2,
           {"E6120", "--fast-nondeterministic"});
  // As a process of mpirun, where MPI is not to be found.
  auto launched = [&](const std::string& rank, const std::string& arguments) {
    return Shell("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=" + rank +
                 " SHARDC_MPI_LIBRARY=/no/such/plugin.so '" + SHARDC_TOOL + "' run " + arguments);
  };
  for (const auto& [arguments, id, exit] :
       {std::tuple("plan --random-inputs 1", "E4303", 74),
        {"plan --backend cuda --shared-device --random-inputs 1", "E4326", 2},
        {"plan --no-such-option", "--no-such-option", 2}}) {
    ToolResult first = launched("0", arguments), second = launched("1", arguments);
    EXPECT_EQ(first.exit, exit) << arguments;
    EXPECT_EQ(second.exit, exit) << arguments;
    // One process speaks for all.
    EXPECT_THAT(first.err, HasSubstr(id));
    EXPECT_EQ(second.err, "") << arguments;
  }
  RunFails("plan --backend tpu", 2, {});
  RunFails("plan --steps 0", 2, {"not in range"});
  for (const char* option : {"--save", "--save-params", "--save-checkpoint", "--load", "--check",
                             "--profile", "--rtol", "--atol", "--input", "--random-inputs"}) {
    RunFails(std::string("plan --random-inputs 1 ") + option + " ''", 2,
             {option, "a value is missing"});
  }
  // Nobody writes into it, and nobody waits for that.
  Shell("mkfifo silent silent.npy");
  RunFails("plan --random-inputs 1 --load silent", 74, {"E5001", "silent"});
  RunFails("plan --random-inputs 1 --check silent", 74, {"E5001", "silent"});
  RunFails("plan --input input_ids=@silent.npy", 74, {"E5001", "silent"});
  RunFails("plan --threads 1025", 2, {"not in range"});
  RunFails("plan --steps 2 --repeat 2", 2, {});
  RunFails("plan --rtol -1", 2, {"-1 is not a number from 0 on"});
  RunFails("plan --rtol 1", 2, {"E6100: shardc run: --rtol requires --check", "shardc run --help"});
  RunFails("plan --module-names", 2, {"E6100", "no file is written", "--save-params"});
  RunFails("plan --stesp=1", 2, {"--stesp: did you mean '--steps'", "`shardc run --help`"});
  RunFails("plan --atol nan", 2, {"nan is not a number from 0 on"});
  RunFails("", 2, {"plan"});
  RunFails("plan --random-inputs 1 --save no/such/folder.safetensors", 74, {"E5003"});
  // Before any step is run.
  EXPECT_EQ(Tool("run plan --random-inputs 1 --steps 3 --save-params no/such/p.safetensors").out,
            "");
  // What is no regular file is written to, not replaced; links are followed.
  ToolResult pipe = Shell(std::string("mkfifo pipe && { cat pipe >through & '") + SHARDC_TOOL +
                          "' run plan --random-inputs 1 --save pipe && wait && test -p pipe; }");
  EXPECT_EQ(pipe.exit, 0) << pipe.err;
  ToolResult link = Shell(std::string("ln -s real link && '") + SHARDC_TOOL +
                          "' run plan --random-inputs 1 --save link && test -L link");
  EXPECT_EQ(link.exit, 0) << link.err;
  EXPECT_EQ(Read("through"), Read("real"));
  EXPECT_FALSE(Read("real").empty());
  RunOk("plan --random-inputs 1 --check-numerics --threads 1");
}

}  // namespace
}  // namespace shardc::testing
