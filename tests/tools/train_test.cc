// Training over several runs: other data in every step, checkpoints, schedules.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "ir/manifest.h"
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

constexpr const char* kTraining =
    " --loss lm --optimizer adamw --lr 1e-2 --weight-decay 0.1 --clip-norm 0.5 --lr-warmup-steps 2 "
    "--lr-decay cosine --lr-decay-steps 6 --min-lr 1e-3";
// Five q heads and one of k and v: with tp=2 the plan keeps q, k and v of the fused weight apart.
constexpr const char* kMqa =
    "'builtin:gpt?layers=2,hidden=40,heads=5,kv_heads=1,vocab=97,seq=16,batch=2,qkv=fused,"
    "dropout=0.1,attention_dropout=0.1'";

class TrainTest : public ToolTest {
 protected:
  // Tokens of the steps from `first` to `last`.
  void WriteSteps(const std::string& name, int64_t first, int64_t last) const {
    HostTensor ids(DType::kI64, {last - first, 2, 16});
    for (int64_t i = 0; i < ids.num_elements(); ++i) {
      const int64_t at = i + 32 * first;
      ids.data<int64_t>()[i] = (7 * at + 3 + at * at / 11) % 97;
    }
    WriteNpy(Path(name), ids);
  }
  Json Steps(const std::string& arguments) const {
    ToolResult r = Tool("run " + arguments + " --json");
    EXPECT_EQ(r.exit, 0) << arguments << ": " << r.err;
    return r.exit == 0 ? Json::parse(r.out)["steps"] : Json::array();
  }
};

void ExpectSteps(const Json& got, const Json& expected, size_t first, double bound) {
  ASSERT_EQ(got.size() + first, expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    for (const char* key : {"loss", "grad_norm", "learning_rate"}) {
      EXPECT_NEAR(got[i][key], expected[i + first][key].get<double>(), bound) << key << " " << i;
    }
  }
}

// Three steps, a checkpoint, and three more, on any other mesh, are six steps.
TEST_F(TrainTest, ResumesWhereItStopped) {
  WriteSteps("all.npy", 0, 6);
  WriteSteps("head.npy", 0, 3);
  WriteSteps("tail.npy", 3, 6);
  for (const char* model : {kModel, kMqa}) {
    Compile("whole", std::string("--spec serial") + kTraining, model);
    const Json whole =
        Steps("whole --steps 6 --input input_ids=@all.npy --save-checkpoint whole.safetensors");
    EXPECT_EQ(whole[0]["learning_rate"], 0);
    EXPECT_NEAR(whole[2]["learning_rate"], 1e-2, 1e-9);
    ExpectSteps(
        Steps("whole --steps 3 --input input_ids=@head.npy --save-checkpoint half.safetensors"),
        {whole[0], whole[1], whole[2]}, 0, 0);
    ExpectSteps(Steps("whole --steps 3 --input input_ids=@tail.npy --load half.safetensors "
                      "--save-checkpoint again.safetensors"),
                whole, 3, 0);
    EXPECT_EQ(Read("again.safetensors"), Read("whole.safetensors")) << "not the same bits";
    for (const char* cut : {"--spec megatron --mesh dp=1,tp=2", "--spec megatron_sp --mesh tp=3",
                            "--spec megatron --mesh dp=2,tp=1 --zero 3",
                            "--spec megatron --mesh pp=2,tp=2 --microbatches 2"}) {
      Compile("cut", cut + std::string(" --weights none") + kTraining, model);
      ExpectSteps(Steps("cut --steps 3 --input input_ids=@tail.npy --load half.safetensors "
                        "--save-checkpoint cut.safetensors"),
                  whole, 3, 1e-4);
      SafetensorsFile cut_file(Path("cut.safetensors")), whole_file(Path("whole.safetensors"));
      EXPECT_EQ(cut_file.entries().size(), whole_file.entries().size()) << cut;
    }
  }
}

