// Every sample of every op, cut in each way that its rule allows: what each rank's fast kernel
// makes of its part, against the naive one.
#include <gtest/gtest.h>

#include "ir/diagnostic.h"
#include "ir/op_def.h"
#include "ir/shard_copy.h"
#include "runtime/kernel.h"
#include "tests/exec/harness.h"
#include "tests/ir/op_samples.h"
#include "tests/ir/placements.h"

namespace shardc::testing {
namespace {

// One rank's part of an op.
class Part {
 public:
  Part(const OpSample& sample, const Op& op, const Placed& placed, const Mesh& mesh, int64_t rank)
      : mesh_(mesh), rank_(rank) {
    instruction_.op = sample.op;
    instruction_.attrs = op.attrs;
    for (size_t i = 0; i < op.operands.size(); ++i) {
      AddBuffer(op.in(static_cast<int>(i)), placed.operands[i], instruction_.operands);
      HostTensor& t = operands_.emplace_back(types_[i].dtype, LocalShape(types_[i], mesh));
      GlobalToLocal(sample.operands[i].raw(), types_[i], mesh, rank, t.raw());
    }
    for (size_t i = 0; i < op.results.size(); ++i) {
      AddBuffer(op.out(static_cast<int>(i)), placed.results[i], instruction_.results);
    }
  }

  // Empty: there is no kernel. With `padding`, what was meant to stay zero; else only what counts.
  std::vector<HostTensor> Run(bool reference, bool padding) {
    std::vector<HostTensor> results;
    std::vector<TensorView> in, out;
    for (size_t i = operands_.size(); i < types_.size(); ++i) {
      HostTensor& t = results.emplace_back(types_[i].dtype, LocalShape(types_[i], mesh_));
      std::fill_n(t.raw(), t.bytes(), std::byte{0x77});
    }
    for (size_t i = 0; i < types_.size(); ++i) {
      const bool is_result = i >= operands_.size();
      HostTensor& t = is_result ? results[i - operands_.size()] : operands_[i];
      (is_result ? out : in).push_back({t.raw(), types_[i].dtype, t.shape(), &types_[i]});
    }
    const KernelRequest request{program_, instruction_,
                                KernelCall{&instruction_.attrs, in, out, &mesh_, rank_, 1}};
    auto kernel = reference ? MakeReferenceKernel(request) : MakeCpuKernel(request);
    if (!kernel) return {};
    kernel->Run();
    for (size_t i = 0; i < results.size() && !padding; ++i) {
      const TensorType& type = types_[operands_.size() + i];
      HostTensor whole(type.dtype, type.shape);
      LocalToGlobal(results[i].raw(), type, mesh_, rank_, whole.raw());
      results[i] = std::move(whole);
    }
    return results;
  }

 private:
  void AddBuffer(const TensorType& whole, const Sharding& sharding, std::vector<int>& list) {
    TensorType& type = types_.emplace_back(whole);
    type.sharding = sharding;
    Buffer b;
    b.type = type;
    b.local_shape = LocalShape(type, mesh_);
    b.bytes = NumElements(b.local_shape) * DTypeSize(type.dtype);
    list.push_back(static_cast<int>(program_.buffers.size()));
    program_.buffers.push_back(b);
  }

  const Mesh& mesh_;
  int64_t rank_;
  Program program_;
  Instruction instruction_;
  std::vector<TensorType> types_;
  std::vector<HostTensor> operands_;
};

TEST(CutKernels, AgreeWithNaiveOnes) {
  const Mesh mesh = Mesh::Parse("a=3");
  int compared = 0;
  for (OpSample sample : OpSamples()) {
    const OpDef& def = GetOpDef(sample.op);
    if (!def.rule || !def.reference || def.constrains || def.communicates) continue;
    for (HostTensor& t : sample.operands) t = FloatsAs(t, DType::kF32);
    std::optional<SampleGraph> graph;
    try {
      graph.emplace(BuildSample(sample));
    } catch (const Diagnostic&) {
      continue;  // a type that the op does not take
    }
    for (const std::vector<Way>& ways : WaysOn(mesh, *graph->op)) {
      if (ways[0].kind != Way::kFactor || ways[0].layout.granule > 2) continue;
      const std::optional<Placed> placed = Place(*graph->op, mesh, ways);
      if (!placed || placed->expands) continue;
      for (int64_t rank = 0; rank < mesh.num_ranks(); ++rank) {
        SCOPED_TRACE(StrCat(sample.Name(), ", ", ways[0].ToString(), ", rank ", rank));
        Part part(sample, *graph->op, *placed, mesh, rank);
        const bool padding = KeepsZeroPadding(*graph->op);
        const std::vector<HostTensor> got = part.Run(/*reference=*/false, padding);
        if (got.empty()) continue;
        const std::vector<HostTensor> want = part.Run(/*reference=*/true, padding);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_LE(WorstDifference(got[i], want[i], 1e-3), 1e-5) << "result " << i;
        }
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 5800);
}

}  // namespace
}  // namespace shardc::testing
