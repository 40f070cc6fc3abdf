#include "tools/states.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>

#include "ir/checksum.h"
#include "ir/contains.h"
#include "ir/convert.h"
#include "ir/counted.h"
#include "ir/diagnostic.h"
#include "ir/safetensors.h"
#include "ir/shard_copy.h"
#include "tools/safetensors_set.h"

namespace shardc {
namespace {

// The memory is zero already, and padding stays so.
void SetFirstValue(const ManifestState& s, const Mesh& mesh, int64_t rank, const Buffer& buffer,
                   std::byte* local) {
  if (s.init == 0) return;
  for (const ShardBox& box : ShardBoxes(buffer.type, mesh, rank)) {
    HostTensor value(buffer.type.dtype, box.size);
    for (int64_t i = 0; i < value.num_elements(); ++i) value.SetDouble(i, s.init);
    CopyBox(value.raw(), box.size, Shape(box.size.size()), local, buffer.local_shape, box.local,
            box.size, DTypeSize(buffer.type.dtype));
  }
}

std::string TypeText(DType dtype, const Shape& shape) {
  return StrCat(DTypeName(dtype), ShapeToString(shape));
}

// The weights of all ranks; ranks come from their own threads.
class Weights {
 public:
  explicit Weights(const Plan& plan) : plan_(plan), states_(StatesByName(plan)) {
    for (int64_t r = 0; r < plan.manifest.mesh.num_ranks(); ++r) {
      std::string path = WeightsPath(plan.folder, r);
      std::string same = ListedFile(plan, path).checksum;
      // Replicas are often one file under several names: it is verified and mapped once.
      std::error_code error;
      for (auto& [other, file] : by_path_) {
        if (file->checksum == same && std::filesystem::equivalent(other, path, error)) {
          files_.push_back(file);
          break;
        }
      }
      if (static_cast<int64_t>(files_.size()) > r) continue;
      files_.push_back(std::make_shared<File>());
      files_.back()->path = path;
      files_.back()->checksum = same;
      by_path_.emplace_back(path, files_.back());
    }
  }

  void Read(int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) const {
    const ManifestState& s = *states_.at(state.name);
    if (s.is_param) return ReadParam(*files_[rank], state.name, buffer, local);
    SetFirstValue(s, plan_.manifest.mesh, rank, buffer, local);
  }

 private:
  struct File {
    std::string path, checksum;
    std::once_flag opened;
    std::unique_ptr<SafetensorsFile> tensors;
  };

  void ReadParam(File& file, const std::string& name, const Buffer& buffer,
                 std::byte* local) const {
    std::call_once(file.opened, [&] {
      CheckListedFile(plan_, file.path);
      file.tensors = std::make_unique<SafetensorsFile>(file.path);
    });
    auto entry = file.tensors->entries().find(name);
    if (entry == file.tensors->entries().end()) {
      throw MixedPlans(file.path, "has no tensor '" + name + "'");
    }
    if (entry->second.dtype != buffer.type.dtype || entry->second.shape != buffer.local_shape) {
      throw MixedPlans(
          file.path,
          StrCat("'", name, "' is ", TypeText(entry->second.dtype, entry->second.shape),
                 ", and the program wants ", TypeText(buffer.type.dtype, buffer.local_shape)));
    }
    std::span<const std::byte> data = file.tensors->Data(name);
    std::copy(data.begin(), data.end(), local);
  }

  const Plan& plan_;
  std::map<std::string, const ManifestState*> states_;
  std::vector<std::shared_ptr<File>> files_;  // by rank
  std::vector<std::pair<std::string, std::shared_ptr<File>>> by_path_;
};

// Whole tensors in one file. Ranks come from their own threads.
class Checkpoint {
 public:
  Checkpoint(const Plan& plan, const std::string& path)
      : plan_(plan), path_(path), file_(path), states_(StatesByName(plan)) {
    for (const Program& program : plan.programs) {
      for (const NamedBuffer& state : program.states) {
        if (source_.contains(state.name)) continue;
        source_[state.name] = Find(state, program.buffers[state.buffer]);
      }
    }
    CheckFixed();
    CheckOptimizer();
  }

