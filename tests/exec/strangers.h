// Models that the importer was not written for: other architectures of transformers, two layers,
// from both exporters, against goldens computed by PyTorch in float64.
#pragma once

#include <span>
#include <string>

#include "tests/exec/models.h"

namespace shardc::testing {

struct Stranger {
  const char *model, *file, *loss;
  int64_t large;       // all_reduces of batch * sequence * hidden with tp=2
  bool only_those;     // but for the cross entropy's two
  int attentions = 2;  // a bias of the scores that is trained makes it none
  double tolerance = 1e-4;
  int64_t hidden = 24;
};
std::span<const Stranger> AllStrangers();

// Of its batch, with this setup but for loss and drop, which are the stranger's.
RunResult RunStranger(const Stranger& s, RunSetup setup);
// What differs from its golden; "" where nothing does.
std::string CompareWithGolden(const Stranger& s, const RunResult& result);

}  // namespace shardc::testing
