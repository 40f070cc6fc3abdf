// Random models, meshes and specs, and the comparison of a sharded run with the serial one.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/exec/harness.h"

namespace shardc::testing {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}

  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(engine_() % static_cast<uint64_t>(high - low + 1));
  }
  bool Chance(int percent) { return Between(1, 100) <= percent; }
  template <typename T>
  const T& Pick(const std::vector<T>& choices) {
    return choices[Between(0, static_cast<int64_t>(choices.size()) - 1)];
  }

 private:
  std::mt19937_64 engine_;
};

// "builtin:gpt?..." with small odd sizes.
std::string RandomModel(Dice& dice, const std::string& dtype);
// 1 to 12 ranks on one to three axes; maybe with stages of a pipeline, "pp", for which a model has
// `layers`.
std::string RandomMesh(Dice& dice, int64_t layers);
// A shipped spec or the text of one made by hand, for the parameters, inputs and activations of a
// graph to which the loss is attached: mostly cuts that are legal, of whatever dims; ZeRO rarely
// without an optimizer; maybe microbatches; a pipeline where the mesh has "pp".
std::string RandomSpec(Dice& dice, const Graph& graph, const Mesh& mesh, bool optimizer,
                       bool microbatches = true);
// No optimizer in one of three cases.
void AddRandomOptimizer(Dice& dice, RunSetup& setup);

// Ways to keep less, which change no result.
void AddRandomMemorySaving(Dice& dice, RunSetup& setup);

// Random inputs of a graph to which the loss is attached; some labels are ignored, not all.
Tensors FuzzInputs(Dice& dice, const Graph& graph, int64_t vocab);

// Outputs, losses of all steps, and states; each difference is relative to the tensor's largest
// element, or to `least` where that is larger; for gradients and states at least to a hundredth of
// the largest of their kind.
// Returns the problems found.
std::string Differences(const RunResult& got, const RunResult& want, double tolerance,
                        double least = 1e-30);

// Runs the setup on the graph; returns what is wrong, empty if it equals `serial` or is refused
// with a reason and advice (`refusal` is then what was said).
std::string CheckSharded(Graph graph, const RunSetup& setup, const Tensors& inputs,
                         const RunResult& serial, double tolerance, std::string& refusal,
                         double least = 1e-30);

// How to see the case again from a shell.
std::string Reproduction(const std::string& model, const RunSetup& setup);

// From the environment, for long runs by hand.
int64_t EnvironmentOr(const char* name, int64_t otherwise);

}  // namespace shardc::testing
