// What compile writes, and that a damaged plan is refused.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>

#include "ir/checksum.h"
#include "ir/manifest.h"
#include "ir/output_file.h"
#include "ir/safetensors.h"
#include "tests/ir/write_tensors.h"
#include "tests/tools/tool.h"

namespace shardc::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanTest : public ToolTest {
 protected:
  void CompileTwoRanks() const { Compile("plan", "--spec megatron --mesh dp=1,tp=2"); }
  ToolResult RunIt() const { return Tool("run plan --input input_ids=@ids.npy"); }
};

TEST_F(PlanTest, HoldsAllFiles) {
  CompileTwoRanks();
  EXPECT_EQ(List("plan"),
            "graph.shardc manifest.textproto rank0000.program rank0001.program weights");
  EXPECT_EQ(List("plan/weights"), "rank0000.safetensors rank0001.safetensors");
  EXPECT_EQ(List("."), "plan");
}

// 97 rows over two ranks: 49 and 48, and a row of padding.
TEST_F(PlanTest, ShardsAreCutFromTheWholeWeights) {
  Compile("whole", "--spec serial");
  CompileTwoRanks();
  HostTensor whole =
      SafetensorsFile(Path("whole/weights/rank0000.safetensors")).Read("transformer.wte.weight");
  const float* expected = whole.data<float>();
  for (int64_t rank : {0, 1}) {
    SafetensorsFile file(Path("plan/weights/rank000" + std::to_string(rank) + ".safetensors"));
    HostTensor shard = file.Read("transformer.wte.weight");
    ASSERT_EQ(shard.shape(), (Shape{49, 32}));
    for (int64_t i = 0; i < shard.num_elements(); ++i) {
      int64_t at = rank * 49 * 32 + i;
      ASSERT_EQ(shard.data<float>()[i], at < 97 * 32 ? expected[at] : 0) << rank << " " << i;
    }
  }
}

// q, k and v lie side by side in c_attn, and each is cut by itself: two heads of 8 to a rank.
TEST_F(PlanTest, SegmentsAreCutEachByItself) {
  Compile("whole", "--spec serial");
  CompileTwoRanks();
  std::string name = "transformer.h.0.attn.c_attn.weight";
  HostTensor whole = SafetensorsFile(Path("whole/weights/rank0000.safetensors")).Read(name);
  HostTensor shard = SafetensorsFile(Path("plan/weights/rank0001.safetensors")).Read(name);
  ASSERT_EQ(shard.shape(), (Shape{32, 48}));
  for (int64_t row = 0; row < 32; ++row) {
    for (int64_t column = 0; column < 48; ++column) {
      int64_t from = column / 16 * 32 + 16 + column % 16;
      ASSERT_EQ(shard.data<float>()[row * 48 + column], whole.data<float>()[row * 96 + from]);
    }
  }
}

TEST_F(PlanTest, ReplicasShareOneFile) {
  Compile("plan", "--spec megatron --mesh dp=2,tp=2");
  auto inode = [&](int rank) {
    struct stat s {};
    EXPECT_EQ(
        stat(Path("plan/weights/rank000" + std::to_string(rank) + ".safetensors").c_str(), &s), 0);
    return s.st_ino;
  };
  EXPECT_EQ(inode(0), inode(2));
  EXPECT_EQ(inode(1), inode(3));
  EXPECT_NE(inode(0), inode(1));
}

TEST_F(PlanTest, AFlippedBitInAnyFileIsRefused) {
  CompileTwoRanks();
  WriteIds();
  ASSERT_EQ(RunIt().exit, 0);
  for (const char* name :
       {"manifest.textproto", "graph.shardc", "rank0000.program", "rank0001.program",
        "weights/rank0000.safetensors", "weights/rank0001.safetensors"}) {
    std::string file = std::string("plan/") + name, bytes = Read(file);
    for (size_t at :
         {size_t{0}, size_t{10}, bytes.size() / 3, bytes.size() / 2, bytes.size() - 1}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      Write(file, damaged);
      ToolResult r = RunIt();
      EXPECT_EQ(r.exit, 5) << name << " byte " << at << ": " << r.err;
      EXPECT_THAT(r.err, HasSubstr("error E300")) << name << " byte " << at;
      EXPECT_EQ(r.out, "") << name << " byte " << at;
    }
    Write(file, bytes);
  }
  EXPECT_EQ(RunIt().exit, 0);
}

