#include "ir/manifest.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "ir/checksum.h"
#include "ir/output_file.h"
#include "ir/shape_limit.h"
#include "manifest.pb.h"

namespace shardc {
namespace {

namespace pb = google::protobuf;

constexpr int kManifestVersion = 2;
const std::string kSumMark = "# XXH3-128 of the lines above: ";

[[noreturn]] void Fail(const std::string& where, std::string what) {
  throw Diagnostic("E3005", ExitCode::kVerification, where, std::move(what),
                   "compile the plan again");
}

class Errors : public pb::io::ErrorCollector {
 public:
  explicit Errors(const std::string& path) : path_(path) {}
  void AddError(int line, pb::io::ColumnNumber column, const std::string& message) override {
    if (!what_.empty()) return;
    what_ = message;
    where_ = StrCat(path_, ":", line + 1, ":", column + 1);
  }
  void AddWarning(int, pb::io::ColumnNumber, const std::string&) override {}
  [[noreturn]] void Throw() const { Fail(where_, what_); }

 private:
  const std::string& path_;
  std::string what_, where_;
};

template <typename List>
void AddAxes(const AxisList& axes, const Mesh& mesh, List* out) {
  for (int a : axes) *out->Add() = mesh.axes()[a].name;
}

void Encode(const ManifestState& state, const Mesh& mesh, proto::ManifestState* out) {
  out->set_name(state.name);
  out->set_is_param(state.is_param);
  for (const std::string& a : state.aliases) out->add_aliases(a);
  for (const std::string& a : state.unlike_aliases) out->add_unlike_aliases(a);
  if (!state.transpose_of.empty()) out->set_transpose_of(state.transpose_of);
  for (const std::string& m : state.merged) out->add_merged(m);
  if (!state.piece_of.empty()) out->set_piece_of(state.piece_of);
  if (!state.role.empty()) out->set_role(state.role);
  out->set_dtype(std::string(DTypeName(state.dtype)));
  out->mutable_shape()->Add(state.shape.begin(), state.shape.end());
  out->mutable_local_shape()->Add(state.local_shape.begin(), state.local_shape.end());
  out->set_layout(state.layout);
  if (state.sharding.dims != Sharding(state.shape.size()).dims) {
    for (const DimSharding& d : state.sharding.dims) {
      proto::ManifestDim* dim = out->add_dim();
      AddAxes(d.axes, mesh, dim->mutable_axes());
      if (d.granule != 1) dim->set_granule(d.granule);
      dim->mutable_segments()->Add(d.segments.begin(), d.segments.end());
    }
  }
  AddAxes(state.sharding.partial_sum, mesh, out->mutable_partial_sum());
  AddAxes(state.sharding.partial_max, mesh, out->mutable_partial_max());
  if (!state.is_param) out->set_init(state.init);
  if (state.of_optimizer) out->set_of_optimizer(true);
  for (const std::string& w : state.why) out->add_why(w);
  out->mutable_stage()->Add(state.stages.begin(), state.stages.end());
}

proto::Manifest Encode(const Manifest& manifest) {
  proto::Manifest out;
  out.set_version(kManifestVersion);
  out.set_model(manifest.model);
  out.set_spec(manifest.spec);
  if (!manifest.loss.empty()) out.set_loss(manifest.loss);
  out.set_mesh(manifest.mesh.ToString());
  if (!manifest.pipeline_axis.empty()) out.set_pipeline_axis(manifest.pipeline_axis);
  out.set_has_weights(manifest.has_weights);
  proto::MemoryPerRank* memory = out.mutable_memory_per_rank();
  memory->set_weights_bytes(manifest.weights_bytes);
  memory->set_gradients_bytes(manifest.gradients_bytes);
  memory->set_activations_bytes(manifest.activations_bytes);
  memory->set_arena_bytes(manifest.arena_bytes);
  memory->set_optimizer_bytes(manifest.optimizer_bytes);
  memory->set_inputs_bytes(manifest.inputs_bytes);
  memory->set_kernels_bytes(manifest.kernels_bytes);
  for (const std::string& n : manifest.notes) out.add_note(n);
  for (const ManifestState& s : manifest.states) Encode(s, manifest.mesh, out.add_state());
  for (const auto& [name, tensor] : manifest.fixed) {
    proto::ManifestFixed* fixed = out.add_fixed();
    fixed->set_name(name);
    fixed->set_dtype(std::string(DTypeName(tensor.dtype)));
    fixed->set_checksum(tensor.checksum);
  }
  for (const ManifestFile& f : manifest.files) {
    proto::ManifestFile* file = out.add_file();
    file->set_path(f.path);
    file->set_bytes(f.bytes);
    file->set_checksum(f.checksum);
  }
  return out;
}

class ManifestReader {
 public:
  explicit ManifestReader(const std::string& path) : path_(path) {}

