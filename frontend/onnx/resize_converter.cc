// Resize and Upsample: one dim after the other, as a lookup of the nearest or as a product with the
// constant matrix of the interpolation. DepthToSpace and SpaceToDepth.
#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "frontend/onnx/convert_util.h"

namespace shardc::onnx_import {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 26;
constexpr int kHasModes = 11;  // and a region of interest

// How one dim is resized.
struct Resizing {
  int64_t from, to;
  float scale;
};

// As ONNX Runtime rounds it, which decides between neighbours.
float SourceOf(NodeContext& c, const std::string& mode, const Resizing& r, int64_t i) {
  const auto at = static_cast<float>(i), from = static_cast<float>(r.from),
             to = static_cast<float>(r.to);
  if (mode == "half_pixel") return (at + 0.5f) / r.scale - 0.5f;
  if (mode == "pytorch_half_pixel") return r.to > 1 ? (at + 0.5f) / r.scale - 0.5f : 0;
  if (mode == "align_corners") return r.to == 1 ? 0 : at * (from - 1) / (to - 1);
  if (mode == "asymmetric") return at / r.scale;
  if (mode == "tf_half_pixel_for_nn") return (at + 0.5f) / r.scale;
  if (mode != "half_pixel_symmetric") {
    c.Fail("E1301", StrCat("the coordinates \"", mode, "\" of Resize are not supported"));
  }
  const float offset = from / 2 * (1 - to / (r.scale * from));
  return offset + (at + 0.5f) / r.scale - 0.5f;
}

using Source = std::function<float(const Resizing&, int64_t)>;

Source SourcesOf(NodeContext& c) {
  if (c.op_type() == "Upsample" || c.opset() < kHasModes)
    return [](const Resizing& r, int64_t i) { return static_cast<float>(i) / r.scale; };
  const std::string mode = c.String("coordinate_transformation_mode", "half_pixel");
  return [&c, mode](const Resizing& r, int64_t i) { return SourceOf(c, mode, r, i); };
}

float Nearest(NodeContext& c, const std::string& mode, float x) {
  if (mode == "floor") return std::floor(x);
  if (mode == "ceil") return std::ceil(x);
  if (mode == "round_prefer_floor") return std::ceil(x - 0.5f);
  if (mode != "round_prefer_ceil")
    c.Fail("E1303", StrCat("there is no nearest_mode \"", mode, "\""));
  return std::floor(x + 0.5f);
}

Value* ByNearest(NodeContext& c, Value* x, int axis, const Resizing& r, const Source& source) {
  const bool old = c.op_type() == "Upsample" || c.opset() < kHasModes;
  const std::string mode =
      old ? (r.scale < 1 ? "ceil" : "floor") : c.String("nearest_mode", "round_prefer_floor");
  Ints from(r.to);
  for (int64_t i = 0; i < r.to; ++i) {
    const auto at = static_cast<int64_t>(Nearest(c, mode, source(r, i)));
    from[i] = std::clamp<int64_t>(at, 0, r.from - 1);
  }
  if (from == Count(r.from)) return x;
  Value* indices = c.Constant(HostTensor::Of<int64_t>({r.to}, from));
  return LookUp(c, x, indices, axis);
}

// Of the neighbours at -1, 0, 1 and 2 of a place that is so far behind that at 0.
std::array<double, 4> CubicWeights(double a, double t) {
  auto near = [a](double d) { return ((a + 2) * d - (a + 3)) * d * d + 1; };
  auto far = [a](double d) { return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a; };
  return {far(t + 1), near(t), near(1 - t), far(2 - t)};
}

// Of places that lie in a row, from one on.
struct Window {
  int64_t first;
  std::vector<double> weights;
};

// Around a place between others.
Window WindowAt(double x, bool cubic, double a) {
  const double floor = std::floor(x), t = x - floor;
  const auto at = static_cast<int64_t>(floor);
  if (!cubic) return {at, {1 - t, t}};
  const std::array<double, 4> weights = CubicWeights(a, t);
  return {at - 1, {weights.begin(), weights.end()}};
}

// As much wider as the result has fewer places.
Window WideWindowAt(double x, bool cubic, double a, double scale) {
  scale = std::min(scale, 1.);
  const double reach = (cubic ? 2 : 1) / scale;
  Window window{static_cast<int64_t>(std::floor(x - reach)), {}};
  double sum = 0;
  for (int64_t at = window.first; static_cast<double>(at) <= x + reach; ++at) {
    const double d = std::abs(static_cast<double>(at) - x) * scale;
    double weight = std::max(0., 1 - d);
    if (cubic) weight = d < 1 ? CubicWeights(a, d)[1] : d < 2 ? CubicWeights(a, d - 1)[0] : 0;
    window.weights.push_back(weight);
    sum += weight;
  }
  for (double& weight : window.weights) weight /= sum;
  return window;
}

// [from, to].
HostTensor MatrixOf(NodeContext& c, const Resizing& r, const Source& source, DType type) {
  const bool cubic = c.String("mode", "nearest") == "cubic";
  const double a = c.Float("cubic_coeff_a", -0.75);
  const bool inside_only = c.Flag("exclude_outside", false), wide = c.Flag("antialias", false);
  HostTensor matrix(type, {r.from, r.to});
  for (int64_t i = 0; i < r.to; ++i) {
    const double x = source(r, i);
    const auto [first, weights] = wide ? WideWindowAt(x, cubic, a, r.scale) : WindowAt(x, cubic, a);
    double sum = 0;
    for (size_t k = 0; k < weights.size(); ++k) {
      const int64_t at = first + static_cast<int64_t>(k);
      if (at >= 0 && at < r.from) sum += weights[k];
    }
    for (size_t k = 0; k < weights.size(); ++k) {
      const int64_t at = first + static_cast<int64_t>(k);
      if (inside_only && (at < 0 || at >= r.from)) continue;
      const int64_t place = std::clamp<int64_t>(at, 0, r.from - 1) * r.to + i;
      matrix.SetDouble(place,
                       matrix.AsDouble(place) + (inside_only ? weights[k] / sum : weights[k]));
    }
  }
  return matrix;
}

Value* ByMatrix(NodeContext& c, Value* x, int axis, const Resizing& r, const Source& source) {
  if (r.from > kMaxElements / r.to)
    c.Fail("E1301", StrCat(c.op_type(), " of ", r.from, " to ", r.to, " is not supported"));
  Value* matrix = c.Constant(MatrixOf(c, r, source, x->type.dtype));
  Ints perm = Count(x->type.rank());
  std::swap(perm[axis], perm.back());
  const bool last = axis == x->type.rank() - 1;
  if (!last) x = c.Transpose(x, perm);
  x = c.Make("matmul", {x, matrix});
  return last ? x : c.Transpose(x, perm);
}

// One scale for all axes: the smallest or the largest, as the node's policy says.
void KeepAspectRatio(NodeContext& c, const Ints& axes, std::vector<Resizing>& dims) {
  const std::string policy = c.String("keep_aspect_ratio_policy", "stretch");
  if (policy == "stretch" || axes.empty()) return;
  if (policy != "not_larger" && policy != "not_smaller") {
    c.Fail("E1303", StrCat("there is no keep_aspect_ratio_policy \"", policy, "\""));
  }
  float scale = dims[axes[0]].scale;
  for (int64_t axis : axes) {
    const float own = dims[axis].scale;
    scale = policy == "not_larger" ? std::min(scale, own) : std::max(scale, own);
  }
  for (int64_t axis : axes) {
    dims[axis].scale = scale;
    dims[axis].to = std::lround(scale * static_cast<float>(dims[axis].from));
  }
}

// The dims of x by the input of sizes or of scales, for the axes that these are of.
std::vector<Resizing> ResizingsOf(NodeContext& c, const Shape& x) {
  const int rank = static_cast<int>(x.size());
  const bool has_roi = c.op_type() == "Resize" && c.opset() >= kHasModes;
  const int scales_at = has_roi ? 2 : 1, sizes_at = 3;
  if (has_roi) c.InputOrNull(1);  // of tf_crop_and_resize alone
  c.InputOrNull(scales_at);       // empty where there are sizes
  const Ints axes = Axes(c, c.IntList("axes").value_or(Count(rank)), rank);
  std::vector<Resizing> all;
  for (int64_t n : x) all.push_back({n, n, 1});
  auto check = [&](size_t count) {
    if (count != axes.size())
      c.Fail("E1303", StrCat(count, " sizes or scales for ", axes.size(), " dims"));
  };
  if (has_roi && c.has_input(sizes_at) && c.input(sizes_at)->type.num_elements() > 0) {
    const Ints sizes = c.ConstantInts(sizes_at);
    check(sizes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      Resizing& r = all[axes[i]];
      r.to = sizes[i];
      r.scale = static_cast<float>(r.to) / static_cast<float>(r.from);
    }
    KeepAspectRatio(c, axes, all);
    return all;
  }
  const std::vector<double> scales = c.ConstantFloats(scales_at);
  check(scales.size());
  for (size_t i = 0; i < axes.size(); ++i) {
    Resizing& r = all[axes[i]];
    r.scale = static_cast<float>(scales[i]);
    const float to = std::floor(static_cast<float>(r.from) * r.scale);
    if (!(to >= 1 && to <= static_cast<float>(kMaxElements)))
      c.Fail("E1303", StrCat("a dim of ", r.from, " cannot be scaled by ", scales[i]));
    r.to = static_cast<int64_t>(to);
  }
  return all;
}

void Resize(NodeContext& c) {
  Value* x = c.input(0);
  const std::string mode = c.String("mode", "nearest");
  if (mode != "nearest" && mode != "linear" && mode != "cubic") {
    c.Fail("E1303", StrCat("there is no mode \"", mode, "\""));
  }
  if (mode != "nearest" && !IsFloat(x->type.dtype)) {
    c.Fail("E1301", StrCat("Resize of integers by \"", mode, "\" is not supported"),
           "cast them to float, and what it makes back");
  }
  c.Int("antialias", 0);  // of the nearest there is none
  const std::vector<Resizing> dims = ResizingsOf(c, x->type.shape);
  const Source source = SourcesOf(c);
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d].to < 1 || dims[d].to > kMaxElements)
      c.Fail("E1303", StrCat("a dim of size ", dims[d].to));
    if (dims[d].from < 1) c.Fail("E1303", "a dim without elements cannot be resized");
    if (dims[d].from == dims[d].to && dims[d].scale == 1) continue;
    x = (mode == "nearest" ? ByNearest : ByMatrix)(c, x, static_cast<int>(d), dims[d], source);
  }
  c.SetOutput(0, x);
}

