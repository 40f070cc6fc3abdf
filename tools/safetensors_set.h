// The tensors of one or several safetensors files.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ir/safetensors.h"

namespace shardc {

// A file; or an index of several as Hugging Face writes them, `model.safetensors.index.json`, whose
// `weight_map` says which file of its folder has which tensor; or a folder that has one of them, by
// the name model.safetensors. What is said of SafetensorsFile holds. Throws what that throws, and
// Diagnostic E5102 for an index that is malformed, names a file outside its folder, or a tensor
// that the file does not have.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::string& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& unread() const { return unread_; }
  bool Has(const std::string& name) const { return entries_.contains(name); }
  // Of tensors that it has.
  std::span<const std::byte> Data(const std::string& name) const { return FileOf(name).Data(name); }
  HostTensor Read(const std::string& name) const { return FileOf(name).Read(name); }

 private:
  const SafetensorsFile& FileOf(const std::string& name) const { return *file_of_.at(name); }

  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, const SafetensorsFile*> file_of_;  // by tensor
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> unread_;
};

}  // namespace shardc
