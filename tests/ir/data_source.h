// A tensor in memory as the data of a param.
#pragma once

#include <algorithm>

#include "ir/graph.h"
#include "ir/host_tensor.h"

namespace shardc::testing {

class DataSource : public TensorSource {
 public:
  explicit DataSource(HostTensor data) : data_(std::move(data)) {}
  void Read(const Shape& offset, const Shape& size, void* out) const override {
    int64_t element = DTypeSize(data_.dtype()), rank = static_cast<int64_t>(size.size());
    for (int64_t i = 0; i < NumElements(size); ++i) {
      int64_t from = 0, rest = i, stride = 1;
      for (int64_t d = rank - 1; d >= 0; --d) {
        from += (offset[d] + rest % size[d]) * stride;
        stride *= data_.shape()[d];
        rest /= size[d];
      }
      std::copy_n(data_.raw() + from * element, element,
                  static_cast<std::byte*>(out) + i * element);
    }
  }

 private:
  HostTensor data_;
};

}  // namespace shardc::testing
