// Masks that multiply: choices by zeros and ones, and softmaxes of which some is kept.
#include "tests/frontend/attention_forms.h"

namespace shardc::recover_testing {
namespace {

using ::testing::Contains;
using ::testing::Not;

// Some rows see no key.
HostTensor Padding() {
  return Mask({kB, 1, kS, kS}, DType::kBool, 1, 0,
              [](int64_t i, int64_t j) { return i != 1 && j != 2; });
}

TEST(Select, ProductsWithZerosAndOnes) {
  for (int form = 0; form < 7; ++form) {
    SCOPED_TRACE(form);
    Graph g = Recover([form](TestGraph& b) {
      Value *x = b.In("x", {kB, 1, kS, kS}), *y = b.In("y", {kS, kS}),
            *keep = b.In("keep", Padding());
      Value *ones = b.Cast(keep, DType::kF64), *zeros = b.Cast(b.Op1("not", keep), DType::kF64);
      Value* triangle = b.Constant(Mask({kS, kS}, DType::kF64, 1, 0, Triangle));
      Value* fill = b.Constant(Mask({kS, kS}, DType::kF64, 0, -7, Triangle));
      Value* forms[] = {
          b.Add(b.Mul(x, ones), b.Mul(zeros, y)),
          b.Add(b.Mul(y, b.Sub(b.C(1), ones)), b.Mul(ones, x)),
          b.Sub(b.Mul(ones, x), b.Mul(b.Sub(b.C(1), ones), b.C(1e4))),
          b.Sub(b.Mul(b.Constant(Mask({kS, kS}, DType::kF64, 0.5, 0, Triangle)), x), fill),
          b.Add(b.Mul(triangle, x), fill),
          b.Sub(b.Mul(triangle, x), fill),
          b.Add(b.Mul(triangle, x), b.Mul(b.C(3), b.Sub(b.C(1), triangle)))};
      b.Out(forms[form]);
    });
    EXPECT_THAT(Ops(g), Contains("where"));
    EXPECT_THAT(Ops(g), Not(Contains(::testing::AnyOf("add", "sub"))));
  }
}

TEST(Select, NearMissesStay) {
  Graph g = Recover([](TestGraph& b) {
    Value *x = b.In("x", {kS, kS}),
          *triangle = b.Constant(Mask({kS, kS}, DType::kF64, 1, 0, Triangle));
    HostTensor two = Mask({kS, kS}, DType::kF64, 2, 1, Triangle);
    HostTensor over = Mask({kS, kS}, DType::kF64, 1, -7, Triangle);
    b.Out(
        b.Add(b.Mul(x, b.Constant(two)), b.Constant(Mask({kS, kS}, DType::kF64, 0, 3, Triangle))));
    b.Out(b.Add(b.Mul(x, triangle), b.Constant(over)), "over");
    b.Out(b.Add(b.Mul(x, triangle), b.Mul(triangle, b.In("y", {kS, kS}))), "same");
  });
  EXPECT_THAT(Ops(g), Not(Contains("where")));
}

}  // namespace
}  // namespace shardc::recover_testing
