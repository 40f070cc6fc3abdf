#include "passes/write_plan.h"

#include <gtest/gtest.h>

#include <random>

#include "ir/manifest.h"
#include "ir/safetensors.h"
#include "ir/shard_copy.h"
#include "ir/text.h"
#include "tests/ir/data_source.h"
#include "tests/ir/file_testing.h"

namespace shardc {
namespace {

// Counts the most bytes that are asked for at once.
class WatchedSource : public TensorSource {
 public:
  WatchedSource(HostTensor data, int64_t* most)
      : element_(DTypeSize(data.dtype())), data_(std::move(data)), most_(most) {}
  void Read(const Shape& offset, const Shape& size, void* out) const override {
    *most_ = std::max(*most_, NumElements(size) * element_);
    data_.Read(offset, size, out);
  }

 private:
  int64_t element_;
  testing::DataSource data_;
  int64_t* most_;
};

// By rows, by columns, and each of three parts by itself; 1000 and 1100 are no multiples of 3.
TEST(WritePlan, LargeShardsAreNeverInMemoryAsAWhole) {
  Graph graph = ParseGraph(R"(mesh [tp=3]
graph @g(%x: f32[2]) -> (x: %x) {
  %rows = param "rows" : f32[1000@tp, 1100]
  %columns = param "columns" : f32[1000, 1100@tp]
  %parts = param "parts" : f32[900@tp/3, 1100]
  %small = param "small" : f32[5@tp]
  %one = param "one" : f32[]
}
)",
                           "test");
  std::map<std::string, HostTensor> whole;
  std::minstd_rand random(1);
  int64_t most = 0;
  for (const Op* param : graph.Params()) {
    HostTensor t(DType::kF32, param->out().shape);
    for (int64_t i = 0; i < t.num_elements(); ++i)
      t.data<float>()[i] = static_cast<float>(random());
    const std::string& name = param->attrs.String("name");
    graph.sources[name] = std::make_shared<WatchedSource>(t, &most);
    whole.emplace(name, std::move(t));
  }
  const testing::TemporaryFolder folder;
  const std::string plan = folder.path() + "/plan";
  WritePlan(graph, EmitStages(graph), {}, plan);
  EXPECT_LE(most, 1 << 20);
  for (int64_t rank = 0; rank < 3; ++rank) {
    const SafetensorsFile file(WeightsPath(plan, rank));
    for (const Op* param : graph.Params()) {
      const std::string& name = param->attrs.String("name");
      HostTensor want(DType::kF32, LocalShape(param->out(), graph.mesh));
      GlobalToLocal(whole.at(name).raw(), param->out(), graph.mesh, rank, want.raw());
      EXPECT_TRUE(file.Read(name) == want) << name << " of rank " << rank;
    }
  }
}

}  // namespace
}  // namespace shardc
