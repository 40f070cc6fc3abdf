#include "runtime/session.h"

#include <algorithm>
#include <set>

#include "ir/diagnostic.h"
#include "ir/shard_copy.h"
#include "runtime/backend.h"

namespace shardc {

class Session::Impl {
 public:
  Impl(std::span<const Program> programs, const SessionOptions& options,
       const StateReader& read_state)
      : programs_(programs), options_(options) {
    SHARDC_CHECK(!programs.empty() &&
                 programs[0].mesh.num_ranks() == static_cast<int64_t>(programs.size()));
    runner_ = MakeRunner({programs_, options_, read_state});
  }

  void SetInput(const std::string& name, const HostTensor& value) {
    const NamedBuffer* input = Find(programs_[0].inputs, name);
    if (!input) {
      std::vector<std::string> names = Names(programs_[0].inputs);
      std::string list;
      for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
      throw Diagnostic("E4001", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan has no input '", name, "'"),
                       DidYouMean(name, names) + " inputs: " + list);
    }
    const TensorType& type = programs_[0].buffers[input->buffer].type;
    if (value.dtype() != type.dtype || value.shape() != type.shape) {
      throw Diagnostic("E4002", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan wants ", DTypeName(type.dtype), ShapeToString(type.shape),
                              ", got ", DTypeName(value.dtype()), ShapeToString(value.shape())),
                       "convert the array, or compile with --bind for its shape");
    }
    for (size_t r = 0; r < programs_.size(); ++r) {
      const NamedBuffer* local = Find(programs_[r].inputs, name);
      GlobalToLocal(value.raw(), type, programs_[r].mesh, static_cast<int64_t>(r),
                    runner_->Input(static_cast<int64_t>(r), local->buffer));
    }
    set_.insert(name);
  }

  std::vector<std::string> MissingInputs() const {
    std::vector<std::string> missing;
    for (const NamedBuffer& i : programs_[0].inputs) {
      if (!set_.contains(i.name)) missing.push_back(i.name);
    }
    return missing;
  }

  void Step() {
    for (const std::string& name : MissingInputs()) {
      throw Diagnostic("E4001", ExitCode::kUsage, "run", StrCat("input '", name, "' is not given"),
                       "pass --input " + name + "=@file.npy, or --random-inputs SEED");
    }
    runner_->Step();
  }

  using List = std::vector<NamedBuffer> Program::*;

  // Of the whole tensor: no sharding.
  TensorType Type(List list, const std::string& name) const {
    const std::vector<size_t> parts = Parts(programs_[0].*list, name);
    SHARDC_CHECK(!parts.empty(), name);
    const NamedBuffer& first = (programs_[0].*list)[parts[0]];
    const TensorType& type = programs_[0].buffers[first.buffer].type;
    Shape shape = type.shape;
    if (first.name != name) shape[static_cast<size_t>(first.piece.dim)] = first.piece.whole_size;
    return TensorType(type.dtype, shape);
  }

  HostTensor Gather(List list, const std::string& name) const {
    const TensorType type = Type(list, name);
    HostTensor whole(type.dtype, type.shape);
    for (size_t part : Parts(programs_[0].*list, name)) {
      const NamedBuffer& entry = (programs_[0].*list)[part];
      if (entry.name == name) {
        GatherPart(list, part, whole.raw());
        continue;
      }
      const Shape& shape = programs_[0].buffers[entry.buffer].type.shape;
      HostTensor piece(type.dtype, shape);
      GatherPart(list, part, piece.raw());
      Shape at(shape.size());
      at[static_cast<size_t>(entry.piece.dim)] = entry.piece.start;
      CopyBox(piece.raw(), shape, Shape(shape.size()), whole.raw(), type.shape, at, shape,
              DTypeSize(type.dtype));
    }
    return whole;
  }

  // Of tensors that are kept in pieces, the whole's.
  static std::vector<std::string> Names(const std::vector<NamedBuffer>& list) {
    std::vector<std::string> names;
    std::set<std::string> wholes;
    for (const NamedBuffer& b : list) {
      if (b.piece.whole.empty()) {
        names.push_back(b.name);
      } else if (wholes.insert(b.piece.whole).second) {
        names.push_back(b.piece.whole);
      }
    }
    return names;
  }

  std::span<const Program> programs_;
  SessionOptions options_;
  std::unique_ptr<StepRunner> runner_;

 private:
  // Indices of the tensor, or of its pieces.
  static std::vector<size_t> Parts(const std::vector<NamedBuffer>& list, const std::string& name) {
    std::vector<size_t> parts;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].name == name || list[i].piece.whole == name) parts.push_back(i);
    }
    return parts;
  }

  // All ranks list the same tensors in the same order.
  void GatherPart(List list, size_t part, std::byte* global) const {
    for (size_t r = 0; r < programs_.size(); ++r) {
      const int buffer = (programs_[r].*list)[part].buffer;
      int64_t rank = static_cast<int64_t>(r);
      LocalToGlobal(runner_->Fetch(rank, buffer),
                    programs_[r].buffers[static_cast<size_t>(buffer)].type, programs_[r].mesh, rank,
                    global);
    }
  }

  static const NamedBuffer* Find(const std::vector<NamedBuffer>& list, const std::string& name) {
    auto it = std::find_if(list.begin(), list.end(), [&](auto& b) { return b.name == name; });
    return it == list.end() ? nullptr : &*it;
  }

  std::set<std::string> set_;
};

Session::Session(std::span<const Program> programs, const SessionOptions& options,
                 const StateReader& read_state)
    : impl_(std::make_unique<Impl>(programs, options, read_state)) {}

Session::~Session() = default;

void Session::SetInput(const std::string& name, const HostTensor& value) {
  impl_->SetInput(name, value);
}

std::vector<std::string> Session::MissingInputs() const { return impl_->MissingInputs(); }

void Session::Step() { impl_->Step(); }

TensorType Session::OutputType(const std::string& name) const {
  return impl_->Type(&Program::outputs, name);
}

TensorType Session::StateType(const std::string& name) const {
  return impl_->Type(&Program::states, name);
}

HostTensor Session::Output(const std::string& name) const {
  return impl_->Gather(&Program::outputs, name);
}

std::vector<std::string> Session::OutputNames() const {
  return Impl::Names(impl_->programs_[0].outputs);
}

HostTensor Session::State(const std::string& name) const {
  return impl_->Gather(&Program::states, name);
}

std::vector<std::string> Session::StateNames() const {
  return Impl::Names(impl_->programs_[0].states);
}

int64_t Session::arena_bytes() const { return impl_->programs_[0].arena_bytes; }

int64_t Session::peak_bytes() const { return impl_->runner_->held_bytes(); }

int64_t Session::collective_bytes() const { return impl_->runner_->collective_bytes(); }

double Session::host_seconds() const { return impl_->runner_->host_seconds(); }

void Session::StartProfile(int64_t steps) { impl_->runner_->StartProfile(steps); }

Profile Session::TakeProfile() {
  Profile profile{impl_->programs_, impl_->runner_->TakeProfile(), MachinePeaks(), {}};
  profile.workers = impl_->runner_->TakeWorkers();
  return profile;
}

MachinePeaks Session::MeasurePeaks() { return impl_->runner_->MeasurePeaks(); }

}  // namespace shardc
