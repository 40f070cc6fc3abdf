// The tensors of a run as files have them: written, and compared.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ir/diagnostic.h"
#include "runtime/session.h"
#include "tools/module_names.h"

namespace shardc {

class RunFiles {
 public:
  // `module_names`: files get the names and the layouts that the PyTorch module has, as far as the
  // plan knows them, instead of the plan's own. Both must outlive this.
  RunFiles(const Session& session, const Manifest& manifest, bool module_names);

  // Of the names that are asked for: says on stderr which are not known.
  void NoteLostNames() const;

  // Whole tensors into a safetensors file, one at a time: gradients of a large model need not be in
  // memory twice. Throw what SafetensorsWriter throws.
  void SaveOutputs(const std::string& path) const;
  void SaveParams(const std::string& path) const;
  void SaveStates(const std::string& path) const;

  // CheckGolden of the outputs, under the plan's names and the module's. Returns what differs
  // instead of throwing it.
  std::optional<Diagnostic> Differences(const std::string& path, double rtol, double atol) const;

 private:
  using TypeOf = TensorType (Session::*)(const std::string&) const;
  using Get = HostTensor (Session::*)(const std::string&) const;

  std::vector<std::string> Params() const;
  std::vector<ModuleTensor> SavedAs(const std::string& name) const;
  void Save(const std::string& path, const std::vector<std::string>& names, TypeOf type_of,
            Get get) const;

  const Session& session_;
  const Manifest& manifest_;
  const bool module_names_;
  const std::map<std::string, std::vector<ModuleTensor>> of_module_;
};

}  // namespace shardc
