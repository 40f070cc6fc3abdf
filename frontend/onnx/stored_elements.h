// Elements of tensors as files store them: also those that no DType holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "frontend/onnx/mapped_file.h"

namespace shardc::onnx_import {

// TensorProto::DataType of newer ONNX headers than ours may be.
inline constexpr int kFloat8E4M3FN = 17, kFloat8E4M3FNUZ = 18, kFloat8E5M2 = 19,
                     kFloat8E5M2FNUZ = 20, kUint4 = 21, kInt4 = 22, kFloat4E2M1 = 23, kUint2 = 25,
                     kInt2 = 26;

// How many bits an element takes: those of a type below 8 bits lie in bytes, the first in the
// lowest bits. Nothing of types that are none of numbers.
std::optional<int> StoredBits(int onnx_type);
// Bytes that so many elements take.
int64_t StoredSize(int onnx_type, int64_t elements);

class StoredElements {
 public:
  // Of a type that has StoredBits, but int64 and uint64. The bytes may hold more elements.
  StoredElements(Bytes bytes, int onnx_type);

  // The same bytes as elements of another type.
  StoredElements As(int onnx_type) const { return StoredElements(bytes_, onnx_type); }
  // The same as unsigned integers of so many bits (1, 2 or 4) that stand for the numbers of a
  // table; the first lies in a byte's highest bits.
  StoredElements Coded(int bits, std::vector<double> numbers) const;

  // Whether both are the same bits of the same type.
  bool IsSame(const StoredElements& other) const;

  int64_t size() const { return static_cast<int64_t>(bytes_.size) * 8 / bits_; }
  double At(int64_t i) const {
    if (table_.empty()) return Wide(i);
    const auto place = static_cast<int>(i & ((1 << log_in_byte_) - 1));
    const int shift = (place ^ first_) * bits_;
    const auto byte = std::to_integer<unsigned>(bytes_.data[i >> log_in_byte_]);
    return table_[(byte >> shift) & (table_.size() - 1)];
  }

 private:
  double Wide(int64_t i) const;
  void SetTable(int bits, std::vector<double> numbers);

  Bytes bytes_;
  int type_ = 0, bits_;
  int log_in_byte_ = 0, first_ = 0;  // elements of a byte; which place in it the first has
  std::vector<double> table_;        // of all elements of up to 8 bits
};

}  // namespace shardc::onnx_import