TEST_F(TrainTest, LoadsParametersAlone) {
  WriteSteps("ids.npy", 0, 2);
  Compile("plan", std::string("--spec serial") + kTraining);
  Steps("plan --steps 2 --input input_ids=@ids.npy --save-params params.safetensors");
  Compile("tp", "--spec megatron --mesh tp=2 --weights none --loss lm");
  ToolResult tp = Tool("run tp --input input_ids=@ids.npy --load params.safetensors --json");
  ASSERT_EQ(tp.exit, 0) << tp.err;
  EXPECT_THAT(tp.err, AllOf(HasSubstr("the inputs hold 2 steps; --steps runs more than 1"),
                            Not(HasSubstr("begins anew"))));
  ToolResult plan = Tool("run plan --input input_ids=@ids.npy --load params.safetensors --json");
  EXPECT_THAT(plan.err, HasSubstr("params.safetensors has no state of the optimizer"));
  Json got = Json::parse(plan.out)["outputs"];
  EXPECT_EQ(got["learning_rate"], 0) << "it counts from the first step again";
  EXPECT_NEAR(Json::parse(tp.out)["outputs"]["loss"], got["loss"].get<double>(), 1e-5);

  // Of other float types, and with tensors that nobody wants.
  SafetensorsFile params(Path("params.safetensors"));
  std::map<std::string, HostTensor> other;
  for (const auto& [name, entry] : params.entries()) {
    other[name] = As(params.Read(name), DType::kF64);
  }
  other["extra"] = HostTensor(DType::kF32, {3});
  WriteSafetensors(Path("other.safetensors"), other);
  ToolResult wide = Tool("run tp --input input_ids=@ids.npy --load other.safetensors --json");
  EXPECT_EQ(Json::parse(wide.out)["outputs"], Json::parse(tp.out)["outputs"]);
  EXPECT_THAT(wide.err,
              HasSubstr("other.safetensors has 1 tensor that the plan does not: 'extra'"));
  EXPECT_THAT(wide.err,
              HasSubstr("other.safetensors has 28 tensors of another type, which are converted"));
}

// A plan knows a parameter by several names. Those of what an exporter transposed are not its own,
// and what is tied in the plan must be so in the file.
TEST_F(TrainTest, LoadsUnderOtherNamesOnlyWhatIsEqual) {
  Write("g.shardc",
        "graph @g(%x: f32[1, 2]) -> (%y) {\n"
        "  %w = param \"val_0\" {aliases=[\"tied\", \"l.weight\"], source_aliases=[\"l.weight\"]}"
        " : f32[2, 2]\n"
        "  %y = matmul %x, %w : f32[1, 2]\n"
        "}\n");
  Compile("plan", "--loss none --weights none", "g.shardc");
  WriteNpy(Path("x.npy"), HostTensor::Of<float>({1, 2}, {1, 10}));
  const auto w = HostTensor::Of<float>({2, 2}, {1, 2, 3, 4});
  const auto turned = HostTensor::Of<float>({2, 2}, {1, 3, 2, 4});
  const auto other = HostTensor::Of<float>({2, 2}, {1, 2, 3, 5});
  const std::string run = "plan --input x=@x.npy --load w.safetensors";
  for (const std::map<std::string, HostTensor>& file :
       {std::map<std::string, HostTensor>{{"val_0", w}},
        {{"tied", w}},
        {{"val_0", w}, {"tied", w}},
        {{"val_0", w}, {"l.weight", turned}},
        {{"val_0", w}, {"l.weight", w}}}) {
    WriteSafetensors(Path("w.safetensors"), file);
    const ToolResult r = Tool("run " + run + " --save y.safetensors");
    ASSERT_EQ(r.exit, 0) << r.err;
    EXPECT_EQ(SafetensorsFile(Path("y.safetensors")).Read("y").AsDouble(1), 42);
  }
  WriteSafetensors(Path("w.safetensors"), {{"l.weight", turned}});
  RunFails(run, 2, {"E4010", "has 'l.weight' and no 'val_0', which the exporter"});
  Write("t.shardc",
        "graph @g(%x: f32[1, 2]) -> (%y) {\n"
        "  %w = param \"val_0\" {aliases=[\"l.weight\"], source_aliases=[\"l.weight\"], "
        "transpose_of=\"l.weight\"} : f32[2, 2]\n"
        "  %y = matmul %x, %w : f32[1, 2]\n"
        "}\n");
  Compile("turned", "--loss none --weights none", "t.shardc");
  WriteSafetensors(Path("w.safetensors"), {{"l.weights", turned}});
  RunFails("turned --input x=@x.npy --load w.safetensors", 2,
           {"has no tensor 'val_0', a parameter of the plan, nor the module's 'l.weight'",
            "did you mean 'l.weights'?", "compile with --module"});
  for (const char* name : {"tied", "l.weight"}) {
    WriteSafetensors(Path("w.safetensors"), {{"val_0", w}, {name, other}});
    RunFails(run, 2, {"E4010", "'val_0' and '" + std::string(name) + "' are one parameter"});
  }
}