  std::vector<std::string> Notes() const {
    std::vector<std::string> notes;
    auto note = [&](const std::set<std::string>& names, const std::string& what) {
      if (names.empty()) return;
      notes.push_back(StrCat(path_, " has ", Counted(std::ssize(names), "tensor"), " ", what, ": '",
                             *names.begin(), names.size() == 1 ? "'" : "' the first"));
    };
    std::set<std::string> used, converted, unused;
    for (const auto& [name, source] : source_) {
      used.insert(source.name);
      if (source.name.empty()) continue;
      const DType dtype = file_.entries().at(source.name).dtype;
      if (dtype != states_.at(name)->dtype && IsFloat(states_.at(name)->dtype)) {
        converted.insert(source.name);
      }
    }
    if (optimizer_states_ > 0 && !resumes_) {
      notes.push_back(path_ + " has no state of the optimizer, which begins anew");
    }
    for (const auto& [name, entry] : file_.entries()) {
      if (!used.contains(name) && !IsAlias(name) && !plan_.manifest.fixed.contains(name))
        unused.insert(name);
    }
    for (const auto& [name, dtype] : file_.unread()) {
      if (!IsAlias(name)) unused.insert(name);
    }
    note(unused, "that the plan does not");
    note(converted, "of another type, which are converted to the plan's");
    return notes;
  }

  void Read(int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) const {
    const Mesh& mesh = plan_.manifest.mesh;
    const Source& source = source_.at(state.name);
    if (source.name.empty()) {
      return SetFirstValue(*states_.at(state.name), mesh, rank, buffer, local);
    }
    const TensorType& type = buffer.type;
    Shape shape = file_.entries().at(source.name).shape;
    const std::byte* whole = file_.Data(source.name).data();
    HostTensor made, piece;
    if (source.transposed) {
      made = Transposed(file_.Read(source.name));
      shape = made.shape();
      whole = made.raw();
    }
    if (file_.entries().at(source.name).dtype != type.dtype) {
      made = Converted(source.transposed ? made : file_.Read(source.name), type.dtype);
      whole = made.raw();
    }
    if (!state.piece.whole.empty()) {
      piece = HostTensor(type.dtype, type.shape);
      Shape from(type.shape.size());
      from[state.piece.dim] = state.piece.start;
      CopyBox(whole, shape, from, piece.raw(), type.shape, Shape(type.shape.size()), type.shape,
              DTypeSize(type.dtype));
      whole = piece.raw();
    }
    GlobalToLocal(whole, type, mesh, rank, local);
  }

 private:
  struct Source {
    std::string name;  // in the file; empty: it has none
    bool transposed = false;
  };

  Diagnostic Unfit(std::string what, std::string hint) const {
    return Diagnostic("E4010", ExitCode::kUsage, "--load " + path_, std::move(what),
                      std::move(hint));
  }

  // One whole number: steps are counted in i64, and older checkpoints have them in f32.
  bool IsCount(const std::string& name, const SafetensorsEntry& entry) const {
    if (!entry.shape.empty() || entry.dtype == DType::kBool) return false;
    const double value = file_.Read(name).AsDouble(0);
    return value >= 0 && value == std::floor(value) && value <= 0x1p53;
  }

  // What the plan holds as a constant. Of a narrower type it may have been rounded.
  void CheckFixed() const {
    for (const auto& [name, fixed] : plan_.manifest.fixed) {
      auto entry = file_.entries().find(name);
      if (entry == file_.entries().end() || !IsFloat(entry->second.dtype)) continue;
      if (DTypeSize(entry->second.dtype) < DTypeSize(fixed.dtype)) continue;
      if (FixedTensorOf(Converted(file_.Read(name), fixed.dtype)) == fixed) continue;
      throw Unfit(StrCat("'", name, "' is not as in the model that was compiled, and the plan ",
                         "holds that as a constant"),
                  "export the model with what the file has, and compile it again");
    }
  }

  // The file is then of the module, whose tensor of the param's name holds other numbers.
  void CheckMerged(const ManifestState& s) const {
    for (const std::string& n : s.merged) {
      auto entry = file_.entries().find(n);
      if (entry == file_.entries().end() || !IsFloat(entry->second.dtype)) continue;
      throw Unfit(StrCat("has '", n, "', which the exporter of the model computed into '", s.name,
                         "': this is not the module's"),
                  "export the model with optimize=False, which keeps both, or give a file that "
                  "--save-params or --save-checkpoint wrote");
    }
  }

