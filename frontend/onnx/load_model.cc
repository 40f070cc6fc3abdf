#include "frontend/onnx/load_model.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "frontend/onnx/wire.h"
#include "ir/diagnostic.h"
#include "ir/file_error.h"

namespace shardc::onnx_import {
namespace {

constexpr int kMinOpset = 9, kMaxOpset = 28, kMinIr = 3, kMaxIr = 14;
// Deeper than any exporter nests subgraphs; protobuf recurses once per level.
constexpr int kMaxDepth = 100;
constexpr size_t kMaxStructure = size_t{1} << 30;

[[noreturn]] void Unreadable(const std::string& path, const std::string& why,
                             const std::string& fix = {}) {
  throw Diagnostic("E1001", ExitCode::kBadModel, path, why, fix);
}

Bytes MapModel(const std::string& path) {
  // Not to block on a FIFO.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw CannotRead(path, errno);
  struct stat info {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    if (S_ISDIR(info.st_mode)) throw CannotRead(path, EISDIR);
    Unreadable(path, "is not a file");
  }
  auto file = MappedFile::Map(fd);
  if (!file) throw CannotRead(path, errno);
  if (file->size() == 0) Unreadable(path, "is empty");
  return {file->data(), file->size(), file, true};
}

void Parse(const std::string& path, const std::string& bytes, onnx::ModelProto& proto) {
  if (bytes.size() > kMaxStructure) {
    Unreadable(path, StrCat("has ", bytes.size(), " bytes besides the data of its tensors"),
               "a model of up to 1 GiB without its tensors can be read");
  }
  google::protobuf::io::ArrayInputStream array(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedInputStream stream(&array);
  stream.SetRecursionLimit(kMaxDepth);
  if (!proto.ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) {
    Unreadable(path, "is not an ONNX model, or is damaged: protobuf cannot parse it",
               "check the download, or export the model again");
  }
}

void CheckVersions(LoadedModel& model) {
  const onnx::ModelProto& proto = model.proto;
  if (!proto.has_ir_version() || !proto.has_graph()) {
    Unreadable(model.path, StrCat("is not an ONNX model: it has no ",
                                  proto.has_graph() ? "IR version" : "graph"));
  }
  if (proto.ir_version() < kMinIr || proto.ir_version() > kMaxIr) {
    throw Diagnostic("E1003", ExitCode::kBadModel, model.path,
                     StrCat("has IR version ", proto.ir_version(), "; ", kMinIr, " to ", kMaxIr,
                            " can be read"));
  }
  for (const auto& opset : proto.opset_import()) {
    // A version that does not fit an int is as wrong as any other.
    model.opsets[NormalDomain(opset.domain())] =
        static_cast<int>(std::clamp<int64_t>(opset.version(), -1, 1 << 30));
  }
  auto main = model.opsets.find("");
  if (main == model.opsets.end()) {
    throw Diagnostic("E1002", ExitCode::kBadModel, model.path,
                     "does not say which opset of the default domain it uses");
  }
  if (main->second < kMinOpset || main->second > kMaxOpset) {
    throw Diagnostic(
        "E1002", ExitCode::kBadModel, model.path,
        StrCat("uses opset ", main->second, "; ", kMinOpset, " to ", kMaxOpset, " can be imported"),
        "export it with opset_version=18, or convert it with onnx.version_converter");
  }
}

}  // namespace

const Bytes* LoadedModel::RawOf(int initializer) const {
  const auto found = raw.find(initializer);
  return found == raw.end() ? nullptr : &found->second;
}

std::string NormalDomain(const std::string& domain) { return domain == "ai.onnx" ? "" : domain; }

LoadedModel LoadOnnx(const std::string& path) {
  LoadedModel model;
  model.path = path;
  size_t slash = path.rfind('/');
  model.folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  StrippedModel stripped = StripRawData(MapModel(path));
  if (!stripped.error.empty()) {
    Unreadable(path, "is not an ONNX model: " + stripped.error,
               "check the download, or export the model again");
  }
  Parse(path, stripped.proto, model.proto);
  model.raw = std::move(stripped.raw);
  CheckVersions(model);
  return model;
}

}  // namespace shardc::onnx_import
