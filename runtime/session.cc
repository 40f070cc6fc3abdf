#include "runtime/session.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_map>

#include "ir/choices.h"
#include "ir/diagnostic.h"
#include "ir/shard_copy.h"
#include "runtime/backend.h"
#include "runtime/describe.h"

namespace shardc {
namespace {

std::string AdviceFor(const TensorType& wanted, const HostTensor& given) {
  if (given.shape() != wanted.shape) {
    return "give an array of this shape, or compile with --bind for that one; the values of "
           "several "
           "steps have one more dim in front";
  }
  return wanted.dtype == DType::kBF16
             ? "numpy has no bf16: write the tensor to a safetensors file, as torch can"
             : StrCat("convert the array to ", DTypeName(wanted.dtype));
}

}  // namespace

class Session::Impl {
 public:
  Impl(std::span<const Program> programs, const SessionOptions& options,
       const StateReader& read_state)
      : programs_(programs), options_(options) {
    SHARDC_CHECK(!programs.empty() &&
                 programs[0].mesh.num_ranks() == static_cast<int64_t>(programs.size()));
    inputs_ = Collect(&Program::inputs);
    outputs_ = Collect(&Program::outputs);
    states_ = Collect(&Program::states);
    runner_ = MakeRunner({programs_, options_, read_state});
  }

  void SetInput(const std::string& name, const HostTensor& value) {
    const Entry* input = Find(inputs_, name);
    if (!input) {
      throw Diagnostic("E4001", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan has no input '", name, "'"),
                       Choices(name, "inputs", Names(&Program::inputs)));
    }
    const TensorType& type = input->type;
    if (value.dtype() != type.dtype || value.shape() != type.shape) {
      throw Diagnostic("E4002", ExitCode::kUsage, "--input " + name,
                       StrCat("the plan wants ", DTypeName(type.dtype), ShapeToString(type.shape),
                              ", got ", DTypeName(value.dtype()), ShapeToString(value.shape())),
                       AdviceFor(type, value));
    }
    for (const auto& [rank, buffer] : input->places) {
      GlobalToLocal(value.raw(), type, programs_[0].mesh, rank, runner_->Input(rank, buffer));
    }
    set_.insert(name);
  }

  std::vector<std::string> MissingInputs() const {
    std::vector<std::string> missing;
    for (const Entry& i : inputs_) {
      if (!set_.contains(i.name)) missing.push_back(i.name);
    }
    return missing;
  }

  void Step() {
    for (const std::string& name : MissingInputs()) {
      throw Diagnostic("E4001", ExitCode::kUsage, "run", StrCat("input '", name, "' is not given"),
                       "pass --input " + name + "=@file.npy, or --random-inputs SEED");
    }
    ++steps_;
    // Ranks that are processes of their own name it themselves: who fails may be another.
    if (options_.processes) return runner_->Step();
    NameStep(steps_, [&] { runner_->Step(); });
  }

  using List = SharedVector<NamedBuffer> Program::*;

  // Of the whole tensor: no sharding.
  TensorType Type(List list, const std::string& name) const {
    const std::vector<const Entry*> parts = Parts(list, name);
    SHARDC_CHECK(!parts.empty(), name);
    const Entry& first = *parts[0];
    Shape shape = first.type.shape;
    if (first.name != name) shape[first.piece.dim] = first.piece.whole_size;
    return TensorType(first.type.dtype, shape);
  }

  HostTensor Gather(List list, const std::string& name) const {
    const TensorType type = Type(list, name);
    HostTensor whole(type.dtype, type.shape);
    for (const Entry* part : Parts(list, name)) {
      if (part->name == name) {
        GatherPart(*part, whole.raw());
        continue;
      }
      const Shape& shape = part->type.shape;
      HostTensor piece(type.dtype, shape);
      GatherPart(*part, piece.raw());
      Shape at(shape.size());
      at[part->piece.dim] = part->piece.start;
      CopyBox(piece.raw(), shape, Shape(shape.size()), whole.raw(), type.shape, at, shape,
              DTypeSize(type.dtype));
    }
    return whole;
  }

  // Of tensors that are kept in pieces, the whole's.
  std::vector<std::string> Names(List list) const {
    std::vector<std::string> names;
    std::set<std::string> wholes;
    for (const Entry& e : EntriesOf(list)) {
      if (e.piece.whole.empty()) {
        names.push_back(e.name);
      } else if (wholes.insert(e.piece.whole).second) {
        names.push_back(e.piece.whole);
      }
    }
    return names;
  }

