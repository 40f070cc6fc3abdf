// DFT of lengths other than the node tests', and what it refuses.
#include <cmath>
#include <numbers>
#include <vector>

#include "tests/frontend/converters_testing.h"

namespace shardc::import_testing {
namespace {

class DftConverter : public ConverterTest {};

// A spectrum and its inverse, of more and of fewer elements than there are.
TEST_F(DftConverter, DftOfAnotherLength) {
  model_.proto.mutable_opset_import(0)->set_version(20);
  for (int64_t length : {3, 8}) {
    SCOPED_TRACE(length);
    model_.graph.Clear();
    inputs_.clear();
    Input("x", {5, 2, 1});
    Integers("length", {length}, true);
    Integers("axis", {0}, true);
    Node("DFT", {"x", "length", "axis"}, {"spectrum"});
    SetInt(Node("DFT", {"spectrum", "", "axis"}, {"y"}), "inverse", 1);
    SetInt(Node("DFT", {"x", "length", "axis"}, {"half"}), "onesided", 1);
    NodeProto& back = Node("DFT", {"half", "length", "axis"}, {"z"});
    SetInt(back, "onesided", 1);
    SetInt(back, "inverse", 1);
    auto out = Evaluate({"y", "z"});
    ASSERT_EQ(out[0].shape(), (Shape{length, 2, 2}));
    ASSERT_EQ(out[1].shape(), (Shape{length, 2, 1}));
    const HostTensor x = Numbers({5, 2, 1});
    for (int64_t i = 0; i < 2 * length; ++i) {
      const double expected = i < 10 ? x.AsDouble(i) : 0;
      EXPECT_NEAR(out[0].AsDouble(2 * i), expected, 1e-14) << i;
      EXPECT_NEAR(out[0].AsDouble(2 * i + 1), 0, 1e-14) << i;
      EXPECT_NEAR(out[1].AsDouble(i), expected, 1e-14) << i;
    }
  }
}

// As numpy.fft.irfft: what the length needs not is no part of the sum.
TEST_F(DftConverter, DftOfMoreThanHalfASpectrum) {
  for (int64_t length : {3, 4, 7}) {
    SCOPED_TRACE(length);
    model_.graph.Clear();
    inputs_.clear();
    model_.proto.mutable_opset_import(0)->set_version(20);
    Input("x", {5, 1, 2});
    Integers("length", {length}, true);
    Integers("axis", {0}, true);
    NodeProto& node = Node("DFT", {"x", "length", "axis"}, {"y"});
    SetInt(node, "onesided", 1);
    SetInt(node, "inverse", 1);
    const HostTensor x = Numbers({5, 1, 2}), y = Evaluate({"y"})[0];
    for (int64_t t = 0; t < length; ++t) {
      double sum = x.AsDouble(0);
      for (int64_t j = 1; 2 * j <= length; ++j) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(j * t % length) /
                             static_cast<double>(length);
        const double part = x.AsDouble(2 * j) * std::cos(angle);
        sum += 2 * j == length ? part : 2 * (part - x.AsDouble(2 * j + 1) * std::sin(angle));
      }
      EXPECT_NEAR(y.AsDouble(t), sum / static_cast<double>(length), 1e-14) << t;
    }
  }
}

TEST_F(DftConverter, DftOfThePartsIsRefused) {
  model_.proto.mutable_opset_import(0)->set_version(19);
  Input("x", {1, 5, 2});
  SetInt(Node("DFT", {"x"}), "axis", 2);
  ExpectRefused("E1303", "real and imaginary parts");
}

TEST_F(DftConverter, DftOfTooManyElementsIsRefused) {
  model_.proto.mutable_opset_import(0)->set_version(19);
  Input("x", {1, 8193, 1});
  SetInt(Node("DFT", {"x"}), "axis", 1);
  ExpectRefused("E1301", "too long");
}

}  // namespace
}  // namespace shardc::import_testing
