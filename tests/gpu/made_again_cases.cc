#include "tests/gpu/made_again_cases.h"

#include <cstring>

#include "ir/diagnostic.h"

namespace shardc::testing {
namespace {

struct NormCase {
  bool centered, adds;
  DType type, y;
  int64_t cols;
  std::string Name() const {
    return StrCat(centered ? "layer_norm" : "rms_norm", adds ? ", added" : "", " of ", cols, " in ",
                  DTypeName(type), ", y in ", DTypeName(y));
  }
};

constexpr int64_t kRows = 3;

// y, and the gradient's; none where there is no kernel.
std::vector<HostTensor> Both(const NormCase& c,
                             const std::function<std::vector<HostTensor>(const KernelCase&)>& run) {
  auto floats = [&](Shape shape, uint64_t seed) {
    return As(RandomFloats(std::move(shape), seed), c.type);
  };
  const Shape all = {kRows, c.cols};
  const HostTensor x = floats(all, 1), dy = floats(all, 2), w = floats({c.cols}, 3),
                   b = floats({c.cols}, 4);
  const std::string y(DTypeName(c.y)), name = c.centered ? "layer_norm" : "rms_norm";
  KernelCase forward{c.Name(), name, {{"eps", 1e-5}, {"out", y}}, {x, w}};
  if (c.centered) forward.operands.push_back(b);
  const std::vector<HostTensor> results = run(forward);
  if (results.empty()) return {};
  KernelCase gradient{c.Name(), name + "_grad", {{"y", y}}, {dy, x}};
  gradient.operands.insert(gradient.operands.end(), results.begin() + 1, results.end());
  gradient.operands.insert(gradient.operands.end(), forward.operands.begin() + 1,
                           forward.operands.end());
  if (c.centered) gradient.attrs.Set("bias", true);
  if (c.adds) {
    gradient.op += "_add";
    gradient.attrs.Set("out", y);
    gradient.operands.insert(gradient.operands.begin(), floats(all, 5));
  }
  const std::vector<HostTensor> again = run(gradient);
  if (again.empty()) return {};
  return {results[0], again.back()};
}

}  // namespace

std::string WhereMadeAgainDiffers(
    const std::function<std::vector<HostTensor>(const KernelCase&)>& run) {
  int compared = 0;
  for (int64_t cols : {5, 24, 25, 768, 1000, 1023, 2064, 4100, 8200, 16400}) {
    for (bool centered : {true, false}) {
      for (bool adds : {false, true}) {
        for (DType y : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
          const NormCase c{centered, adds, y == DType::kF64 ? y : DType::kF32, y, cols};
          const std::vector<HostTensor> both = Both(c, run);
          if (both.empty()) continue;
          ++compared;
          const auto bytes = static_cast<size_t>(both[0].bytes());
          if (std::memcmp(both[0].raw(), both[1].raw(), bytes) != 0) return c.Name();
        }
      }
    }
  }
  return compared > 0 ? "" : "no kernel makes a value again";
}

}  // namespace shardc::testing
