#include "runtime/cuda/rank_state.h"

#include <algorithm>
#include <cstring>

#include "ir/diagnostic.h"
#include "ir/ops/reference_util.h"
#include "ir/place_in_whole.h"
#include "runtime/cuda/scratch.h"
#include "runtime/describe.h"
#include "runtime/name_input.h"
#include "runtime/rank_memory.h"

namespace shardc::cuda {
namespace {

Diagnostic OutOfRange(const Program& program, const Instruction& instruction, const Fault& fault) {
  const Attributes& attrs = instruction.attrs;
  const Buffer& indices = program.buffers[IndicesOf(program, instruction)];
  Shape place = PlaceOf(fault.position, indices.type.shape);
  const Shape origin = OriginOf(attrs, indices.type.rank());
  for (size_t d = 0; d < place.size(); ++d) place[d] += origin[d];
  std::optional<int64_t> ignored;
  if (fault.kind == Fault::kBadLabel) ignored = attrs.Int("ignore_index", -100);
  const char* operand = fault.kind == Fault::kBadId      ? "ids"
                        : fault.kind == Fault::kBadLabel ? "labels"
                                                         : "indices";
  const int64_t least = fault.kind == Fault::kBadIndex ? -fault.limit : 0;
  return reference::OutOfRange(instruction.op, operand, place, fault.value, least, fault.limit,
                               ignored);
}

}  // namespace

MemoryLayout LayOut(const Program& program) {
  MemoryLayout out;
  auto take = [&](int64_t bytes) {
    int64_t at = out.bytes;
    out.bytes += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
    return at;
  };
  out.arena = take(program.arena_bytes);
  for (const SharedVector<NamedBuffer>* list : {&program.states, &program.inputs}) {
    for (const NamedBuffer& entry : *list) {
      const Buffer& b = program.buffers[entry.buffer];
      out.named[{b.space, b.name}] = take(b.bytes);
    }
  }
  out.constants = take(static_cast<int64_t>(program.constants.size()));
  return out;
}

RankState::RankState(Device& device, Carrier& carrier, const Program& program,
                     const Schedule& schedule, const KernelMaker& make_kernel,
                     const JoinedKernelMaker& make_joined, EpilogueLibrary* epilogues)
    : device_(device),
      program_(program),
      schedule_(schedule),
      layout_(LayOut(program)),
      timer_(device, program.instructions.size()) {
  for (size_t s = 0; s < schedule.streams.size(); ++s) streams_.emplace_back(device, s > 0);
  for (const Schedule::Item& item : schedule.items) {
    events_.push_back(item.recorded ? std::make_unique<OwnedEvent>(device) : nullptr);
  }
  Place(carrier);
  MakeKernels(make_kernel, make_joined);
  MakeRoomForFaults();
  if (epilogues) MakeGroups(*epilogues);
  TakeWorkspace(WorkspaceOfKernels());
}

void RankState::Place(Carrier& carrier) {
  std::string who = StrCat("rank ", program_.rank);
  if (std::byte* p = carrier.Allocate(layout_.bytes)) {
    all_ = Memory(p, layout_.bytes, [c = &carrier](std::byte* p) { c->Free(p); });
  } else {
    all_ = Memory(device_, layout_.bytes, who + ", arena and states");
  }
  RankMemory memory{all_.data() + layout_.arena, all_.data() + layout_.constants, {}};
  for (const auto& [name, offset] : layout_.named) memory.named[name] = all_.data() + offset;
  addresses_ = AddressesOf(program_, memory);
  for (const NamedBuffer& entry : program_.inputs) {
    const Buffer& b = program_.buffers[entry.buffer];
    Staged& staged = inputs_[b.name];
    if (staged.to) continue;
    staged.to = addresses_[entry.buffer];
    staged.host = Memory(device_, b.bytes, who + ", " + entry.name, true);
  }
}

void RankState::LoadStates(const StateReader& read_state) {
  int64_t largest = static_cast<int64_t>(program_.constants.size());
  for (const NamedBuffer& s : program_.states) {
    largest = std::max(largest, program_.buffers[s.buffer].bytes);
  }
  Memory host(device_, largest, StrCat("rank ", program_.rank, ", to load states"), true);
  Stream s = streams_[0].get();
  auto send = [&](std::byte* to, int64_t bytes) {
    if (bytes == 0) return;
    device_.CopyIn(to, host.data(), bytes, s);
    device_.Synchronize(s);
  };
  for (const NamedBuffer& state : program_.states) {
    const Buffer& b = program_.buffers[state.buffer];
    if (b.bytes > 0) std::memset(host.data(), 0, static_cast<size_t>(b.bytes));
    read_state(program_.rank, state, b, host.data());
    send(addresses_[state.buffer], b.bytes);
  }
  if (!program_.constants.empty()) {
    std::memcpy(host.data(), program_.constants.data(), program_.constants.size());
    send(all_.data() + layout_.constants, static_cast<int64_t>(program_.constants.size()));
  }
}

TensorView RankState::View(int buffer) const {
  return ViewOf(program_.buffers[buffer], addresses_[buffer]);
}

void RankState::MakeKernels(const KernelMaker& make_kernel, const JoinedKernelMaker& make_joined) {
  prepared_.resize(program_.instructions.size());
  launch_ = device_.LaunchOn(streams_[0].get());
  const bool states_change = ChangesStates(program_);
  auto request = [&](int i) {
    const Instruction& instruction = program_.instructions[i];
    Prepared& p = prepared_[i];
    p.in.clear(), p.out.clear();
    for (int b : instruction.operands) p.in.push_back(View(b));
    for (int b : instruction.results) p.out.push_back(View(b));
    return KernelRequest{
        program_, instruction,
        KernelCall{&instruction.attrs, p.in, p.out, &program_.mesh, program_.rank, 1},
        states_change};
  };
  auto keep = [&](int i, const std::function<std::unique_ptr<CudaKernel>()>& make) {
    std::unique_ptr<CudaKernel>& kernel = prepared_[i].kernel;
    try {
      kernel = make();
      if (kernel) kernel->Prepare(launch_);
    } catch (const Diagnostic& d) {
      throw d.In(DescribeInstruction(program_, static_cast<size_t>(i)));
    }
    return kernel != nullptr;
  };
  for (const Schedule::Item& item : schedule_.items) {
    if (item.stream != 0) continue;
    if (item.joined) {
      std::vector<KernelRequest> all;
      for (int i : item.runs) all.push_back(request(i));
      if (keep(item.instruction, [&] { return make_joined(all); })) continue;
    }
    for (int i : item.runs) {
      if (keep(i, [&] { return make_kernel(request(i)); })) continue;
      throw Diagnostic(
          "E4322", ExitCode::kInternal, DescribeInstruction(program_, static_cast<size_t>(i)),
          "there is no CUDA kernel for this op and these types and shapes", "use --backend cpu");
    }
  }
}

void RankState::MakeGroups(EpilogueLibrary& library) {
  for (const ProductGroup& g : schedule_.groups) {
    std::vector<CudaKernel*> separate;
    for (int i : g.instructions) {
      separate.push_back(prepared_[i].kernel.get());
      prepared_[i].group = static_cast<int>(groups_.size());
    }
    groups_.push_back(
        MakeGroupKernel(std::move(separate),
                        FusedProductOf(program_, g, [this](int b) { return View(b); }), library));
    groups_.back()->Prepare(launch_);
  }
}

int64_t RankState::WorkspaceOfKernels() const {
  int64_t bytes = 0;
  for (size_t i = 0; i < prepared_.size(); ++i) {
    if (!prepared_[i].kernel) continue;
    const int64_t wanted = prepared_[i].kernel->workspace_bytes();
    if (wanted > ScratchBytes(program_, program_.instructions[i])) bytes = std::max(bytes, wanted);
  }
  for (const auto& g : groups_) bytes = std::max(bytes, g->workspace_bytes());
  return bytes;
}

Launch RankState::LaunchOf(int instruction, const CudaKernel& kernel) const {
  Launch launch = launch_;
  const Instruction& i = program_.instructions[instruction];
  if (const int64_t scratch = ScratchBytes(program_, i);
      scratch > 0 && scratch >= kernel.workspace_bytes()) {
    launch.workspace = addresses_[i.scratch];
    launch.workspace_bytes = scratch;
  }
  return launch;
}

void RankState::TuneKernels(KernelChoices& choices) {
  // Neither zeros, which are multiplied faster than other numbers, nor anything that is huge.
  if (choices.may_measure && all_.bytes() > 0) {
    device_.Fill(all_.data(), 0x3c, all_.bytes(), streams_[0].get());
  }
  for (size_t i = 0; i < prepared_.size(); ++i) {
    CudaKernel* kernel = prepared_[i].kernel.get();
    if (!kernel) continue;
    try {
      kernel->Tune(LaunchOf(static_cast<int>(i), *kernel), choices);
    } catch (const Diagnostic& d) {
      throw d.In(DescribeInstruction(program_, i));
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    try {
      groups_[g]->Tune(launch_, choices);
    } catch (const Diagnostic& d) {
      throw d.In(DescribeInstruction(program_, static_cast<size_t>(schedule_.groups[g].product)));
    }
  }
  // Ways that were not taken may have needed more, and those that were.
  const int64_t workspace = WorkspaceOfKernels();
  if (workspace != workspace_.bytes()) TakeWorkspace(workspace);
}

void RankState::LaunchKernelsOnce() {
  const Stream s = streams_[0].get();
  // Also ids, of which 0 is one.
  if (all_.bytes() > 0) device_.Fill(all_.data(), 0, all_.bytes(), s);
  for (size_t i = 0; i < prepared_.size(); ++i) {
    if (prepared_[i].kernel) EnqueueKernel(static_cast<int>(i));
  }
  device_.Synchronize(s);
}

void RankState::TakeWorkspace(int64_t bytes) {
  workspace_ = Memory();
  workspace_ = Memory(device_, bytes, StrCat("rank ", program_.rank, ", workspace"));
  launch_.workspace = workspace_.data();
  launch_.workspace_bytes = bytes;
}

std::byte* RankState::Input(int buffer) {
  Staged& staged = inputs_.at(program_.buffers[buffer].name);
  staged.changed = true;
  return staged.host.data();
}

void RankState::UploadInputs(Stream s) {
  for (auto& [name, staged] : inputs_) {
    if (staged.changed && staged.host.bytes() > 0) {
      device_.CopyIn(staged.to, staged.host.data(), staged.host.bytes(), s);
    }
    staged.changed = false;
  }
}

void RankState::Before(int item) {
  const Schedule::Item& i = schedule_.items[item];
  for (int other : i.waits) device_.Wait(streams_[i.stream].get(), events_[other]->get());
}

void RankState::After(int item) {
  const Schedule::Item& i = schedule_.items[item];
  if (i.recorded) device_.Record(events_[item]->get(), streams_[i.stream].get());
}

void RankState::EnqueueKernel(int instruction) {
  const Prepared& p = prepared_[instruction];
  CudaKernel* kernel = p.kernel.get();
  if (!kernel) return;
  if (p.group >= 0 && groups_[p.group]->taken()) {
    if (instruction != schedule_.groups[p.group].product) return;
    kernel = groups_[p.group].get();
  }
  try {
    Launch launch = LaunchOf(instruction, *kernel);
    launch.fault = p.fault;
    kernel->Enqueue(launch);
  } catch (const Diagnostic& d) {
    throw d.In(DescribeInstruction(program_, static_cast<size_t>(instruction)));
  }
}

Member RankState::MemberOf(int instruction, int stream) const {
  return {program_.rank, streams_[stream].get(),
          BuffersOf(program_, program_.instructions[instruction], addresses_)};
}

void RankState::MakeRoomForFaults() {
  for (size_t i = 0; i < prepared_.size(); ++i) {
    if (IndicesOf(program_, program_.instructions[i]) >= 0) indexed_.push_back(i);
  }
  faults_ = Memory(device_, static_cast<int64_t>(indexed_.size() * sizeof(Fault)),
                   StrCat("rank ", program_.rank), true);
  auto* fault = reinterpret_cast<Fault*>(faults_.data());
  for (size_t i : indexed_) prepared_[i].fault = fault++;
}

void RankState::ClearFaults() {
  if (!faults_clear_) {
    for (size_t i : indexed_) *prepared_[i].fault = {};
  }
  faults_clear_ = false;  // until the step has ended without one
}

void RankState::CheckFaults() {
  for (size_t i : indexed_) {
    const Fault& fault = *prepared_[i].fault;
    if (fault.kind == Fault::kNone) continue;
    throw NameInput(program_, i, OutOfRange(program_, program_.instructions[i], fault));
  }
  faults_clear_ = true;
}

int64_t RankState::held_bytes() const { return all_.bytes() + workspace_.bytes(); }

}  // namespace shardc::cuda