  Manifest Read(const std::string& text) {
    Parse(text);
    Manifest m;
    if (proto_.version() == 0) {
      Fail(path_, "is empty, or says no version: it is no manifest of a plan");
    }
    if (proto_.version() != kManifestVersion) {
      Fail(At("version"), StrCat("a plan of version ", proto_.version(),
                                 "; this shardc reads version ", kManifestVersion));
    }
    m.model = proto_.model();
    m.spec = proto_.spec();
    m.loss = proto_.loss();
    try {
      m.mesh = mesh_ = Mesh::Parse(proto_.mesh());
    } catch (const Diagnostic& d) {
      Fail(At("mesh"), d.message());
    }
    m.pipeline_axis = proto_.pipeline_axis();
    if (!m.pipeline_axis.empty() && !mesh_.FindAxis(m.pipeline_axis)) {
      Fail(At("pipeline_axis"),
           StrCat("the mesh ", mesh_.ToString(), " has no axis '", m.pipeline_axis, "'"));
    }
    m.has_weights = proto_.has_weights();
    m.weights_bytes = proto_.memory_per_rank().weights_bytes();
    m.gradients_bytes = proto_.memory_per_rank().gradients_bytes();
    m.activations_bytes = proto_.memory_per_rank().activations_bytes();
    m.arena_bytes = proto_.memory_per_rank().arena_bytes();
    m.optimizer_bytes = proto_.memory_per_rank().optimizer_bytes();
    m.inputs_bytes = proto_.memory_per_rank().inputs_bytes();
    m.kernels_bytes = proto_.memory_per_rank().kernels_bytes();
    m.notes.assign(proto_.note().begin(), proto_.note().end());
    for (int i = 0; i < proto_.state_size(); ++i) m.states.push_back(State(i));
    for (int i = 0; i < proto_.fixed_size(); ++i) {
      const proto::ManifestFixed& f = proto_.fixed(i);
      m.fixed[f.name()] = {ReadDType(f.dtype(), At("fixed", i)), f.checksum()};
    }
    for (const proto::ManifestFile& f : proto_.file()) {
      m.files.push_back({f.path(), f.bytes(), f.checksum()});
    }
    return m;
  }

 private:
  void Parse(const std::string& text) {
    if (text.size() > static_cast<size_t>(std::numeric_limits<int>::max())) {
      Fail(path_, "is too large for a manifest");
    }
    Errors errors(path_);
    pb::TextFormat::Parser parser;
    parser.RecordErrorsTo(&errors);
    parser.WriteLocationsTo(&locations_);
    pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
    if (!parser.Parse(&stream, &proto_)) errors.Throw();
  }

  // Where the field stands; the file alone when it is missing.
  std::string At(const char* field, int index = -1) const {
    auto at = locations_.GetLocation(proto::Manifest::descriptor()->FindFieldByName(field), index);
    return at.line < 0 ? path_ : StrCat(path_, ":", at.line + 1, ":", at.column + 1);
  }

  template <typename List>
  AxisList Axes(const List& names, const std::string& where) const {
    AxisList out;
    for (const std::string& name : names) {
      std::optional<int> axis = mesh_.FindAxis(name);
      if (!axis) Fail(where, StrCat("the mesh ", mesh_.ToString(), " has no axis '", name, "'"));
      if (out.contains(*axis)) Fail(where, "axis '" + name + "' appears twice");
      if (out.size() == AxisList::kMax) Fail(where, "too many axes");
      out.push_back(*axis);
    }
    return out;
  }

  static DType ReadDType(const std::string& name, const std::string& where) {
    std::optional<DType> dtype = ParseDType(name);
    if (!dtype) Fail(where, "'" + name + "' is not a dtype");
    return *dtype;
  }

  static Shape ReadShape(const pb::RepeatedField<int64_t>& dims, DType dtype,
                         const std::string& where) {
    Shape shape(dims.begin(), dims.end());
    bool negative = std::any_of(shape.begin(), shape.end(), [](int64_t d) { return d < 0; });
    if (negative || TooLarge(dtype, shape)) {
      Fail(where, StrCat("shape ", ShapeToString(shape), " has a negative dim, or is too large"));
    }
    return shape;
  }