  std::span<const Program> programs_;
  SessionOptions options_;
  std::unique_ptr<StepRunner> runner_;

 private:
  // An input, output or state of the set, and the ranks that hold parts of it: all, or those of
  // some stages of a pipeline.
  struct Entry {
    std::string name;
    PieceOf piece;
    TensorType type;
    std::vector<std::pair<int64_t, int>> places;  // rank, buffer
  };

  // In the order of the first rank's list, then the second's, ...
  std::vector<Entry> Collect(List list) const {
    std::vector<Entry> entries;
    std::unordered_map<std::string_view, size_t> at;
    for (size_t r = 0; r < programs_.size(); ++r) {
      const Program& p = programs_[r];
      for (const NamedBuffer& b : p.*list) {
        auto [it, fresh] = at.try_emplace(b.name, entries.size());
        if (fresh) {
          entries.push_back({b.name, b.piece, p.buffers[b.buffer].type, {}});
        }
        entries[it->second].places.emplace_back(static_cast<int64_t>(r), b.buffer);
      }
    }
    return entries;
  }

  const std::vector<Entry>& EntriesOf(List list) const {
    return list == &Program::inputs ? inputs_ : list == &Program::outputs ? outputs_ : states_;
  }

  // The tensor, or its pieces.
  std::vector<const Entry*> Parts(List list, const std::string& name) const {
    std::vector<const Entry*> parts;
    for (const Entry& e : EntriesOf(list)) {
      if (e.name == name || e.piece.whole == name) parts.push_back(&e);
    }
    return parts;
  }

  void GatherPart(const Entry& part, std::byte* global) const {
    for (const auto& [rank, buffer] : part.places) {
      LocalToGlobal(runner_->Fetch(rank, buffer), part.type, programs_[0].mesh, rank, global);
    }
  }

  static const Entry* Find(const std::vector<Entry>& list, const std::string& name) {
    auto it = std::find_if(list.begin(), list.end(), [&](auto& e) { return e.name == name; });
    return it == list.end() ? nullptr : &*it;
  }

  int64_t steps_ = 0;
  std::set<std::string> set_;
  std::vector<Entry> inputs_, outputs_, states_;
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

int Session::Noted() {
  const SessionOptions& options = impl_->options_;
  if (options.processes) return impl_->runner_->Noted();
  return options.noted ? options.noted() : 0;
}

TensorType Session::InputType(const std::string& name) const {
  return impl_->Type(&Program::inputs, name);
}

std::vector<std::string> Session::InputNames() const { return impl_->Names(&Program::inputs); }

TensorType Session::OutputType(const std::string& name) const {
  return impl_->Type(&Program::outputs, name);
}

TensorType Session::StateType(const std::string& name) const {
  return impl_->Type(&Program::states, name);
}

HostTensor Session::Output(const std::string& name) const {
  return impl_->Gather(&Program::outputs, name);
}

std::vector<std::string> Session::OutputNames() const { return impl_->Names(&Program::outputs); }

HostTensor Session::State(const std::string& name) const {
  return impl_->Gather(&Program::states, name);
}

std::vector<std::string> Session::StateNames() const { return impl_->Names(&Program::states); }

int64_t Session::arena_bytes() const {
  int64_t bytes = 0;
  for (const Program& p : impl_->programs_) bytes = std::max(bytes, p.arena_bytes);
  return bytes;
}

int64_t Session::peak_bytes() const { return impl_->runner_->held_bytes(); }

int64_t Session::collective_bytes() const {
  int64_t bytes = 0;
  const Program& program = impl_->programs_[0];
  for (const Instruction& i : program.instructions) {
    if (i.collective < 0) continue;
    for (int b : i.operands) bytes += program.buffers[b].bytes;
  }
  return bytes;
}

std::optional<GpuMemory> Session::gpu_memory() const { return impl_->runner_->gpu_memory(); }

double Session::host_seconds() const { return impl_->runner_->host_seconds(); }

void Session::StartProfile(int64_t steps) {
  // As many on all ranks, also where programs differ.
  size_t longest = 0;
  for (const Program& p : impl_->programs_) longest = std::max(longest, p.instructions.size());
  impl_->runner_->StartProfile(std::min(steps, static_cast<int64_t>(RankProfile::Room(longest))));
}

Profile Session::TakeProfile() {
  Profile profile{impl_->programs_, impl_->runner_->TakeProfile(), MachinePeaks(), {}};
  profile.workers = impl_->runner_->TakeWorkers();
  return profile;
}

MachinePeaks Session::MeasurePeaks() { return impl_->runner_->MeasurePeaks(); }

}  // namespace shardc