// What the exporter folded into a parameter is in a file of the module, whose tensor of the same
// name holds other numbers.
TEST_F(TrainTest, LoadsNoTensorThatTheExporterComputedOthersInto) {
  Write("g.shardc",
        "graph @g(%x: f32[1, 2]) -> (%y) {\n"
        "  %w = param \"l.weight\" {merged=[\"n.mean\"]} : f32[2, 2]\n"
        "  %y = matmul %x, %w : f32[1, 2]\n"
        "}\n");
  Compile("plan", "--loss none --weights none", "g.shardc");
  WriteNpy(Path("x.npy"), HostTensor::Of<float>({1, 2}, {1, 10}));
  const auto w = HostTensor::Of<float>({2, 2}, {1, 2, 3, 4});
  const std::string run = "plan --input x=@x.npy --load w.safetensors";
  WriteSafetensors(Path("w.safetensors"), {{"l.weight", w}});
  EXPECT_EQ(Tool("run " + run).exit, 0);
  WriteSafetensors(Path("w.safetensors"), {{"l.weight", w}, {"n.mean", w}});
  RunFails(run, 2, {"E4010", "has 'n.mean', which the exporter of the model computed into"});
}

// As a batch norm's running means, which training moves.
TEST_F(TrainTest, LoadsNoFileWhoseConstantsAreOthers) {
  Write("g.shardc",
        "graph @g(%x: f32[1, 2]) -> (%y) {\n"
        "  %w = param \"l.weight\" : f32[2, 2]\n"
        "  %y = matmul %x, %w : f32[1, 2]\n"
        "}\n");
  Compile("plan", "--loss none --weights none", "g.shardc");
  const auto mean = HostTensor::Of<float>({2}, {.1f, 2}),
             other = HostTensor::Of<float>({2}, {1, 2});
  Manifest manifest = ReadManifest(ManifestPath(Path("plan")));
  manifest.fixed["mean"] = FixedTensorOf(mean);
  WriteManifest(manifest, ManifestPath(Path("plan")));
  WriteNpy(Path("x.npy"), HostTensor::Of<float>({1, 2}, {1, 10}));
  const auto w = HostTensor::Of<float>({2, 2}, {1, 2, 3, 4});
  const std::string run = "plan --input x=@x.npy --load w.safetensors";
  for (const HostTensor& same : {mean, As(mean, DType::kF64), As(mean, DType::kBF16)}) {
    WriteSafetensors(Path("w.safetensors"), {{"l.weight", w}, {"mean", same}});
    const ToolResult r = Tool("run " + run);
    EXPECT_EQ(r.exit, 0) << r.err;
  }
  WriteSafetensors(Path("w.safetensors"), {{"l.weight", w}, {"mean", other}});
  RunFails(run, 2, {"E4010", "'mean' is not as in the model that was compiled"});
}