// [n, c, h, w] and its blocks, for DepthToSpace and SpaceToDepth.
int64_t BlockOf(NodeContext& c) {
  const int64_t block = c.Int("blocksize", 0);
  if (c.input(0)->type.rank() != 4 || block < 1)
    c.Fail("E1303", StrCat(c.op_type(), " needs four dims and a blocksize"));
  return block;
}

void DepthToSpace(NodeContext& c) {
  const int64_t b = BlockOf(c);
  const Shape s = c.input(0)->type.shape;
  const std::string mode = c.String("mode", "DCR");
  if (s[1] % (b * b) != 0 || (mode != "DCR" && mode != "CRD")) {
    c.Fail("E1303", StrCat("DepthToSpace ", mode, " of ", s[1], " channels by ", b));
  }
  const int64_t depth = s[1] / (b * b);
  const bool dcr = mode == "DCR";
  Value* x = c.Reshape(c.input(0), dcr ? Shape{s[0], b, b, depth, s[2], s[3]}
                                       : Shape{s[0], depth, b, b, s[2], s[3]});
  x = c.Transpose(x, dcr ? Ints{0, 3, 4, 1, 5, 2} : Ints{0, 1, 4, 2, 5, 3});
  c.SetOutput(0, c.Reshape(x, {s[0], depth, s[2] * b, s[3] * b}));
}

void SpaceToDepth(NodeContext& c) {
  const int64_t b = BlockOf(c);
  const Shape s = c.input(0)->type.shape;
  if (s[2] % b != 0 || s[3] % b != 0) {
    c.Fail("E1303", StrCat("blocks of ", b, " do not fit ", ShapeToString(s)));
  }
  Value* x = c.Reshape(c.input(0), {s[0], s[1], s[2] / b, b, s[3] / b, b});
  x = c.Transpose(x, {0, 3, 5, 1, 2, 4});
  c.SetOutput(0, c.Reshape(x, {s[0], s[1] * b * b, s[2] / b, s[3] / b}));
}

}  // namespace

void AddResizeConverters(ConverterTable& table) {
  table.insert({{"Resize", Resize},
                {"Upsample", Resize},
                {"DepthToSpace", DepthToSpace},
                {"SpaceToDepth", SpaceToDepth}});
}

}  // namespace shardc::onnx_import