TEST_F(PlanTest, TruncatedAndMissingFilesAreRefused) {
  CompileTwoRanks();
  WriteIds();
  for (const char* name :
       {"manifest.textproto", "graph.shardc", "rank0001.program", "weights/rank0001.safetensors"}) {
    std::string file = std::string("plan/") + name, bytes = Read(file);
    for (size_t keep : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
      Write(file, bytes.substr(0, keep));
      EXPECT_EQ(RunIt().exit, 5) << name << " cut to " << keep;
    }
    fs::remove(Path(file));
    ToolResult r = RunIt();
    EXPECT_EQ(r.exit, 74) << name;
    EXPECT_THAT(r.err, HasSubstr(name));
    Write(file, bytes);
  }
}

// What ranks run alike is there once, so that a plan of thousands of ranks can be copied and read.
TEST_F(PlanTest, RanksOfAStageShareTheirProgram) {
  Compile("plan", "--spec megatron --mesh pp=2,tp=2 --microbatches 2");
  for (const char* name : {"plan/rank0000.program", "plan/rank0002.program"}) {
    EXPECT_GT(Read(name).size(), 5000u) << name;
  }
  for (const char* name : {"plan/rank0001.program", "plan/rank0003.program"}) {
    EXPECT_LT(Read(name).size(), 200u) << name;
  }
  for (int rank = 0; rank < 4; ++rank) {
    ToolResult r = Tool("dump plan --program " + std::to_string(rank));
    EXPECT_EQ(r.exit, 0) << r.err;
    EXPECT_THAT(r.out, HasSubstr("rank " + std::to_string(rank) + " of 4"));
    EXPECT_THAT(r.out, HasSubstr(" = matmul "));
  }
}

TEST_F(PlanTest, FilesOfAnotherPlanAreRefused) {
  CompileTwoRanks();
  Compile("other", "--spec megatron --mesh dp=1,tp=2 --optimizer adamw");
  WriteIds();
  fs::copy_file(Path("other/rank0001.program"), Path("plan/rank0001.program"),
                fs::copy_options::overwrite_existing);
  ToolResult r = RunIt();
  EXPECT_EQ(r.exit, 5);
  EXPECT_THAT(r.err, AllOf(HasSubstr("rank0001.program"),
                           HasSubstr("if the plan was compiled anew while it was read, run this")));
}

// The manifest's checksums hold, as of a plan that another compiler wrote.
TEST_F(PlanTest, ManifestThatDisagreesWithTheProgramsIsRefused) {
  CompileTwoRanks();
  WriteIds();
  const std::string path = Path("plan/manifest.textproto");
  const Manifest good = ReadManifest(path);
  using Change = std::function<void(Manifest&)>;
  const std::vector<std::pair<std::string, Change>> changes = {
      {"does not list 'transformer.wte.weight'",
       [](Manifest& m) {
         std::erase_if(m.states, [](auto& s) { return s.name == "transformer.wte.weight"; });
       }},
      {"another type than the programs", [](Manifest& m) { m.states[0].dtype = DType::kF64; }},
      {"the manifest's mesh is a=1,b=2", [](Manifest& m) { m.mesh = Mesh::Parse("a=1,b=2"); }},
      {"does not list the file rank0001.program",
       [](Manifest& m) {
         std::erase_if(m.files, [](auto& f) { return f.path == "rank0001.program"; });
       }},
  };
  for (const auto& [message, change] : changes) {
    Manifest m = good;
    change(m);
    WriteManifest(m, path);
    ToolResult r = RunIt();
    EXPECT_EQ(r.exit, 5) << message;
    EXPECT_THAT(r.err, AllOf(HasSubstr("E3006"), HasSubstr(message)));
  }
  // A rank that would run what another plan's first rank runs, with its checksum.
  {
    Compile("other", "--spec megatron --mesh dp=1,tp=2 --optimizer adamw");
    const fs::path program = Path("plan/rank0001.program"), kept = Path("kept.program");
    fs::rename(program, kept);
    fs::copy_file(Path("other/rank0001.program"), program);
    Manifest m = good;
    for (ManifestFile& f : m.files) {
      if (f.path == "rank0001.program") f.checksum = FileChecksum(program, &f.bytes);
    }
    WriteManifest(m, path);
    ToolResult r = RunIt();
    EXPECT_EQ(r.exit, 5);
    EXPECT_THAT(r.err, AllOf(HasSubstr("E3006: plan/rank0001.program"),
                             HasSubstr("runs what plan/rank0000.program should have")));
    fs::rename(kept, program);
  }
  // Weights of another model, with their checksum.
  Manifest m = good;
  for (ManifestFile& f : m.files) {
    if (f.path != "weights/rank0001.safetensors") continue;
    fs::remove(Path("plan/" + f.path));
    WriteSafetensors(Path("plan/" + f.path), {{"other", HostTensor(DType::kF32, {1})}});
    f.checksum = FileChecksum(Path("plan/" + f.path), &f.bytes);
  }
  WriteManifest(m, path);
  ToolResult r = RunIt();
  EXPECT_EQ(r.exit, 5);
  EXPECT_THAT(r.err, AllOf(HasSubstr("E3006"), HasSubstr("has no tensor 'transformer.")));
}

TEST_F(PlanTest, ReplacesAPlan) {
  CompileTwoRanks();
  // What runs on GPUs keep there.
  Write("plan/cuda_choices.txt", "x");
  Compile("plan", "--spec serial");
  EXPECT_EQ(List("plan"), "graph.shardc manifest.textproto rank0000.program weights");
  EXPECT_EQ(List("plan/weights"), "rank0000.safetensors");
  EXPECT_EQ(List("."), "plan");
}

TEST_F(PlanTest, RefusesFoldersThatAreNotItsOwn) {
  auto compile = [&](const std::string& out) {
    return Tool(std::string("compile ") + kModel + " -q -o " + out);
  };
  Write("file", "x");
  ToolResult r = compile("file");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("E5002"));
  r = compile("file/plan");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("E5003: file/plan"));

  fs::create_directory(Path("mine"));
  Write("mine/notes.txt", "x");
  r = compile("mine");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("E5002"));
  EXPECT_EQ(List("mine"), "notes.txt");

  // A plan in which the user keeps results is not thrown away either.
  CompileTwoRanks();
  Write("plan/out.safetensors", "x");
  r = compile("plan");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("'out.safetensors'"));
  EXPECT_THAT(List("plan"), HasSubstr("rank0001.program"));
  EXPECT_EQ(List("."), "file mine plan");
}

// Where the plan would be gone for who asked for it, and before anything is compiled.
TEST_F(PlanTest, RefusesTheFolderThatTheCommandRunsIn) {
  fs::create_directories(Path("empty/inner"));
  auto refuses = [&](const std::string& from, const std::string& model, const std::string& out) {
    const ToolResult r = Shell(StrCat("cd ", from, " && '", SHARDC_TOOL, "' compile ", model,
                                      " --weights none -o ", out, " && ls manifest.textproto"));
    EXPECT_EQ(r.exit, 2) << from << " " << out << ": " << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("E6121: --output " + out), HasSubstr("--output plan")));
  };
  refuses("empty/inner", kModel, ".");
  refuses("empty/inner", "no_such_model.onnx", "..");
  refuses("empty", kModel, "../empty");
  Compile("plan", "");
  refuses("plan", kModel, ".");
  refuses("plan/weights", kModel, "..");
  EXPECT_EQ(List("."), "empty plan");
  EXPECT_EQ(List("empty/inner"), "");
  EXPECT_EQ(Tool("dump plan").exit, 0);
}

TEST_F(PlanTest, AFailureLeavesNothingBehind) {
  // While the programs are written, and the weights.
  for (auto [blocks, where] :
       {std::pair("8", "E5003: a/b/plan/rank"),
        {"500", "E5003: parameter transformer.wte.weight: a/b/plan/weights"}}) {
    ToolResult r = Shell(StrCat("ulimit -f ", blocks, "; '", SHARDC_TOOL,
                                "' compile 'builtin:gpt?layers=1,vocab=5000' -o a/b/plan"));
    EXPECT_EQ(r.exit, 74) << r.err;
    EXPECT_THAT(r.err, HasSubstr(where));
    EXPECT_EQ(List("."), "");
  }
}