// Also where f32 has no next whole number, and from checkpoints that have the count in f32.
TEST_F(TrainTest, CountsStepsExactly) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  Steps("plan --steps 1 --input input_ids=@ids.npy --save-checkpoint first.safetensors");
  SafetensorsFile first(Path("first.safetensors"));
  std::map<std::string, HostTensor> tensors;
  for (const auto& [name, entry] : first.entries()) tensors[name] = first.Read(name);
  const auto run = [&](const HostTensor& step) {
    tensors["optimizer.step"] = step;
    WriteSafetensors(Path("changed.safetensors"), tensors);
    ToolResult r = Tool(
        "run plan --steps 2 --input input_ids=@ids.npy --load changed.safetensors "
        "--save-checkpoint next.safetensors --json");
    EXPECT_EQ(r.exit, 0) << r.err;
    EXPECT_EQ(r.err.find("rounded"), std::string::npos) << r.err;
    const HostTensor next = SafetensorsFile(Path("next.safetensors")).Read("optimizer.step");
    EXPECT_EQ(next.dtype(), DType::kI64);
    return next.AsInt(0);
  };
  constexpr int64_t kLast = int64_t{1} << 24;
  EXPECT_EQ(run(HostTensor::Scalar<int64_t>(kLast)), kLast + 2);
  EXPECT_EQ(run(HostTensor::Scalar<float>(static_cast<float>(kLast))), kLast + 2);
  EXPECT_EQ(run(HostTensor::Scalar<float>(3)), 5);
  for (const float bad : {2.5f, -1.0f, INFINITY, NAN}) {
    tensors["optimizer.step"] = HostTensor::Scalar<float>(bad);
    WriteSafetensors(Path("changed.safetensors"), tensors);
    RunFails("plan --input input_ids=@ids.npy --load changed.safetensors", 2,
             {"E4010", "'optimizer.step' is f32[], and the plan's is i64[]"});
  }
  for (const int64_t bad : {int64_t{-3}, std::numeric_limits<int64_t>::max()}) {
    tensors["optimizer.step"] = HostTensor::Scalar<int64_t>(bad);
    WriteSafetensors(Path("changed.safetensors"), tensors);
    RunFails("plan --input input_ids=@ids.npy --load changed.safetensors", 2,
             {"E4010", "'optimizer.step' is", "which is no number of steps"});
  }
}

// What counts the steps of dropouts is no optimizer's.
TEST_F(TrainTest, DropoutMayBeAddedOnTheWay) {
  WriteIds();
  const std::string model = std::string(kModel).substr(0, std::string(kModel).size() - 1);
  Compile("plain", std::string("--spec serial") + kTraining);
  Compile("dropout", std::string("--spec megatron --mesh tp=2") + kTraining,
          model + ",dropout=0.1'");
  Steps("plain --steps 2 --input input_ids=@ids.npy --save-checkpoint plain.safetensors");
  const Json on = Steps(
      "dropout --steps 2 --input input_ids=@ids.npy --load plain.safetensors "
      "--save-checkpoint dropout.safetensors");
  EXPECT_NEAR(on[0]["learning_rate"], 1e-2, 1e-9) << "the third step";
  const Json off = Steps("plain --steps 1 --input input_ids=@ids.npy --load dropout.safetensors");
  EXPECT_LT(off[0]["learning_rate"], on[1]["learning_rate"]);
}

