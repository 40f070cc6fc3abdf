#include "tools/run_files.h"

#include <cstdio>
#include <utility>

#include "ir/contains.h"
#include "ir/convert.h"
#include "ir/counted.h"
#include "ir/graph.h"
#include "ir/safetensors.h"
#include "tools/check_golden.h"

namespace shardc {

RunFiles::RunFiles(const Session& session, const Manifest& manifest, bool module_names)
    : session_(session),
      manifest_(manifest),
      module_names_(module_names),
      of_module_(ModuleTensors(manifest)) {}

void RunFiles::NoteLostNames() const {
  if (!module_names_) return;
  std::map<std::string, std::string> made = MadeOfModules(manifest_);
  std::erase_if(made, [](const auto& names) { return !ParamOfGradient(names.first).empty(); });
  if (made.empty()) return;
  const auto& [module, own] = *made.begin();
  const std::string others =
      made.size() > 1 ? StrCat(", and ", Counted(std::ssize(made) - 1, "other"), " likewise") : "";
  std::fprintf(stderr,
               "note: '%s' is saved as '%s', which the exporter made of it%s; compile with "
               "--module for the module's own\n",
               module.c_str(), own.c_str(), others.c_str());
}

void RunFiles::SaveOutputs(const std::string& path) const {
  Save(path, session_.OutputNames(), &Session::OutputType, &Session::Output);
}
void RunFiles::SaveParams(const std::string& path) const {
  Save(path, Params(), &Session::StateType, &Session::State);
}
void RunFiles::SaveStates(const std::string& path) const {
  Save(path, session_.StateNames(), &Session::StateType, &Session::State);
}

std::optional<Diagnostic> RunFiles::Differences(const std::string& path, double rtol,
                                                double atol) const {
  std::vector<std::string> names = session_.OutputNames();
  std::map<std::string, std::pair<std::string, bool>> others;  // the plan's, and whether turned
  for (const auto& [own, tensors] : of_module_) {
    if (!Contains(names, own)) continue;
    for (const ModuleTensor& t : tensors) {
      if (t.name != own) others[t.name] = {own, t.transposed};
    }
  }
  for (const auto& [name, own] : others) names.push_back(name);
  const auto get = [&](const std::string& name) {
    const auto other = others.find(name);
    if (other == others.end()) return session_.Output(name);
    const HostTensor value = session_.Output(other->second.first);
    return other->second.second ? Transposed(value) : value;
  };
  try {
    CheckGolden(names, get, MadeOfModules(manifest_), path, rtol, atol);
  } catch (const Diagnostic& d) {
    if (d.code() != ExitCode::kMismatch) throw;
    return d;
  }
  return std::nullopt;
}

std::vector<std::string> RunFiles::Params() const {
  std::vector<std::string> names;
  for (const ManifestState& s : manifest_.states) {
    const std::string& name = s.piece_of.empty() ? s.name : s.piece_of;
    if (s.is_param && Contains(session_.StateNames(), name) && !Contains(names, name))
      names.push_back(name);
  }
  return names;
}

std::vector<ModuleTensor> RunFiles::SavedAs(const std::string& name) const {
  const auto known = of_module_.find(name);
  if (!module_names_ || known == of_module_.end()) return {{name}};
  return known->second;
}

void RunFiles::Save(const std::string& path, const std::vector<std::string>& names, TypeOf type_of,
                    Get get) const {
  std::vector<SafetensorsWriter::Announced> announced;
  for (const std::string& name : names) {
    const TensorType type = (session_.*type_of)(name);
    for (const ModuleTensor& saved : SavedAs(name)) {
      Shape shape = type.shape;
      if (saved.transposed) std::swap(shape[0], shape[1]);
      announced.push_back({saved.name, type.dtype, std::move(shape)});
    }
  }
  SafetensorsWriter writer(path, announced);
  for (const std::string& name : names) {
    const HostTensor value = (session_.*get)(name);
    for (const ModuleTensor& saved : SavedAs(name)) {
      const HostTensor turned = saved.transposed ? Transposed(value) : HostTensor();
      const HostTensor& tensor = saved.transposed ? turned : value;
      writer.Write({tensor.raw(), static_cast<size_t>(tensor.bytes())});
    }
  }
  writer.Finish();
}

}  // namespace shardc
