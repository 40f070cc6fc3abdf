// A file in memory by mmap, read only.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace shardc {

class TensorSource;

namespace onnx_import {

class MappedFile {
 public:
  // Maps what the open descriptor `fd` refers to and closes it. Returns null, with errno set, when
  // that fails. An empty file has size 0 and no data.
  static std::shared_ptr<const MappedFile> Map(int fd);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // Lets go of the pages that lie wholly within `size` bytes at `data`: the next access reads them
  // again, from the page cache or the file.
  static void Release(const std::byte* data, size_t size);

  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

// A stretch of a file, or of memory that `owner` keeps alive.
struct Bytes {
  const std::byte* data = nullptr;
  size_t size = 0;
  std::shared_ptr<const void> owner;
  bool mapped = false;  // the owner is a MappedFile
  // Of a tensor that the importer computes from others: its elements, in place of bytes.
  std::shared_ptr<const TensorSource> computed = nullptr;
};

}  // namespace onnx_import
}  // namespace shardc