  ManifestState State(int index) const {
    const proto::ManifestState& s = proto_.state(index);
    std::string where = At("state", index);
    ManifestState out;
    out.name = s.name();
    if (out.name.empty()) Fail(where, "a state without a name");
    out.is_param = s.is_param();
    out.of_optimizer = s.of_optimizer();
    out.aliases.assign(s.aliases().begin(), s.aliases().end());
    out.unlike_aliases.assign(s.unlike_aliases().begin(), s.unlike_aliases().end());
    out.transpose_of = s.transpose_of();
    out.merged.assign(s.merged().begin(), s.merged().end());
    out.piece_of = s.piece_of();
    out.role = s.role();
    out.dtype = ReadDType(s.dtype(), where);
    out.shape = ReadShape(s.shape(), out.dtype, where);
    if (!out.transpose_of.empty() && out.shape.size() != 2) {
      Fail(where, StrCat("of shape ", ShapeToString(out.shape), " has no transpose"));
    }
    out.local_shape = ReadShape(s.local_shape(), out.dtype, where);
    out.layout = s.layout();
    out.sharding = ReadSharding(s, out, where);
    out.init = s.init();
    out.why.assign(s.why().begin(), s.why().end());
    out.stages.assign(s.stage().begin(), s.stage().end());
    return out;
  }

  Sharding ReadSharding(const proto::ManifestState& s, const ManifestState& state,
                        const std::string& where) const {
    TensorType type(state.dtype, state.shape);
    if (s.dim_size() && s.dim_size() != type.rank()) {
      Fail(where, StrCat(s.dim_size(), " dims for the shape ", ShapeToString(state.shape)));
    }
    for (int i = 0; i < s.dim_size(); ++i) {
      DimSharding& d = type.sharding.dims[i];
      d.axes = Axes(s.dim(i).axes(), where);
      d.granule = s.dim(i).granule();
      if (d.granule < 1) Fail(where, StrCat("the granule of dim ", i, " is ", d.granule));
      int64_t left = type.shape[i];
      for (int64_t n : s.dim(i).segments()) {
        if (n < 0 || n > left) Fail(where, StrCat("the segments of dim ", i, " exceed it"));
        left -= n;
        d.segments.push_back(n);
      }
    }
    type.sharding.partial_sum = Axes(s.partial_sum(), where);
    type.sharding.partial_max = Axes(s.partial_max(), where);
    try {
      CheckSharding(type, mesh_, where);
    } catch (const Diagnostic& d) {
      Fail(where, d.message());
    }
    if (Shape expected = LocalShape(type, mesh_); state.local_shape != expected) {
      Fail(where, StrCat("local_shape is ", ShapeToString(state.local_shape),
                         ", and the sharding says ", ShapeToString(expected)));
    }
    return type.sharding;
  }

  const std::string& path_;
  proto::Manifest proto_;
  pb::TextFormat::ParseInfoTree locations_;
  Mesh mesh_;
};

// The last line, a comment: the checksum of all before it.
void CheckSum(std::string_view text, const std::string& path) {
  size_t at = text.rfind(kSumMark);
  if (at != std::string_view::npos &&
      text.substr(at) == kSumMark + ChecksumOf(text.substr(0, at)) + "\n") {
    return;
  }
  throw Diagnostic("E3002", ExitCode::kVerification, path,
                   "its last line is not its checksum: the file was damaged or changed",
                   "copy the plan again, or compile it again");
}

std::string RankFile(int64_t rank, const char* suffix) {
  char text[32];
  std::snprintf(text, sizeof text, "rank%04lld", static_cast<long long>(rank));
  return std::string(text) + suffix;
}

}  // namespace

void WriteManifest(const Manifest& manifest, const std::string& path) {
  pb::TextFormat::Printer printer;
  printer.SetUseShortRepeatedPrimitives(true);
  printer.SetUseUtf8StringEscaping(true);
  std::string text;
  SHARDC_CHECK(printer.PrintToString(Encode(manifest), &text));
  text += kSumMark + ChecksumOf(text) + "\n";
  OutputFile out(path);
  out.Write(text);
  out.Close();
}

Manifest ReadManifest(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  bool opened = in.is_open();
  if (opened && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!opened || in.bad()) {
    throw Diagnostic("E5001", ExitCode::kIo, path,
                     StrCat("there is no plan: ", std::strerror(errno)),
                     "give a folder that `shardc compile` wrote");
  }
  // In this order, because where the text does not parse is more to go by than a wrong sum.
  Manifest manifest = ManifestReader(path).Read(text.str());
  CheckSum(text.str(), path);
  return manifest;
}

std::string ProgramPath(const std::string& folder, int64_t rank) {
  return folder + "/" + RankFile(rank, ".program");
}

std::string WeightsPath(const std::string& folder, int64_t rank) {
  return folder + "/weights/" + RankFile(rank, ".safetensors");
}

std::string ManifestPath(const std::string& folder) { return folder + "/manifest.textproto"; }

}  // namespace shardc