TEST_F(TrainTest, RefusesCheckpointsOfOtherModels) {
  WriteIds();
  Compile("plan", std::string("--spec megatron --mesh tp=2") + kTraining);
  Compile("sgd", "--spec serial --loss lm --optimizer sgd --momentum 0.9");
  Steps("sgd --steps 1 --input input_ids=@ids.npy --save-checkpoint sgd.safetensors");
  const std::string run = "plan --input input_ids=@ids.npy --load ";
  RunFails(run + "sgd.safetensors", 2,
           {"E4010", "--load sgd.safetensors", "has 1 of the optimizer's 57"});
  RunFails(run + "absent.safetensors", 74, {"E5001"});
  RunFails(run + "ids.npy", 74, {"E5102"});

  SafetensorsFile file(Path("sgd.safetensors"));
  std::map<std::string, HostTensor> tensors;
  for (const auto& [name, entry] : file.entries()) {
    if (name.find("sgd") == std::string::npos && name != "optimizer.step")
      tensors[name] = file.Read(name);
  }
  auto with = [&](const std::string& name, const HostTensor* value) {
    auto changed = tensors;
    changed.erase(name);
    if (value) changed[name] = *value;
    WriteSafetensors(Path("changed.safetensors"), changed);
  };
  const std::string name = "transformer.ln_f.weight";
  with(name, nullptr);
  RunFails(run + "changed.safetensors", 2,
           {"E4010", "has no tensor '" + name + "'", "did you mean 'transformer."});
  const HostTensor shape(DType::kF32, {33}), type(DType::kI64, {32});
  with(name, &shape);
  RunFails(run + "changed.safetensors", 2, {"E4010", "is f32[33], and the plan's is f32[32]"});
  with(name, &type);
  RunFails(run + "changed.safetensors", 2, {"E4010", "is i64[32], and the plan's is f32[32]"});
  const HostTensor bytes(DType::kBool, {32});
  with(name, &bytes);
  std::string text = Read("changed.safetensors");
  const std::string from = "\"BOOL\"", to = "\"F8_E4M3\"";
  ASSERT_NE(text.find(from), std::string::npos);
  text.replace(text.find(from), from.size(), to);
  text[0] = static_cast<char>(text[0] + (to.size() - from.size()));  // of the header
  Write("changed.safetensors", text);
  RunFails(run + "changed.safetensors", 2,
           {"E4010", "'" + name + "' has dtype F8_E4M3, which is not supported"});
}

// What the steps have made is not lost to what comes after them, and a bad path is said before.
TEST_F(TrainTest, CheckpointsComeFirst) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  const std::string run =
      "run plan --steps 2 --input input_ids=@ids.npy --save-checkpoint c.safetensors ";
  WriteSafetensors(Path("other.safetensors"), {{"loss", HostTensor::Scalar<float>(100)}});
  EXPECT_EQ(Tool(run + "--check other.safetensors").exit, 7);
  EXPECT_FALSE(Read("c.safetensors").empty());
  for (const char* bad :
       {"--check absent.safetensors", "--profile no/such/t.json", "--save no/such/o.safetensors"}) {
    const ToolResult r = Tool(run + bad);
    EXPECT_EQ(r.exit, 74) << bad;
    EXPECT_EQ(r.out, "") << bad;
  }
}

// A checkpoint on the way that cannot be written stops the run, whose other files are written.
TEST_F(TrainTest, StopsWhereACheckpointOnTheWayIsNotWritten) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  const ToolResult r = Tool(
      "run plan --steps 5 --json --input input_ids=@ids.npy --save-interval 2 "
      "--save-checkpoint /dev/full --save-params params.safetensors");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E5004: /dev/full"), HasSubstr("stopped after step 2 of 5")));
  EXPECT_EQ(Json::parse(r.out)["steps"].size(), 2);
  EXPECT_TRUE(std::filesystem::exists(Path("params.safetensors")));
}

