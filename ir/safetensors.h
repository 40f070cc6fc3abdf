// The safetensors format: 8 bytes of header length, a JSON header, raw tensors.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/host_tensor.h"

namespace shardc {

struct SafetensorsEntry {
  DType dtype = DType::kF32;
  Shape shape;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
};

// A mapped file: nothing is read before it is asked for. Throws Diagnostic E5001 (cannot be
// opened), E5102 (malformed: header, overlapping or out of range tensors, unknown dtype), E5103 (no
// such tensor, with near names, or one of a dtype that the format knows and we do not: those are
// left out of entries()).
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool Has(const std::string& name) const { return entries_.contains(name); }
  // Tensors that are left out of entries(), and their dtype in the format's words.
  const std::map<std::string, std::string>& unread() const { return unread_; }
  std::span<const std::byte> Data(const std::string& name) const;
  HostTensor Read(const std::string& name) const;

 private:
  std::string path_;
  std::shared_ptr<const void> mapping_;
  int64_t size_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> unread_;
};

// Writes a file whose tensors arrive one by one, in the order announced, so that only one has to be
// in memory. The file exists under its name only after Finish (a temporary file beside it before).
// Throws Diagnostic E5003 (cannot be written), E5004 (disk full), E5104 (a name that means
// something else there).
class SafetensorsWriter {
 public:
  struct Announced {
    std::string name;
    DType dtype;
    Shape shape;
  };
  SafetensorsWriter(const std::string& path, std::vector<Announced> tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();  // removes the temporary file when not finished
  // The next tensor's bytes, all at once or in pieces.
  void Write(std::span<const std::byte> bytes);
  struct Written {
    int64_t bytes = 0;     // of the whole file
    std::string checksum;  // as FileChecksum (ir/checksum.h)
  };
  Written Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardc
