// Whether collectives travel while a rank computes: the streams of whole programs, run with the
// times that a GPU might take. What is held are bounds for how long the computation waits.
#include <gtest/gtest.h>

#include <algorithm>

#include "frontend/gpt_config.h"
#include "passes/emit.h"
#include "passes/pipeline.h"
#include "runtime/cuda/schedule.h"
#include "tests/exec/harness.h"

namespace shardc::testing {
namespace {

// Of an H200 as it might be seen, less than the peaks: flops, bytes of memory, bytes to others.
constexpr double kFlops = 600e12, kMemory = 3.8e12, kLink = 350e9, kLaunch = 2e-6, kBegin = 8e-6;

double Seconds(const Program& p, const Instruction& i) {
  if (i.collective < 0) {
    return kLaunch +
           std::max(static_cast<double>(i.flops) / kFlops, static_cast<double>(i.bytes) / kMemory);
  }
  const Collective& c = p.collectives[i.collective];
  const auto n = static_cast<double>(p.mesh.GroupSize(c.axes));
  const double bytes = static_cast<double>(c.elements * DTypeSize(c.dtype)) * (n - 1) / n;
  return kBegin + bytes / kLink * (c.kind == CollectiveKind::kAllReduce ? 2 : 1);
}

struct Times {
  double total = 0, computing = 0;
};

Times Simulate(const Program& p) {
  const cuda::Schedule schedule = cuda::MakeSchedule(p, {}, cuda::kLookahead, true);
  std::vector<double> end, free(schedule.streams.size());
  Times times;
  for (const cuda::Schedule::Item& item : schedule.items) {
    const auto stream = static_cast<size_t>(item.stream);
    double begin = free[stream], seconds = 0;
    for (int w : item.waits) begin = std::max(begin, end[w]);
    for (int i : item.runs) seconds += Seconds(p, p.instructions[i]);
    if (item.joined) seconds -= kLaunch * static_cast<double>(item.runs.size() - 1);
    end.push_back(free[stream] = begin + seconds);
    if (stream == 0) times.computing += seconds;
    times.total = std::max(times.total, end.back());
  }
  return times;
}

// Every buffer of the arena at a place of its own.
Program WithoutReuse(Program p) {
  int64_t at = 0;
  for (Buffer& b : p.buffers) {
    if (b.space != Space::kArena || b.alias_of >= 0) continue;
    b.offset = at;
    at += b.bytes;
  }
  for (size_t b = 0; b < p.buffers.size(); ++b) {
    const auto root = static_cast<size_t>(RootOf(p, static_cast<int>(b)));
    p.buffers[b].offset = p.buffers[root].offset;
  }
  return p;
}

struct Case {
  const char *spec, *mesh;
  int zero;
  const char* recompute;
  double bound;  // of all the time, in times of the computation's
  int together = 1;
};

void PrintTo(const Case& c, std::ostream* os) {
  *os << c.spec << " " << c.mesh << " zero " << c.zero << " recompute " << c.recompute;
}

class Overlap : public ::testing::TestWithParam<Case> {};

TEST_P(Overlap, CollectivesTravelWhileRanksCompute) {
  const Case& c = GetParam();
  Graph graph = BuildGpt(
      ParseBuiltin("builtin:gpt?layers=16,hidden=4096,heads=32,vocab=50304,batch=16,seq=2048"));
  PipelineOptions options;
  options.loss = "lm";
  options.precision.compute = "bf16";
  options.drop = {"logits"};
  options.recompute = c.recompute;
  options.optimizer.kind = "adamw";
  Spec spec = SpecOf(c.spec);
  spec.zero.stage = c.zero;
  if (c.together > 1) spec.microbatches = {4, "", c.together, ""};
  CompileGraph(graph, spec, MeshFor(spec, Mesh::Parse(c.mesh)), options);
  const Program p = EmitProgram(graph);
  const Times planned = Simulate(p);
  EXPECT_LT(planned.total, c.bound * planned.computing);
  // And with all the memory in the world it would be no faster.
  EXPECT_LT(planned.total, 1.01 * Simulate(WithoutReuse(p)).total);
}

INSTANTIATE_TEST_SUITE_P(Of, Overlap,
                         ::testing::Values(Case{"dp", "dp=8", 0, "none", 1.03},
                                           Case{"dp", "dp=8", 1, "none", 1.04},
                                           Case{"dp", "dp=8", 2, "selective", 1.04},
                                           Case{"dp", "dp=8", 3, "none", 1.04},
                                           Case{"dp", "dp=8", 3, "full", 1.04},
                                           // What a layer waits for, its products cannot hide.
                                           Case{"megatron", "tp=8", 0, "none", 1.4},
                                           Case{"megatron_sp", "tp=8", 0, "none", 1.4},
                                           Case{"megatron_sp", "tp=8", 0, "gathers", 1.4},
                                           Case{"megatron_sp", "tp=8", 0, "selective,gathers", 1.4},
                                           Case{"megatron_sp", "dp=2,tp=4", 3, "gathers", 1.4},
                                           // Those of another microbatch can.
                                           Case{"megatron", "tp=8", 0, "none", 1.12, 2},
                                           Case{"megatron_sp", "tp=8", 0, "none", 1.25, 2}));

}  // namespace
}  // namespace shardc::testing
