// Kernels written by hand, for tests.
#pragma once

#include <string>

#include "tests/runtime/cuda/ptx/module.h"

namespace shardc::ptx {

// A module with a kernel k(.u64 p) of `body`, that finds its thread in %r0 and p in %rd0.
inline Module ModuleOf(const std::string& body) {
  return Module(
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".extern .shared .align 16 .b8 dynamic[];\n"
      ".func (.param .b64 r) twice(.param .b64 x) { .reg .b64 %rd<9>; ld.param.u64 %rd0, [x];\n"
      "add.s64 %rd1, %rd0, %rd0; st.param.b64 [r+0], %rd1; ret; }\n"
      ".visible .entry k(.param .u64 p)\n.maxntid 64, 1, 1\n{\n"
      ".shared .align 4 .b8 kept[256];\n.local .align 8 .b8 mine[16];\n"
      ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<29>; .reg .b64 %rd<9>;\n"
      ".reg .f32 %f<9>; .reg .f64 %fd<9>;\n"
      "mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [p];\n" +
      body + "\nret;\n}\n");
}

}  // namespace shardc::ptx
