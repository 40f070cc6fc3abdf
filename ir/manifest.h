// plan/manifest.textproto: what a plan is, for `run`, `dump` and people.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ir/fixed_tensor.h"
#include "ir/mesh.h"
#include "ir/program.h"

namespace shardc {

// What a backend found by timing and keeps in the plan's folder, beside the files of the manifest.
inline constexpr const char* kKernelChoicesFile = "cuda_choices.txt";

struct ManifestState {
  std::string name;
  bool is_param = false;
  bool of_optimizer = false;         // what an optimizer keeps
  std::vector<std::string> aliases;  // other names of a param that users may use
  // Of these those whose tensors in the model may lie or count otherwise: transposed, or what an
  // exporter made the param of.
  std::vector<std::string> unlike_aliases;
  // The name of what the module that was exported has in the place of this matrix, transposed (of a
  // piece: of the whole); empty where that is not known, or where it is called as here.
  std::string transpose_of;
  std::vector<std::string> merged;  // the module's tensors that the exporter computed into a param
  std::string piece_of;             // a param of the model that this is a piece of; may be empty
  std::string role;                 // of a param: "MLP_UP"; may be empty
  DType dtype = DType::kF32;
  Shape shape;         // global
  Shape local_shape;   // physical, on every rank
  Sharding sharding;   // axes by index in the mesh; with segments and granules, so that shards can
                       // be put back
  std::string layout;  // the sharding for reading: "[768, 3072@tp]"
  double init = 0;     // of optimizer state: its first value
  std::vector<std::string> why;  // from the spec line to the sharding
  std::vector<int> stages;       // of a pipeline: those that hold it; without one empty
};

// A file of the plan, as it was written.
struct ManifestFile {
  std::string path;  // inside the plan's folder
  int64_t bytes = 0;
  std::string checksum;  // FileChecksum
};

struct Manifest {
  std::string model, spec, loss;  // of the loss the kind that --loss named
  Mesh mesh;
  std::string pipeline_axis;  // the mesh axis along which ranks run other stages; empty: none
  bool has_weights = false;
  std::vector<ManifestState> states;
  std::vector<ManifestFile> files;  // all but the manifest
  FixedTensors fixed;               // constants of the model's file
  std::vector<std::string> notes;
  // Bytes on one rank; of a pipeline, of the stage that needs most in all.
  int64_t weights_bytes = 0, gradients_bytes = 0, activations_bytes = 0, arena_bytes = 0;
  int64_t optimizer_bytes = 0, inputs_bytes = 0;  // its states; inputs and constants
  int64_t kernels_bytes = 0;                      // work memory of the CPU's kernels, about
  int64_t total_bytes() const {
    return weights_bytes + optimizer_bytes + inputs_bytes + arena_bytes + kernels_bytes;
  }
};

// The last line is a comment with the checksum of all others. Throws Diagnostic E5003, E5004.
void WriteManifest(const Manifest& manifest, const std::string& path);
// Throws Diagnostic E5001 (no plan there), E3005 (malformed, line:col), E3002 (checksum).
Manifest ReadManifest(const std::string& path);

std::string ProgramPath(const std::string& folder, int64_t rank);  // folder/rank0003.program
std::string WeightsPath(const std::string& folder,
                        int64_t rank);  // folder/weights/rank0003.safetensors
std::string ManifestPath(const std::string& folder);

}  // namespace shardc
