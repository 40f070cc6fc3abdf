// cuBLASLt without a GPU: what of its C API the backend calls. It does the products by loops, from
// nothing but what the descriptors say, and is as strict as cublasLt.h is: sizes of attributes,
// shapes, types, leading dims, alignments, and an algorithm that was proposed for another problem
// are refused.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

struct CUstream_st;

namespace shardc::testing {

struct FakeCublasLt {
  static FakeCublasLt& Get();

  // What it does, as a test wants it.
  bool epilogues = true;  // it has algorithms with them
  bool any = true;        // it has algorithms at all
  // Does the work when the stream comes to it.
  std::function<void(CUstream_st*, std::function<void()>)> enqueue =
      [](CUstream_st*, const std::function<void()>& work) { work(); };

  // What it saw.
  int proposals = 0, checks = 0, products = 0;
  std::string refusal;  // why it refused last, other than because a test wants it
};

}  // namespace shardc::testing