// A batch that has no label has no loss, and its gradients are zero: training goes on.
TEST_F(TrainTest, GoesOnAfterABatchWithoutLabels) {
  WriteIds();
  HostTensor none(DType::kI64, {2, 16});
  std::fill_n(none.data<int64_t>(), none.num_elements(), -100);
  WriteNpy(Path("none.npy"), none);
  Compile("plan", std::string("--spec megatron --mesh dp=2,tp=2") + kTraining);
  const Json steps = Steps(
      "plan --steps 2 --input input_ids=@ids.npy --input labels=@none.npy --save-params "
      "params.safetensors");
  ASSERT_EQ(steps.size(), 2);
  EXPECT_EQ(steps[1]["loss"], nullptr);
  EXPECT_EQ(steps[1]["grad_norm"], 0);
}

// A file that cannot be written takes neither the others along nor the report.
TEST_F(TrainTest, OneFileThatCannotBeWrittenIsMissingAlone) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  for (const char* option : {"--save-checkpoint", "--save-params", "--save", "--profile"}) {
    std::string run = "run plan --steps 1 --json --input input_ids=@ids.npy";
    for (const char* o : {"--save-checkpoint", "--save-params", "--save", "--profile"}) {
      run += StrCat(" ", o, " ", o == option ? "/dev/full" : o + 2);
    }
    const ToolResult r = Tool(run);
    EXPECT_EQ(r.exit, 74) << option;
    EXPECT_THAT(r.err, HasSubstr("E5004: /dev/full")) << option;
    EXPECT_EQ(Json::parse(r.out)["steps"].size(), 1) << option;
    for (const char* o : {"save-checkpoint", "save-params", "save", "profile"}) {
      EXPECT_EQ(std::filesystem::remove(Path(o)), std::string(option + 2) != o)
          << option << " " << o;
    }
  }
}

// A run that fails has told of the steps before, and its last checkpoint is there to go on with.
TEST_F(TrainTest, CheckpointsOnTheWay) {
  WriteSteps("all.npy", 0, 4);
  WriteSteps("tail.npy", 2, 4);
  HostTensor bad = ReadNpy(Path("all.npy"));
  bad.data<int64_t>()[3 * 32] = 97;
  WriteNpy(Path("bad.npy"), bad);
  Compile("plan", std::string("--spec megatron --mesh tp=2") + kTraining);
  const ToolResult r = Tool(
      "run plan --steps 4 --input input_ids=@bad.npy --input labels=@all.npy --save-interval 2 "
      "--save-checkpoint c.safetensors");
  EXPECT_EQ(r.exit, 2) << r.err;
  EXPECT_THAT(r.err, HasSubstr("E4003: step 4:"));
  EXPECT_THAT(r.out, AllOf(HasSubstr("\n     1  "), HasSubstr("\n     3  ")));
  const Json whole = Steps("plan --steps 4 --input input_ids=@all.npy");
  ExpectSteps(Steps("plan --steps 2 --input input_ids=@tail.npy --load c.safetensors"), whole, 2,
              0);
  EXPECT_EQ(Tool("run plan --steps 4 --save-interval 2 --random-inputs 1").exit, 2);
}

// oneDNN's products have the stack pointer in the heap, where the frame of a handler would lie:
// under mpirun, where the first thread computes, Ctrl-C ended in "corrupted size vs. prev_size".
TEST_F(TrainTest, SignalsComeToAThreadThatDoesNotCompute) {
  WriteIds();
  Compile("plan", std::string("--spec megatron --mesh tp=2") + kTraining);
  const ToolResult r = Shell(std::string("'") + SHARDC_TOOL +
                             "' run plan --steps 1000000 --input input_ids=@ids.npy --save-params "
                             "p.safetensors >log 2>&1 & "
                             "while kill -0 $! && ! grep -q '^ *2 ' log; do sleep 0.01; done; "
                             "grep -h SigBlk /proc/$!/task/*/status; kill $!; wait $!");
  std::istringstream lines(r.out);
  int threads = 0, open = 0;
  std::string title, mask;
  while (lines >> title >> mask) {
    ++threads;
    constexpr uint64_t kInt = 1u << (SIGINT - 1), kTerm = 1u << (SIGTERM - 1);
    if ((std::stoull(mask, nullptr, 16) & (kInt | kTerm)) == 0) ++open;
  }
  EXPECT_GE(threads, 4) << r.out;
  EXPECT_EQ(open, 1) << r.out;
  EXPECT_EQ(r.exit, 128 + SIGTERM);
}

