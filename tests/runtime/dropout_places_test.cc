// What ranks draw for parts of a tensor, uneven ones too, is what one rank draws for the whole.
#include <gtest/gtest.h>

#include <algorithm>

#include "ir/shard_copy.h"
#include "runtime/kernel.h"
#include "tests/exec/harness.h"
#include "tests/runtime/one_op.h"

namespace shardc::testing {
namespace {

// By the fast kernel of `rank`, over what lay there before: in place, or garbage.
HostTensor RunPart(const OpSample& sample, const Mesh& mesh, int64_t rank, const TensorType& type,
                   bool in_place) {
  const Shape local = LocalShape(type, mesh);
  HostTensor x(type.dtype, local), y(type.dtype, local), steps = sample.operands[1];
  GlobalToLocal(sample.operands[0].raw(), type, mesh, rank, x.raw());
  std::fill_n(y.raw(), y.bytes(), std::byte{0x77});
  const TensorType step(steps.dtype(), {});
  const SampleGraph graph = BuildSample(sample);
  Instruction instruction;
  instruction.op = sample.op;
  instruction.attrs = graph.op->attrs;
  HostTensor& to = in_place ? x : y;
  const std::vector<TensorView> in = {{x.raw(), type.dtype, local, &type},
                                      {steps.raw(), step.dtype, {}, &step}};
  const std::vector<TensorView> out = {{to.raw(), type.dtype, local, &type}};
  const Program program;
  const KernelRequest request{program, instruction,
                              KernelCall{&instruction.attrs, in, out, &mesh, rank, 2}};
  MakeCpuKernel(request)->Run();
  return to;
}

TEST(DropoutPlaces, AreThoseOfTheWhole) {
  const Mesh mesh = Mesh::Parse("tp=3");
  for (const Shape& shape : {Shape{7, 20001}, {4, 7}, {2, 5, 9}}) {
    for (const std::string op : {"dropout", "random_uniform"}) {
      const Attributes attrs = op == "dropout" ? Attributes{{"ratio", 0.3}} : Attributes{};
      const OpSample sample{
          op,
          "",
          {FloatsAs(RandomFloats(shape, 1), DType::kF32), HostTensor::Scalar(int64_t{5})},
          attrs};
      const HostTensor whole = OneOp(sample).Run(/*reference=*/true)[0];
      for (size_t dim = 0; dim < shape.size(); ++dim) {
        for (const bool segments : {false, true}) {
          TensorType type(DType::kF32, shape);
          type.sharding.dims[dim].axes = {0};
          if (segments) type.sharding.dims[dim].segments = {1, shape[dim] - 1};
          for (int64_t rank = 0; rank < 3; ++rank) {
            HostTensor want(DType::kF32, LocalShape(type, mesh));
            GlobalToLocal(whole.raw(), type, mesh, rank, want.raw());
            for (const bool in_place : {false, op == "dropout"}) {
              EXPECT_LE(WorstDifference(RunPart(sample, mesh, rank, type, in_place), want, 1), 1e-6)
                  << op << ShapeToString(shape) << " dim " << dim << " rank " << rank
                  << " in place " << in_place << " segments " << segments;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace shardc::testing