  // Where the file has the state; nowhere, which only what is no parameter may be.
  Source Find(const NamedBuffer& state, const Buffer& buffer) const {
    const ManifestState& s = *states_.at(state.name);
    const bool piece = !state.piece.whole.empty();
    std::vector<std::string> names = {piece ? state.piece.whole : state.name}, unlike;
    for (const std::string& alias : s.aliases) {
      (Contains(s.unlike_aliases, alias) ? unlike : names).push_back(alias);
    }
    auto has = [&](const std::string& n) { return file_.Has(n); };
    CheckMerged(s);
    auto name = std::find_if(names.begin(), names.end(), has);
    const Source source{name == names.end() ? s.transpose_of : *name, name == names.end()};
    if (!has(source.name)) {
      names.push_back(s.transpose_of);
      CheckReadable(names, buffer.type.dtype);
      if (!s.is_param) return {};
      throw Missing(s, names[0], unlike);
    }
    CheckFits(source, state, buffer);
    if (source.transposed) return source;
    for (auto n = name + 1; n != names.end(); ++n) CheckSame(*name, *n, false);
    for (const std::string& n : unlike) CheckSame(*name, n, true);
    return source;
  }

  // What the file has in a dtype that is not read it does not lack.
  void CheckReadable(const std::vector<std::string>& names, DType dtype) const {
    for (const std::string& n : names) {
      auto unread = file_.unread().find(n);
      if (unread == file_.unread().end()) continue;
      throw Unfit(StrCat("'", n, "' has dtype ", unread->second, ", which is not supported"),
                  IsFloat(dtype) ? "convert it to one of F64 F32 F16 BF16" : "convert it to I64");
    }
  }

  Diagnostic Missing(const ManifestState& s, const std::string& name,
                     const std::vector<std::string>& unlike) const {
    for (const std::string& other : unlike) {
      if (!file_.Has(other)) continue;
      return Unfit(
          StrCat("has '", other, "' and no '", name,
                 "', which the exporter of the model made of it, transposed or otherwise"),
          StrCat("give it as the model's file has it, under the name '", name,
                 "', or compile with --module FILE, the parameters that the module had when it "
                 "was exported"));
    }
    std::vector<std::string> have;
    for (const auto& [n, entry] : file_.entries()) have.push_back(n);
    const std::string& of_module = s.transpose_of;
    const std::string near = DidYouMean(of_module.empty() ? name : of_module, have);
    return Unfit(StrCat("has no tensor '", name, "', a parameter of the plan",
                        of_module.empty() ? "" : ", nor the module's '" + of_module + "'"),
                 StrCat(near, near.empty() ? "" : " ",
                        "give a file that --save-params or --save-checkpoint wrote, or that has "
                        "the model's names; where the exporter gave it others than the module's "
                        "file has, compile with --module"));
  }

  void CheckFits(const Source& source, const NamedBuffer& state, const Buffer& buffer) const {
    const SafetensorsEntry& entry = file_.entries().at(source.name);
    const DType dtype = buffer.type.dtype;
    Shape shape = buffer.type.shape;
    if (!state.piece.whole.empty()) shape[state.piece.dim] = state.piece.whole_size;
    if (source.transposed) std::swap(shape[0], shape[1]);
    const bool counts = !states_.at(state.name)->is_param && IsInteger(dtype) && shape.empty();
    const bool fits = entry.dtype == dtype || (IsFloat(entry.dtype) && IsFloat(dtype));
    if (entry.shape == shape && (counts ? IsCount(source.name, entry) : fits)) return;
    if (counts && fits && entry.shape == shape) {
      throw Unfit(StrCat("'", source.name, "' is ", file_.Read(source.name).AsDouble(0),
                         ", which is no number of steps"),
                  "the file was changed or damaged");
    }
    const std::string whole = state.piece.whole.empty() ? state.name : state.piece.whole;
    throw Unfit(StrCat("'", source.name, "' is ", TypeText(entry.dtype, entry.shape),
                       ", and the plan's is ", TypeText(dtype, shape),
                       source.transposed ? StrCat(" (the transpose of '", whole, "')") : ""),
                "the file is of another model");
  }

