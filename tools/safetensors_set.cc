#include "tools/safetensors_set.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "tools/files.h"

namespace shardc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWhole = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

Diagnostic Malformed(const std::string& index, std::string what) {
  return Diagnostic("E5102", ExitCode::kIo, index, std::move(what),
                    "give a .safetensors file, or the index that transformers' save_pretrained "
                    "wrote beside several");
}

// By file, the tensors that the index says it has.
std::map<std::string, std::vector<std::string>> ReadIndex(const std::string& path) {
  const auto json = nlohmann::json::parse(ReadFile(path), nullptr, /*allow_exceptions=*/false);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    throw Malformed(path, "is no index of safetensors files: it has no weight_map");
  }
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) throw Malformed(path, StrCat("'", tensor, "' is in no file"));
    const std::string name = file;
    if (name.empty() || name == ".." || name.find('/') != name.npos) {
      throw Malformed(path, StrCat("'", tensor, "' is in '", name, "', no file of its folder"));
    }
    files[name].push_back(tensor);
  }
  return files;
}

}  // namespace

SafetensorsSet::SafetensorsSet(const std::string& path) {
  std::string file = path;
  std::error_code unknown;  // what cannot be looked at cannot be opened either, and that is said
  if (fs::is_directory(path, unknown)) {
    file = fs::path(path) / kIndex;
    if (!fs::exists(file, unknown)) file = fs::path(path) / kWhole;
  }
  if (!file.ends_with(".json")) {
    files_.push_back(std::make_unique<SafetensorsFile>(file));
    entries_ = files_[0]->entries();
    unread_ = files_[0]->unread();
    for (const auto& [name, entry] : entries_) file_of_[name] = files_[0].get();
    return;
  }
  for (const auto& [part, names] : ReadIndex(file)) {
    files_.push_back(std::make_unique<SafetensorsFile>(fs::path(file).parent_path() / part));
    const SafetensorsFile& of = *files_.back();
    for (const std::string& name : names) {
      if (auto unread = of.unread().find(name); unread != of.unread().end()) {
        unread_.insert(*unread);
      } else if (auto entry = of.entries().find(name); entry != of.entries().end()) {
        entries_.insert(*entry);
        file_of_[name] = &of;
      } else {
        throw Malformed(file, StrCat("'", name, "' is in '", part, "', which does not have it"));
      }
    }
  }
}

}  // namespace shardc
