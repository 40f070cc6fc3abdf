// Instructions that one kernel does together leave the same bits as their own kernels, on the GPU.
#include <gtest/gtest.h>

#include <cstring>

#include "ir/text.h"
#include "tests/exec/harness.h"
#include "tests/gpu/gpu.h"

namespace shardc::testing {
namespace {

// From a few elements to several chunks, of whole packs and not.
const int kSizes[] = {2, 3, 480, 32773, 5, 3120, 85, 24576};

// A step of adamw and one of sgd for tensors of these types, and the norm of their gradients.
std::string Updates(const std::string& weight, const std::string& gradient,
                    const std::string& moment) {
  std::string in, ops, out = "%norm, %half", total;
  auto attrs = [](int i) { return StrCat(i % 3 == 0 ? "0.1" : "0.0", "}"); };
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const auto n = static_cast<int>(i);
    const std::string shape = StrCat("[", kSizes[i], "]");
    const std::string w = weight + shape, g = gradient + shape, m = moment + shape;
    in +=
        StrCat("%w", n, ": ", w, ", %g", n, ": ", g, ", %m", n, ": ", m, ", %v", n, ": ", m, ", ");
    ops += StrCat("  %q", n, " = sum_squares %g", n, " : ", gradient, "[]\n");
    if (gradient != "f32") ops += StrCat("  %c", n, " = cast %q", n, " {to=\"f32\"} : f32[]\n");
    const std::string square = StrCat(gradient == "f32" ? "%q" : "%c", n);
    if (n > 0) {
      const std::string sum = StrCat("%t", n);
      ops += StrCat("  ", sum, " = add ", total, ", ", square, " : f32[]\n");
      total = sum;
    } else {
      total = square;
    }
    out += StrCat(", %p", n, ", %pm", n, ", %pv", n, ", %s", n, ", %sm", n, ", %h", n);
  }
  ops += "  %norm = add " + total + ", %before : f32[]\n";
  ops += "  %half = cast %norm {to=\"f16\"} : f16[]\n";
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const auto n = static_cast<int>(i);
    const std::string shape = StrCat("[", kSizes[i], "]");
    const std::string w = weight + shape, m = moment + shape;
    ops +=
        StrCat("  %p", n, ", %pm", n, ", %pv", n, " = adamw %w", n, ", %g", n, ", %m", n, ", %v", n,
               ", %step, %scale, %rate {beta1=0.9, beta2=0.99, eps=1e-05, weight_decay=", attrs(n),
               " : ", w, ", ", m, ", ", m, "\n");
  }
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const auto n = static_cast<int>(i);
    const std::string shape = StrCat("[", kSizes[i], "]");
    ops += StrCat("  %s", n, ", %sm", n, " = sgd %w", n, ", %g", n, ", %scale, %rate, %m", n,
                  ", %step {momentum=0.9, weight_decay=", attrs(n), " : ", weight, shape, ", ",
                  moment, shape, "\n");
  }
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    const auto n = static_cast<int>(i);
    const std::string shape = StrCat("[", kSizes[i], "]");
    ops += StrCat("  %h", n, " = cast %w", n, " {to=\"f16\"} : f16", shape, "\n");
  }
  return StrCat("graph @updates(", in,
                "%before: f32[], %step: i64[], %scale: f32[], %rate: f32[]) -> (", out, ") {\n",
                ops, "}\n");
}

// With `joins` not: instructions that are looked at one by one.
RunResult RunStep(const std::string& text, const std::string& mesh, bool joins, bool gpu) {
  Graph graph = ParseGraph(text, "joined_test");
  Tensors inputs = RandomInputs(graph, 3, 1);
  for (auto& [name, value] : inputs) {
    if (name[0] != 'v') continue;  // second moments are no less than 0
    for (int64_t i = 0; i < value.num_elements(); ++i)
      value.SetDouble(i, std::abs(value.AsDouble(i)));
  }
  inputs["step"].SetDouble(0, 2);
  RunSetup setup;
  if (!mesh.empty()) {
    // Odd sizes have padding.
    setup.spec =
        "mesh { axis { name: \"tp\" } }\n"
        "input { match: \"g*\" shard_spec { dims: 0 axes: \"tp\" } }\n";
    setup.mesh = mesh;
  }
  setup.pipeline.loss = "none";
  setup.pipeline.gradients = false;
  if (gpu) setup.session.backend = "cuda";
  setup.session.shared_device = gpu;
  setup.session.reference_kernels = !gpu;
  setup.session.check_numerics = gpu && !joins;
  setup.steps = 3;  // the last is a replay
  return CompileAndRun(std::move(graph), setup, inputs);
}

struct Types {
  const char *weight, *gradient, *moment, *mesh;
};
class GpuJoined : public ::testing::TestWithParam<Types> {};

TEST_P(GpuJoined, LeavesTheBitsOfSeparateKernels) {
  SHARDC_NEEDS_GPU();
  const Types types = GetParam();
  const std::string text = Updates(types.weight, types.gradient, types.moment);
  const RunResult joined = RunStep(text, types.mesh, true, true),
                  own = RunStep(text, types.mesh, false, true),
                  want = RunStep(text, types.mesh, false, false);
  ASSERT_GT(joined.outputs.size(), 40u);
  for (const auto& [name, value] : joined.outputs) {
    const HostTensor& other = own.outputs.at(name);
    EXPECT_EQ(std::memcmp(value.raw(), other.raw(), static_cast<size_t>(value.bytes())), 0) << name;
    const double tolerance = value.dtype() == DType::kBF16  ? 1e-2
                             : value.dtype() == DType::kF16 ? 2e-3
                                                            : 1e-5;
    EXPECT_LE(WorstDifference(value, want.outputs.at(name)), tolerance) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Types, GpuJoined,
    ::testing::Values(Types{"f32", "f32", "f32", ""}, Types{"f32", "f32", "f32", "tp=2"},
                      Types{"bf16", "bf16", "f32", ""}, Types{"f16", "f32", "f32", ""},
                      Types{"f64", "f64", "f64", ""}),
    [](const auto& info) {
      return StrCat(info.param.weight, "_", info.param.gradient, *info.param.mesh ? "_cut" : "");
    });

}  // namespace
}  // namespace shardc::testing
