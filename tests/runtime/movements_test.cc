// What moves bytes within a rank, on uneven cuts, in segments too: against the shards of a tensor.
#include "runtime/movements.h"

#include <gtest/gtest.h>

#include "ir/program.h"
#include "ir/shard_copy.h"
#include "tests/ir/op_samples.h"

namespace shardc::testing {
namespace {

class Movements : public ::testing::Test {
 protected:
  static constexpr int kA = 0, kB = 1;
  const Mesh mesh_ = Mesh::Parse("a=2,b=3");
  const HostTensor whole_ = FloatsAs(RandomFloats({5, 11}, 1), DType::kF32);

  // Dim 0 is cut over a, dim 1 over b where `over_b`.
  static TensorType Type(bool over_b, const DimSharding& layout) {
    TensorType type(DType::kF32, {5, 11});
    type.sharding.dims[0].axes = {kA};
    if (over_b) type.sharding.dims[1] = layout;
    return type;
  }
  HostTensor Shard(const HostTensor& whole, const TensorType& type, int64_t rank) const {
    HostTensor local(type.dtype, LocalShape(type, mesh_));
    GlobalToLocal(whole.raw(), type, mesh_, rank, local.raw());
    return local;
  }

  // From garbage.
  HostTensor Run(const char* op, const Attributes& attrs, HostTensor in, const TensorType& from,
                 const Shape& shape, const TensorType& to, int64_t rank) const {
    HostTensor out(DType::kF32, shape);
    std::fill_n(out.raw(), out.bytes(), std::byte{0x77});
    Instruction instruction;
    instruction.op = op;
    const Program program;
    const std::vector<TensorView> ins = {{in.raw(), DType::kF32, in.shape(), &from}};
    const std::vector<TensorView> outs = {{out.raw(), DType::kF32, out.shape(), &to}};
    const KernelRequest request{program, instruction, {&attrs, ins, outs, &mesh_, rank, 1}};
    MakeMovementKernel(request)->Run();
    return out;
  }

  template <typename Body>
  void ForEachCut(const Body& body) const {
    for (const DimSharding& layout :
         {DimSharding{{kB}, 1, {}}, {{kB}, 2, {}}, {{kB}, 1, {7, 4}}, {{kB}, 2, {4, 4, 3}}}) {
      for (int64_t rank = 0; rank < mesh_.num_ranks(); ++rank) {
        SCOPED_TRACE(StrCat("rank ", rank, " granule ", layout.granule, " segments ",
                            ShapeToString(layout.segments)));
        body(layout, rank);
      }
    }
  }
};

TEST_F(Movements, SliceAndClear) {
  HostTensor ones(DType::kF32, {5, 11});
  std::fill_n(ones.data<float>(), 55, 1.0F);
  ForEachCut([&](const DimSharding& layout, int64_t rank) {
    const TensorType type = Type(true, layout), rows = Type(false, layout);
    const HostTensor want = Shard(whole_, type, rank), valid = Shard(ones, type, rank);
    EXPECT_TRUE(Run("local_slice", {{"dim", int64_t{1}}}, Shard(whole_, rows, rank), rows,
                    want.shape(), type, rank) == want);
    HostTensor dirty = want;
    for (int64_t i = 0; i < dirty.num_elements(); ++i) {
      if (valid.data<float>()[i] == 0) dirty.data<float>()[i] = 7;
    }
    EXPECT_TRUE(Run("zero_padding", {}, dirty, type, want.shape(), type, rank) == want);
    EXPECT_TRUE(Run("copy", {}, dirty, type, want.shape(), type, rank) == dirty);
  });
}

TEST_F(Movements, PackAndUnpack) {
  ForEachCut([&](const DimSharding& layout, int64_t rank) {
    const TensorType type = Type(true, layout), rows = Type(false, layout);
    const Attributes attrs = {{"dim", int64_t{1}},
                              {"axes", Strings{"b"}},
                              {"cut_axes", Strings{"b"}},
                              {"granule", layout.granule},
                              {"segments", layout.segments}};
    Shape staged = LocalShape(type, mesh_);
    const int64_t piece = NumElements(staged);
    staged.insert(staged.begin(), 3);
    const TensorType flat(DType::kF32, staged);
    HostTensor want(DType::kF32, staged);
    const std::vector<int> group = mesh_.Group(rank, {kB});
    for (size_t j = 0; j < group.size(); ++j) {
      const HostTensor of_member = Shard(whole_, type, group[j]);
      std::copy_n(of_member.data<float>(), piece,
                  want.data<float>() + static_cast<int64_t>(j) * piece);
    }
    const HostTensor mine = Shard(whole_, rows, rank);
    EXPECT_TRUE(Run("pack", attrs, mine, rows, staged, flat, rank) == want);
    EXPECT_TRUE(Run("unpack", attrs, want, flat, mine.shape(), rows, rank) == mine);
  });
}

}  // namespace
}  // namespace shardc::testing