// Before the weights, which take the longest.
TEST_F(PlanTest, WhatIsSaidOfThePlanComesBeforeItIsWritten) {
  const ToolResult r = Shell(StrCat("ulimit -f 8; '", SHARDC_TOOL, "' compile ", kModel,
                                    " --spec dp --mesh dp=2,tq=2 --freeze '*.wte.*' -o plan"));
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, AllOf(HasSubstr("warning: nothing is cut over axis 'tq'"),
                           HasSubstr("parameters are not trained"), Not(HasSubstr("4 ranks, "))));
}

TEST_F(PlanTest, AFailureKeepsThePlanThatWasThere) {
  CompileTwoRanks();
  WriteIds();
  ToolResult r =
      Shell(std::string("ulimit -f 8; '") + SHARDC_TOOL + "' compile " + kModel + " -o plan");
  EXPECT_EQ(r.exit, 74);
  EXPECT_EQ(List("."), "ids.npy plan");
  EXPECT_EQ(RunIt().exit, 0);
}

TEST_F(PlanTest, RemovesWhatAKilledCompilerLeft) {
  constexpr int kGone = 99999999;  // no process has a number that large
  for (const char* name : {"plan", "other"}) fs::create_directory(HiddenBeside(Path(name), kGone));
  const fs::path other = HiddenBeside("other", kGone);
  Write(HiddenBeside("plan", kGone) + "/rank0000.program", "x");
  CompileTwoRanks();
  EXPECT_EQ(List("."), other.string() + " plan");
}

TEST_F(PlanTest, AnInterruptLeavesNothingBehind) {
  auto interrupted = [&] {
    return Shell(std::string("rm -rf plan; '") + SHARDC_TOOL +
                 "' compile 'builtin:gpt?layers=12,hidden=384,vocab=257' -o plan & "
                 "while kill -0 $! && ! ls -d .plan.tmp-*; do sleep 0.01; done; kill $!; wait $!");
  };
  ToolResult r = interrupted();
  for (int i = 0; i < 10 && r.exit == 0; ++i) r = interrupted();  // it was done before the signal
  EXPECT_EQ(r.exit, 128 + 15) << r.err;
  EXPECT_EQ(List("."), "");
}

TEST_F(PlanTest, WithoutWeights) {
  Compile("plan", "--spec megatron --mesh dp=1,tp=2 --weights none");
  EXPECT_EQ(List("plan"), "graph.shardc manifest.textproto rank0000.program rank0001.program");
  EXPECT_EQ(Tool("dump plan").exit, 0);
  WriteIds();
  ToolResult r = RunIt();
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("E4008"));
  EXPECT_THAT(r.err, HasSubstr("--weights split"));
}

TEST_F(PlanTest, ParametersWithoutDataNeedWeightsNone) {
  Write("m.shardc",
        "mesh []\n"
        "graph @m(%x: f32[2, 4]) -> (%y) {\n"
        "  %w = param \"w\" : f32[4, 3]\n"
        "  %y = matmul %x, %w : f32[2, 3]\n"
        "}\n");
  ToolResult r = Tool("compile m.shardc --loss none -o plan");
  EXPECT_EQ(r.exit, 2);
  EXPECT_THAT(r.err, HasSubstr("E5005: parameter w"));
  EXPECT_EQ(List("."), "m.shardc");
  EXPECT_EQ(Tool("compile m.shardc --loss none --weights none -o plan").exit, 0);
}

TEST_F(PlanTest, AFileIsMissing) {
  Write("m.shardc", "graph @m(%x: f32[2]) -> (%y) {\n  %y = neg %x : f32[2]\n}\n");
  for (const char* file : {"rank0000.program", "graph.shardc"}) {
    ASSERT_EQ(Tool("compile m.shardc --loss none -o plan").exit, 0);
    Shell(StrCat("rm plan/", file));
    ToolResult r = Tool("run plan --random-inputs 1");
    EXPECT_EQ(r.exit, 74);
    EXPECT_THAT(r.err,
                AllOf(HasSubstr(StrCat("E5001: plan/", file)), HasSubstr("copy the whole folder"),
                      HasSubstr("compiled anew while it was read")));
  }
}

TEST_F(PlanTest, NoPlanThere) {
  ToolResult r = Tool("run nothing");
  EXPECT_EQ(r.exit, 74);
  EXPECT_THAT(r.err, HasSubstr("E5001"));
  EXPECT_EQ(Tool("dump nothing").exit, 74);
}

}  // namespace
}  // namespace shardc::testing
