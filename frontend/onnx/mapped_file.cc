#include "frontend/onnx/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "ir/no_memory.h"

namespace shardc::onnx_import {

std::shared_ptr<const MappedFile> MappedFile::Map(int fd) {
  struct stat info {};
  void* data = nullptr;
  size_t size = 0;
  int error = fstat(fd, &info) == 0 ? 0 : errno;
  if (error == 0) {
    size = static_cast<size_t>(info.st_size);
    if (size > 0) data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) error = errno;
  }
  close(fd);
  if (error == ENOMEM) throw NoMemory("");
  errno = error;
  if (error != 0) return nullptr;
  return std::shared_ptr<const MappedFile>(
      new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::Release(const std::byte* data, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + size) / page * page;
  // Advice: nothing is lost when the kernel does not take it.
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace shardc::onnx_import