  // Of two names of one parameter the file may have both, as of tied weights. `may_turn`: of a
  // matrix that may be transposed; of what is no matrix nobody can say.
  void CheckSame(const std::string& name, const std::string& other, bool may_turn) const {
    if (!file_.Has(other)) return;
    const Shape& shape = file_.entries().at(name).shape;
    const Shape& also = file_.entries().at(other).shape;
    if (may_turn && (shape.size() != 2 || also.size() != 2)) return;
    const bool alike = file_.entries().at(name).dtype == file_.entries().at(other).dtype;
    if (alike && shape == also && std::ranges::equal(file_.Data(name), file_.Data(other))) return;
    const HostTensor a = file_.Read(name), b = file_.Read(other);
    bool same = shape == also;
    for (int64_t i = 0; same && i < a.num_elements(); ++i) same = a.AsDouble(i) == b.AsDouble(i);
    if (!same && may_turn && shape[0] == also[1] && shape[1] == also[0]) {
      same = true;
      for (int64_t i = 0; same && i < a.num_elements(); ++i) {
        same = a.AsDouble(i) == b.AsDouble(i % shape[1] * shape[0] + i / shape[1]);
      }
    }
    if (same) return;
    throw Unfit(StrCat("'", name, "' and '", other,
                       "' are one parameter of the plan, and are not equal here"),
                "the file is of a model that does not tie them: compile that one");
  }

  void CheckOptimizer() {
    std::string missing;
    size_t found = 0;
    for (const auto& [name, source] : source_) {
      if (!states_.at(name)->of_optimizer) continue;
      ++optimizer_states_;
      if (source.name.empty()) {
        missing = name;
      } else {
        ++found;
      }
    }
    resumes_ = optimizer_states_ > 0 && found == optimizer_states_;
    if (found == 0 || resumes_) return;
    throw Unfit(
        StrCat("has ", found, " of the optimizer's ", optimizer_states_, " states; '", missing,
               "' is missing"),
        "it was saved with another optimizer or --freeze: compile with those, or load a file of "
        "parameters alone");
  }

  bool IsAlias(const std::string& name) const {
    return std::any_of(states_.begin(), states_.end(), [&](const auto& entry) {
      const ManifestState& s = *entry.second;
      return name == s.transpose_of || Contains(s.aliases, name);
    });
  }

  const Plan& plan_;
  std::string path_;
  SafetensorsSet file_;
  std::map<std::string, const ManifestState*> states_;
  std::map<std::string, Source> source_;  // of every state of the programs
  size_t optimizer_states_ = 0;
  bool resumes_ = false;  // with the optimizer's states of the file
};

}  // namespace

std::string GistOf(const std::string& path) {
  constexpr int64_t kSmall = 1 << 16;
  const SafetensorsSet file(path);
  Checksum sum;
  auto add = [&](const std::string& text) { sum.Update(std::as_bytes(std::span(text))); };
  for (const auto& [name, entry] : file.entries()) {
    add(StrCat(name, " ", TypeText(entry.dtype, entry.shape), "\n"));
    if (entry.bytes <= kSmall) sum.Update(file.Data(name));
  }
  return sum.Hex();
}

StateReader WeightsReader(const Plan& plan) {
  bool params = std::any_of(plan.manifest.states.begin(), plan.manifest.states.end(),
                            [](const ManifestState& s) { return s.is_param; });
  if (!plan.manifest.has_weights) {
    if (params) {
      throw Diagnostic("E4008", ExitCode::kUsage, plan.folder,
                       "the plan was compiled without weights",
                       "compile with --weights split, or give them with --load FILE");
    }
    return [&mesh = plan.manifest.mesh, states = StatesByName(plan)](
               int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) {
      SetFirstValue(*states.at(state.name), mesh, rank, buffer, local);
    };
  }
  auto weights = std::make_shared<Weights>(plan);
  return [weights](int64_t rank, const NamedBuffer& state, const Buffer& buffer, std::byte* local) {
    weights->Read(rank, state, buffer, local);
  };
}

StateReader CheckpointReader(const Plan& plan, const std::string& path,
                             std::vector<std::string>* notes) {
  auto checkpoint = std::make_shared<Checkpoint>(plan, path);
  *notes = checkpoint->Notes();
  return [checkpoint](int64_t rank, const NamedBuffer& state, const Buffer& buffer,
                      std::byte* local) { checkpoint->Read(rank, state, buffer, local); };
}

}  // namespace shardc
