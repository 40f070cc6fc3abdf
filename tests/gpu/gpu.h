// For tests that need a GPU: they skip where there is none, and never pass.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <span>

#include "ir/diagnostic.h"
#include "ir/program.h"
#include "runtime/cuda_loader/load.h"
#include "runtime/cuda_loader/plugin.h"
#include "runtime/session.h"
#include "tests/ir/thrown.h"

namespace shardc::testing {

// What `--backend cuda` says on this machine when it cannot run the empty program: E4302. Nothing
// where there is a GPU.
inline std::optional<Diagnostic> WhyNoGpu() {
  static const std::optional<Diagnostic> why = []() -> std::optional<Diagnostic> {
    SessionOptions options;
    options.backend = "cuda";
    Program empty;
    return ThrownIfAny([&] { Session session({&empty, 1}, options, nullptr); });
  }();
  return why;
}

// A door of the plugin.
template <typename Function>
Function* FromPlugin(const char* name) {
  return reinterpret_cast<Function*>(FindInCudaPlugin(name));
}

}  // namespace shardc::testing

#define SHARDC_NEEDS_GPU()                          \
  do {                                              \
    if (auto why = ::shardc::testing::WhyNoGpu()) { \
      ASSERT_EQ(why->id(), "E4302") << why->what(); \
      GTEST_SKIP() << "no GPU: " << why->message(); \
    }                                               \
  } while (0)