// Ctrl-C, and what batch systems send: the step is finished, and what it has made is saved.
TEST_F(TrainTest, CheckpointWhenInterrupted) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  const std::string run =
      std::string("'") + SHARDC_TOOL + "' run plan --input input_ids=@ids.npy --steps 100000000 ";
  const std::string until_two =
      " >log & while kill -0 $! && ! grep -q '^ *2 ' log; do sleep 0.01; done; kill $!; wait $!";
  const ToolResult r = Shell(run + "--save-checkpoint c.safetensors" + until_two);
  EXPECT_EQ(r.exit, 128 + 15) << r.err;
  EXPECT_THAT(r.err, HasSubstr("note: interrupted after step "));
  const std::string log = Read("log");
  EXPECT_EQ(SafetensorsFile(Path("c.safetensors")).Read("optimizer.step").AsDouble(0),
            std::count(log.begin(), log.end(), '\n') - 1);
  EXPECT_EQ(Shell(run + until_two).exit, 128 + 15);
  EXPECT_EQ(List("."), "c.safetensors ids.npy log plan");
}

// `| head`: the run goes on, saves what it was to save, and says at the end what was lost.
TEST_F(TrainTest, CheckpointWhenNobodyReads) {
  WriteIds();
  Compile("plan", std::string("--spec serial") + kTraining);
  Shell(std::string("{ '") + SHARDC_TOOL +
        "' run plan --input input_ids=@ids.npy --steps 50 --save-checkpoint c.safetensors 2>err; "
        "echo $? >code; } | true");
  EXPECT_EQ(Read("code"), "74\n") << Read("err");
  EXPECT_EQ(SafetensorsFile(Path("c.safetensors")).Read("optimizer.step").AsDouble(0), 50);
}

TEST_F(TrainTest, InputsOfSeveralStepsComeOneAfterTheOther) {
  WriteSteps("two.npy", 0, 2);
  WriteSteps("three.npy", 0, 3);
  WriteSteps("first.npy", 0, 1);
  Compile("plan", "--spec serial --loss lm");
  const Json around = Steps("plan --steps 5 --input input_ids=@two.npy");
  EXPECT_NE(around[0], around[1]);
  for (size_t i = 2; i < 5; ++i) EXPECT_EQ(around[i], around[i % 2]);
  EXPECT_EQ(Steps("plan --steps 1 --input input_ids=@first.npy")[0], around[0]);
  // Labels that stay while the tokens change.
  WriteIds();
  const Json labels = Steps("plan --steps 3 --input input_ids=@two.npy --input labels=@ids.npy");
  EXPECT_NE(labels[0], labels[1]);
  EXPECT_NE(labels[0], around[0]);
  EXPECT_EQ(labels[0], labels[2]);
  ToolResult equal = Tool("run plan --steps 2 --input input_ids=@ids.npy");
  EXPECT_THAT(equal.err, HasSubstr("all steps are equal"));
  equal = Tool("run plan --steps 2 --input input_ids=@two.npy");
  EXPECT_THAT(equal.err, Not(HasSubstr("all steps are equal")));
  RunFails("plan --steps 2 --input input_ids=@two.npy --input labels=@three.npy", 2,
           {"E4002", "'input_ids' holds 2"});
  WriteNpy(Path("none.npy"), HostTensor(DType::kI64, {0, 2, 16}));
  RunFails("plan --steps 2 --input input_ids=@none.npy", 2, {"E4002", "[0, 2, 16]"});
}

}  // namespace
}  // namespace shardc::testing
