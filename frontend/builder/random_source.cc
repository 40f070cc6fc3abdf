#include "frontend/builder/random_source.h"

#include <array>
#include <cmath>
#include <numbers>

#include "ir/host_tensor.h"
#include "ir/philox.h"

namespace shardc {
namespace {

uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

// In (0, 1]: never zero, whose logarithm is not finite.
float Uniform(uint32_t bits) {
  return static_cast<float>((static_cast<double>(bits) + 0.5) * 0x1p-32);
}

class Normal : public TensorSource {
 public:
  Normal(std::string_view name, DType dtype, Shape shape, uint64_t seed, double std)
      : hash_(Fnv1a(name)), seed_(seed), std_(std), dtype_(dtype), shape_(std::move(shape)) {}

  void Read(const Shape& offset, const Shape& size, void* out) const override {
    switch (dtype_) {
      case DType::kF32:
        return Fill(offset, size, static_cast<float*>(out), [](float v) { return v; });
      case DType::kF64:
        return Fill(offset, size, static_cast<double*>(out), [](float v) { return double{v}; });
      case DType::kF16:
        return Fill(offset, size, static_cast<uint16_t*>(out), FloatToHalf);
      case DType::kBF16:
        return Fill(offset, size, static_cast<uint16_t*>(out), FloatToBFloat16);
      default:
        SHARDC_CHECK(false, "random values of type ", DTypeName(dtype_));
    }
  }

 private:
  template <typename T, typename Convert>
  void Fill(const Shape& offset, const Shape& size, T* out, Convert convert) const {
    int64_t count = NumElements(size), rank = static_cast<int64_t>(shape_.size());
    if (count == 0) return;
    int64_t row = rank == 0 ? 1 : size[rank - 1];
    Shape index(size.size(), 0);
    for (int64_t done = 0; done < count; done += row) {
      int64_t start = 0;
      for (int64_t d = 0; d < rank; ++d) start = start * shape_[d] + offset[d] + index[d];
      FillRow(start, row, out + done, convert);
      for (int64_t d = rank - 2; d >= 0 && ++index[d] == size[d]; --d) index[d] = 0;
    }
  }

  template <typename T, typename Convert>
  void FillRow(int64_t start, int64_t count, T* out, Convert convert) const {
    for (int64_t i = start; i < start + count;) {
      std::array<float, 4> block = Block(static_cast<uint64_t>(i) / 4);
      for (int64_t lane = i % 4; lane < 4 && i < start + count; ++lane) {
        *out++ = convert(block[lane]);
        ++i;
      }
    }
  }

  std::array<float, 4> Block(uint64_t block) const {
    auto low = [](uint64_t v) { return static_cast<uint32_t>(v); };
    auto high = [](uint64_t v) { return static_cast<uint32_t>(v >> 32); };
    std::array<uint32_t, 4> bits =
        Philox4x32({low(block), high(block), low(hash_), high(hash_)}, {low(seed_), high(seed_)});
    std::array<float, 4> out;
    for (int pair = 0; pair < 4; pair += 2) {
      float radius = static_cast<float>(std_) * std::sqrt(-2 * std::log(Uniform(bits[pair])));
      float angle = 2 * std::numbers::pi_v<float> * Uniform(bits[pair + 1]);
      out[pair] = radius * std::cos(angle);
      out[pair + 1] = radius * std::sin(angle);
    }
    return out;
  }

  uint64_t hash_, seed_;
  double std_;
  DType dtype_;
  Shape shape_;
};

class Filled : public TensorSource {
 public:
  Filled(DType dtype, double value) : element_(dtype, {}) { element_.SetDouble(0, value); }

  void Read(const Shape&, const Shape& size, void* out) const override {
    auto* bytes = static_cast<std::byte*>(out);
    for (int64_t i = NumElements(size); i > 0; --i, bytes += element_.bytes()) {
      std::copy_n(element_.raw(), element_.bytes(), bytes);
    }
  }

 private:
  HostTensor element_;
};

}  // namespace

std::shared_ptr<const TensorSource> NormalSource(std::string_view name, DType dtype, Shape shape,
                                                 uint64_t seed, double std) {
  return std::make_shared<Normal>(name, dtype, std::move(shape), seed, std);
}

std::shared_ptr<const TensorSource> FilledSource(DType dtype, double value) {
  return std::make_shared<Filled>(dtype, value);
}

}  // namespace shardc
