// Data of one type as that of another.
#pragma once

#include <cstring>
#include <memory>
#include <utility>

#include "ir/convert.h"
#include "ir/graph.h"

namespace shardc {

// The numbers of another source, of type `from`, as Converted gives them in `to`.
class ConvertedSource : public TensorSource {
 public:
  ConvertedSource(std::shared_ptr<const TensorSource> source, DType from, DType to)
      : source_(std::move(source)), from_(from), to_(to) {}

  void Read(const Shape& offset, const Shape& size, void* out) const override {
    if (from_ == to_) return source_->Read(offset, size, out);
    HostTensor held(from_, size);
    source_->Read(offset, size, held.raw());
    const HostTensor converted = Converted(held, to_);
    std::memcpy(out, converted.raw(), converted.bytes());
  }

 private:
  std::shared_ptr<const TensorSource> source_;
  DType from_, to_;
};

}  // namespace shardc
